"""Pipelines of several schedules, simulated with known times: what the replay finds, and whom it blames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from paceline.cli import program
from paceline.errors import InputError
from paceline.explain.replay import Replay, replay
from paceline.measurements.foreign.operations import read_operations
from paceline.report.terminal.watched import replay_lines

STAGES, BATCHES, REPLICAS = 4, 8, 2
SECONDS = {"forward": 0.010, "backward": 0.020}
TRANSFER, REDUCTION = 0.0005, 0.003
Pass = tuple[str, int, int]
"""Direction, model chunk, micro-batch."""
Row = tuple[int, int, str, float, float, int, int]
"""Replica, stage, operation, begin, end, micro-batch, chunk."""
Slow = Callable[[int, int, str], float]
"""By replica, stage and direction: how much longer than usual."""
Columns = dict[str, Any]


def one_forward_one_backward(chunks: int, stage: int) -> list[Pass]:
    """The passes of a stage in Megatron's order: 1F1B, interleaved where a stage has several chunks."""
    total = BATCHES * chunks
    before = STAGES - stage - 1 if chunks == 1 else 2 * (STAGES - stage - 1) + (chunks - 1) * STAGES

    def place(direction: str, number: int) -> Pass:
        turn = number // STAGES % chunks
        chunk = turn if direction == "forward" else chunks - 1 - turn
        batch = number // (STAGES * chunks) * STAGES + number % STAGES
        return direction, chunk * STAGES + stage, batch

    order = [place("forward", number) for number in range(before)]
    for number in range(total - before):
        order += [place("forward", number + before), place("backward", number)]
    return order + [place("backward", number) for number in range(total - before, total)]


def run_replica(replica: int, chunks: int, seconds: Callable[[int, int, str], float]) -> tuple[list[Row], list[float]]:
    """The operations of one replica, and when each stage is done with them.

    A stage posts a receive when it has done its last pass of that direction.
    """
    queues = [one_forward_one_backward(chunks, stage) for stage in range(STAGES)]
    free, done, rows = [0.0] * STAGES, dict[Pass, float](), list[Row]()
    posted = {(stage, direction): 0.0 for stage in range(STAGES) for direction in SECONDS}
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue and (arrived := _arrival(queue[0], done, posted[stage, queue[0][0]], chunks)) is not None:
                direction, chunk, batch = queue.pop(0)
                sender = chunk + (-1 if direction == "forward" else 1)
                if 0 <= sender < STAGES * chunks:
                    rows += [(replica, stage, f"{direction}-recv", posted[stage, direction], arrived, batch, chunk),
                             (replica, sender % STAGES, f"{direction}-send", done[direction, sender, batch], arrived,
                              batch, sender)]  # fmt: skip
                begin = max(free[stage], arrived)
                free[stage] = done[direction, chunk, batch] = begin + seconds(replica, stage, direction)
                posted[stage, direction] = free[stage]
                rows.append((replica, stage, f"{direction}-compute", begin, free[stage], batch, chunk))
    return rows, free


def _arrival(one: Pass, done: dict[Pass, float], posted: float, chunks: int) -> float | None:
    """When a pass has what it needs; None if that is not sent."""
    direction, chunk, batch = one
    if direction == "backward" and chunk == STAGES * chunks - 1:
        return 0.0
    before = done.get((direction, chunk + (-1 if direction == "forward" else 1), batch))
    if direction == "forward" and chunk == 0:
        return 0.0
    return None if before is None else max(posted, before) + TRANSFER


def run_step(chunks: int, slow: Slow) -> list[Row]:
    """One step of all replicas, which reduce their gradients at its end."""
    found = [run_replica(r, chunks, lambda d, s, way: SECONDS[way] * slow(d, s, way)) for r in range(REPLICAS)]
    rows = [row for part, _ in found for row in part]
    for stage in range(STAGES):
        end = max(free[stage] for _, free in found) + REDUCTION
        rows += [(r, stage, "grads-reduce-scatter", free[stage], end, -1, -1) for r, (_, free) in enumerate(found)]
    return rows


