"""Pipelines of several schedules, simulated with known times: what the replay finds, and whom it blames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from paceline.cli import program
from paceline.errors import InputError
from paceline.explain.replay import Replay, replay
from paceline.measurements.foreign.operations import read_operations

STAGES, BATCHES, REPLICAS = 4, 8, 2
SECONDS = {"forward": 0.010, "backward": 0.020}
TRANSFER, REDUCTION = 0.0005, 0.003
Pass = tuple[str, int, int]
"""Direction, model chunk, micro-batch."""
Row = tuple[int, int, str, float, float, int, int]
"""Replica, stage, operation, begin, end, micro-batch, chunk."""
Slow = Callable[[int, int, str], float]
"""By replica, stage and direction: how much longer than usual."""


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
    """The operations of one replica, and when each stage is done with them."""
    queues = [one_forward_one_backward(chunks, stage) for stage in range(STAGES)]
    free, done, rows = [0.0] * STAGES, dict[Pass, float](), list[Row]()
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue and (ready := _arrival(queue[0], done, free[stage], chunks)) is not None:
                direction, chunk, batch = queue.pop(0)
                sender = chunk + (-1 if direction == "forward" else 1)
                if 0 <= sender < STAGES * chunks:
                    sent = done[direction, sender, batch]
                    rows += [(replica, stage, f"{direction}-recv", free[stage], ready, batch, chunk),
                             (replica, sender % STAGES, f"{direction}-send", sent, ready, batch, sender)]  # fmt: skip
                free[stage] = done[direction, chunk, batch] = ready + seconds(replica, stage, direction)
                rows.append((replica, stage, f"{direction}-compute", ready, free[stage], batch, chunk))
    return rows, free


def _arrival(one: Pass, done: dict[Pass, float], free: float, chunks: int) -> float | None:
    """When a pass can begin; None if what it needs is not done."""
    direction, chunk, batch = one
    if direction == "backward" and chunk == STAGES * chunks - 1:
        return free
    before = done.get((direction, chunk + (-1 if direction == "forward" else 1), batch))
    if direction == "forward" and chunk == 0:
        return free
    return None if before is None else max(free, before) + TRANSFER


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
          without: tuple[str, ...] = ()) -> Path:  # fmt: skip
    """Two equal steps as a table."""
    names = ("dp_rank", "stage", "optype", "start_ts", "end", "mb_id", "gmc")
    table = {name: [row[place] for row in rows] * 2 for place, name in enumerate(names)}
    ranks = [d * STAGES + s for d, s in zip(table["dp_rank"], table["stage"], strict=True)]  # type: ignore[operator]
    begin, end = np.array(table["start_ts"], dtype=float), np.array(table.pop("end"), dtype=float)
    table |= {"duration": list(end - begin), "start_ts": list(begin + [late(rank) for rank in ranks]),
              "step": [0] * len(rows) + [1] * len(rows), "rank": ranks}  # fmt: skip
    pq.write_table(pa.table({name: values for name, values in table.items() if name not in without}), path)
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
    words = "first cause: stage 3 alone makes the step 1.27 times as long, mostly by backward-compute; give it fewer"
    assert words in import_table(tmp_path)
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