def length(rows: list[Row]) -> float:
    return max(row[4] for row in rows) - min(row[3] for row in rows)


def write(path: Path, rows: list[Row], *, late: Callable[[int], float] = lambda rank: 0.0,
          without: tuple[str, ...] = (), change: Callable[[Columns], object] = lambda table: None) -> Path:  # fmt: skip
    """Two equal steps as a table, changed at the end."""
    names = ("dp_rank", "stage", "optype", "start_ts", "end", "mb_id", "gmc")
    table = {name: [row[place] for row in rows] * 2 for place, name in enumerate(names)}
    ranks = [d * STAGES + s for d, s in zip(table["dp_rank"], table["stage"], strict=True)]  # type: ignore[operator]
    begin, end = np.array(table["start_ts"], dtype=float), np.array(table.pop("end"), dtype=float)
    table |= {"duration": list(end - begin), "start_ts": list(begin + [late(rank) for rank in ranks]),
              "step": [0] * len(rows) + [1] * len(rows), "rank": ranks}  # fmt: skip
    columns: Columns = {name: np.array(values) for name, values in table.items() if name not in without}
    change(columns)
    pq.write_table(pa.table(columns), path)
    return path


def replayed(path: Path, chunks: int, slow: Slow) -> tuple[Replay, float, float]:
    """The replay, the step as it was, and the step with the mean times of each kind of pass."""
    rows = run_step(chunks, slow)
    mean = {way: float(np.mean([end - begin for *_, kind, begin, end, _, _ in rows if kind == f"{way}-compute"]))
            for way in SECONDS}  # fmt: skip
    even = run_step(chunks, lambda replica, stage, way: mean[way] / SECONDS[way])
    return replay(read_operations(write(path, rows))), length(rows), length(even)


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize(("slow", "blamed"), [
    (lambda replica, stage, way: 1.0, None),
    (lambda replica, stage, way: 1.6 if stage == 1 else 1.0, ("stage", "1")),
    (lambda replica, stage, way: 1.9 if stage == 0 and way == "backward" else 1.0, ("stage", "0")),
    (lambda replica, stage, way: 1.8 if (replica, stage) == (1, 2) else 1.0, ("rank", "6")),
    (lambda replica, stage, way: 1.5 if replica == 1 else 1.0, ("data-parallel rank", "1")),
], ids=["even", "stage", "backward of a stage", "rank", "replica"])  # fmt: skip
def test_every_schedule_has_its_times_and_its_culprit(
    tmp_path: Path, chunks: int, slow: Slow, blamed: tuple[str, str] | None
) -> None:
    answer, measured, ideal = replayed(tmp_path / "p.parquet", chunks, slow)
    assert (answer.measured_s, answer.replayed_s, answer.ideal_s) == pytest.approx(
        (measured, measured, ideal), rel=1e-3
    )
    assert answer.blame == blamed
    assert answer.clock_s == pytest.approx(0.0)


def import_table(tmp_path: Path, *options: str) -> str:
    done = CliRunner().invoke(program, ["import", str(tmp_path / "p.parquet"), "--name", "job", *options,
                                        "--store", str(tmp_path / "s")])  # fmt: skip
    if isinstance(done.exception, InputError):
        raise done.exception
    assert done.exit_code == 0, done.exception
    return done.output


def slow_stage(replica: int, stage: int, way: str) -> float:
    return 1.6 if stage == 3 else 1.0


def test_the_culprit_is_part_of_the_explanation(tmp_path: Path) -> None:
    write(tmp_path / "p.parquet", run_step(1, slow_stage))
    words = (
        "stage 3 alone makes the step 1.26 times as long, mostly by backward-compute, in all steps (persistent); give"
    )
    assert f"first cause: {words}" in import_table(tmp_path)
    done = CliRunner().invoke(program, ["explain", "job", "--store", str(tmp_path / "s")])
    assert words in done.output


def test_clocks_that_differ_are_noted_and_nobody_is_blamed(tmp_path: Path) -> None:
    rows = run_step(1, slow_stage)
    answer = replay(read_operations(write(tmp_path / "p.parquet", rows, late=lambda rank: 0.05 * (rank == 5))))
    assert answer.clock_s == pytest.approx(0.05)
    text = import_table(tmp_path)
    assert "the clocks of the ranks differ by about 50.0 ms" in text
    assert "first cause" not in text


def test_missing_stages_are_refused_unless_they_are_accepted(tmp_path: Path) -> None:
    rows = [row for row in run_step(1, slow_stage) if row[:2] != (1, 2)]
    write(tmp_path / "p.parquet", rows)
    with pytest.raises(InputError, match="operations of 1 ranks are missing: stage 2 of data-parallel rank 1"):
        import_table(tmp_path)
    assert "those who wait for them seem slow themselves" in import_table(tmp_path, "--partial")
    write(tmp_path / "p.parquet", [(row[0], row[1] + 1, *row[2:]) for row in run_step(1, slow_stage)])
    assert "first cause: stage 4" in import_table(tmp_path), "stages may be counted from one"


def test_chunks_that_nobody_numbers_are_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "p.parquet", run_step(2, slow_stage), without=("gmc", "mb_id"))
    with pytest.raises(InputError, match="in a circle") as error:
        replay(read_operations(tmp_path / "p.parquet"))
    assert "gmc" in str(error.value)


def scaled(factor: float) -> Callable[[Columns], object]:
    return lambda table: table.update(start_ts=table["start_ts"] * factor, duration=table["duration"] * factor)


@pytest.mark.parametrize("factor", [1e-1, 1e-2, 1e-4])
@pytest.mark.parametrize("chunks", [1, 2])
def test_short_operations_are_replayed_like_long_ones(tmp_path: Path, chunks: int, factor: float) -> None:
    rows = run_step(chunks, slow_stage)
    long = replay(read_operations(write(tmp_path / "long.parquet", rows)))
    short = replay(read_operations(write(tmp_path / "short.parquet", rows, change=scaled(factor))))
    assert (short.measured_s, short.replayed_s, short.ideal_s) == pytest.approx(
        (long.measured_s * factor, long.replayed_s * factor, long.ideal_s * factor)
    )
    assert (short.blame, long.blame) == (("stage", "3"), ("stage", "3"))


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("change", [
    lambda table: table.update(gmc=np.where(table["gmc"] >= 0, table["gmc"] // STAGES, -1)),
    lambda table: table.update(optype=np.char.upper(np.char.replace(table["optype"], "-", "_"))),
    lambda table: table.update(start_ts=(table["start_ts"] + 3.0).astype(np.float32)),
], ids=["chunks of the stage", "spelling", "single precision"])  # fmt: skip
def test_other_ways_to_write_a_job_have_the_same_answer(
    tmp_path: Path, chunks: int, change: Callable[[Columns], object]
) -> None:
    rows = run_step(chunks, slow_stage)
    usual = replay(read_operations(write(tmp_path / "a.parquet", rows)))
    other = replay(read_operations(write(tmp_path / "b.parquet", rows, change=change)))
    assert (other.replayed_s, other.ideal_s, other.blame) == (
        pytest.approx(usual.replayed_s, rel=1e-4), pytest.approx(usual.ideal_s, rel=1e-4), ("stage", "3")
    )  # fmt: skip


@pytest.mark.parametrize(("change", "why"), [
    (scaled(1e6), "a computation usually takes 15000 s, expected 600 at most: is it in seconds"),
    (lambda table: table.update(start_ts=(table["start_ts"] + 1.7e9).astype(np.float32)),
     "start_ts: single precision rounds to 1.3e.02 s here, and a computation takes 0.015 s"),
    (lambda table: table.update({name: np.tile(values, 2) for name, values in table.items()}),
     "256 computations of one rank, step and begin are there twice"),
    (lambda table: table.update(rank=table["stage"]), r"rank: 0 is at several places \(dp_rank, stage\)"),
    (lambda table: table.update(optype=np.char.replace(table["optype"], "compute", "pass")),
     "no operation is called forward-compute or backward-compute, the table has backward-pass, backward-recv"),
], ids=["microseconds", "epoch in single precision", "rows twice", "ranks twice", "names"])  # fmt: skip
def test_a_table_that_would_give_wrong_times_is_refused(
    tmp_path: Path, change: Callable[[Columns], object], why: str
) -> None:
    with pytest.raises(InputError, match=why):
        read_operations(write(tmp_path / "p.parquet", run_step(1, lambda *one: 1.0), change=change))


def kept(keep: Callable[[Row], bool], rows: list[Row]) -> list[Row]:
    return [row for row in rows if keep(row)]


@pytest.mark.parametrize("kind", ["forward-send", "backward-recv"])
def test_a_job_without_a_kind_of_transfer_is_refused(tmp_path: Path, kind: str) -> None:
    rows = kept(lambda row: row[2] != kind, run_step(1, slow_stage))
    operations = read_operations(write(tmp_path / "p.parquet", rows))
    with pytest.raises(InputError, match=f"no {kind} is recorded, and {2 * REPLICAS * 3 * BATCHES} computations have"):
        replay(operations)


@pytest.mark.parametrize("lost", [("forward-compute",), ("forward-compute", "forward-recv", "forward-send")])
def test_operations_that_were_not_recorded_are_told(tmp_path: Path, lost: tuple[str, ...]) -> None:
    rows = run_step(1, slow_stage)
    write(tmp_path / "p.parquet", kept(lambda row: not (row[:2] == (0, 1) and row[5] == 3 and row[2] in lost), rows))
    assert "sends and receives lack their computation or their peer" in import_table(tmp_path)
    write(tmp_path / "p.parquet", rows)
    assert "lack their" not in import_table(tmp_path)


def test_a_slow_link_is_not_mended_by_fewer_layers(tmp_path: Path) -> None:
    """The reduction of stage 1 takes 0.1 s longer than that of the others."""
    rows = run_step(1, lambda *one: 1.0)
    longer = [(*row[:4], row[4] + 0.1, *row[5:]) if row[1:3] == (1, "grads-reduce-scatter") else row for row in rows]
    write(tmp_path / "p.parquet", longer)
    text = import_table(tmp_path)
    assert "first cause: stage 1 alone" in text
    assert "mostly by grads-reduce-scatter, in all steps (persistent); look at the links that it uses" in text


def steps_of(path: Path, steps: list[list[Row]]) -> Replay:
    """The replay of steps that differ."""
    numbers = np.concatenate([np.full(len(rows), number) for number, rows in enumerate(steps)])
    rows = [row for step in steps for row in step]

    def number(table: Columns) -> None:
        table.update({name: values[: len(rows)] for name, values in table.items()})
        table["step"] = numbers

    return replay(read_operations(write(path, rows, change=number)))


def test_a_slow_step_of_everybody_is_nobody_s_fault(tmp_path: Path) -> None:
    even, warm = run_step(1, lambda *one: 1.0), run_step(1, lambda *one: 3.0)
    answer = steps_of(tmp_path / "p.parquet", [warm, even, even, even, even])
    assert answer.slowdown == pytest.approx(1.0, rel=1e-3)
    assert answer.blame is None


@pytest.mark.parametrize("noise", [0.1, 0.2])
def test_stages_that_vary_are_not_named_and_a_slow_one_is(tmp_path: Path, noise: float) -> None:
    """Log-normal noise of each computation: some stage is always first."""
    for seed in range(6):
        chance = np.random.default_rng(seed)

        def vary(replica: int, stage: int, way: str, chance: np.random.Generator = chance) -> float:
            return float(np.exp(noise * chance.standard_normal()))

        even = [run_step(1, vary) for _ in range(6)]
        assert steps_of(tmp_path / "p.parquet", even).blame is None
        slow = [run_step(1, lambda *one: vary(*one) * (1.2 if one[1] == 2 else 1.0)) for _ in range(6)]
        assert steps_of(tmp_path / "p.parquet", slow).blame == ("stage", "2")


def test_a_slow_step_of_one_rank_is_that_rank_s_not_its_replica_s(tmp_path: Path) -> None:
    even = run_step(1, lambda *one: 1.0)
    slow = run_step(1, lambda replica, stage, way: 6.0 if (replica, stage) == (1, 1) else 1.0)
    assert steps_of(tmp_path / "p.parquet", [even, even, slow, even, even, even]).blame == ("rank", "5")


@pytest.mark.parametrize(("slow", "since", "pattern", "words"), [
    ((2,), None, "transient", "in 1 of 6 steps, first in step 2 (transient)"),
    ((5,), 5, "transient", "in 1 of 6 steps, first in step 5 (transient)"),
    ((3, 4, 5), 3, "persistent", "since step 3 (persistent)"),
    (range(6), None, "persistent", "in all steps (persistent)"),
])  # fmt: skip
@pytest.mark.parametrize("who", [(1, 1), (None, 3), (1, None)], ids=["rank", "stage", "replica"])
def test_the_steps_in_which_the_culprit_is_slow(
    tmp_path: Path, who: tuple[int | None, int | None], slow: Sequence[int], since: int | None, pattern: str, words: str
) -> None:
    def times(replica: int, stage: int, way: str) -> float:
        return 2.0 if who[0] in (None, replica) and who[1] in (None, stage) else 1.0

    even, long = run_step(1, lambda *one: 1.0), run_step(1, times)
    answer = steps_of(tmp_path / "p.parquet", [long if step in slow else even for step in range(6)])
    assert (answer.slow_steps, answer.since, answer.pattern) == (tuple(slow), since, pattern)
    assert answer.cost.low <= answer.cost.value <= answer.cost.high
    text = "\n".join(replay_lines(answer.document))
    assert words in text
    assert "of every day" in text


def test_a_replay_that_a_former_version_stored_is_told(tmp_path: Path) -> None:
    document = steps_of(tmp_path / "p.parquet", [run_step(1, slow_stage)] * 2).document
    former = {name: document[name] for name in document if name not in ("cost", "slow_steps", "since", "pattern")}
    assert "first cause: stage 3 alone" in "\n".join(replay_lines(former))


def test_collectives_of_ranks_that_share_layers_stay_apart(tmp_path: Path) -> None:
    """Two replicas of two shards: one rank arrives 40 ms late at its first reduction, when others had their second."""
    rows = [(rank, "forward-compute", 0.0, late) for rank, late in enumerate((0.010, 0.011, 0.010, 0.050))]
    for rank, (_, _, _, begin) in enumerate(list(rows)):
        arrived = 0.010 if rank % 2 == 0 else 0.050
        rows += [(rank, "grads-reduce-scatter", begin, arrived + 0.006),
                 (rank, "grads-reduce-scatter", arrived + 0.006, arrived + 0.010)]  # fmt: skip
    rank, kind, begin, end = (np.array(column) for column in zip(*rows, strict=True))
    none = np.zeros(len(rows), int)
    table = {"rank": rank, "dp_rank": rank // 2, "stage": none, "step": none, "optype": kind, "start_ts": begin}
    pq.write_table(pa.table({**table, "duration": end - begin}), tmp_path / "p.parquet")
    answer = replay(read_operations(tmp_path / "p.parquet"))
    assert (answer.measured_s, answer.replayed_s) == pytest.approx((0.060, 0.060))
    assert answer.ideal_s == pytest.approx((0.010 + 0.011 + 0.010 + 0.050) / 4 + 2 * 0.005)
    assert answer.by_kind["grads-reduce-scatter"] == pytest.approx(1.0), "nobody reduces longer than the others"
