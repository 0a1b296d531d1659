"""What the study of stragglers publishes of a job, as the replay answers it: delays, steps, ranks, micro-batches."""

from __future__ import annotations

import gzip
import json
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
from tests.unit.imports.test_schedules import STAGES, run_replica, run_step, write

F, B = 0.010, 0.020
Row = tuple[int, int, int, str, float, float, int, int]
"""Replica, stage, step, operation, begin, end, micro-batch, chunk of its stage."""


def table(path: Path, rows: list[Row]) -> Path:
    names = ("dp_rank", "stage", "step", "optype", "start_ts", "end", "mb_id", "mc")
    columns: dict[str, Any] = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    columns["duration"] = np.array(columns.pop("end")) - np.array(columns["start_ts"])
    stages = 1 + max(columns["stage"])
    columns["rank"] = [dp * stages + stage for dp, stage in zip(columns["dp_rank"], columns["stage"], strict=True)]
    columns["gmc"] = [
        one * stages + stage if "-compute" in kind else -1
        for one, stage, kind in zip(columns["mc"], columns["stage"], columns["optype"], strict=True)
    ]
    pq.write_table(pa.table(columns), path)
    return path


def replayed(path: Path, *rows: Row) -> Replay:
    return replay(read_operations(table(path / "p.parquet", list(rows))))


def run(tmp_path: Path, *words: str) -> str:
    done = CliRunner().invoke(program, [*words, "--store", str(tmp_path / "s")])
    if isinstance(done.exception, InputError):
        raise done.exception
    assert done.exit_code == 0, done.exception
    return done.output


def test_delays_are_told_by_who_waits(tmp_path: Path) -> None:
    """The backward pass of replica 1 is launched 6 ms late, in a step of 36 ms."""
    rows = [row for dp, late in enumerate((0.0, 0.006)) for row in (
        (dp, 0, 0, "forward-compute", 0.0, F, 0, 0), (dp, 0, 0, "backward-compute", F + late, F + late + B, 0, 0),
        (dp, 0, 0, "grads-reduce-scatter", F + late + B, F + 0.006 + B + 0.002, -1, 0))]  # fmt: skip
    found = replayed(tmp_path, *rows)
    assert (found.measured_s, found.replayed_s) == pytest.approx((0.038, 0.032))
    assert found.delays["by_dp_rank"] == pytest.approx({"1": 0.038 / 0.032, "0": 1.0})
    assert found.delays["by_kind"]["backward-compute"] == pytest.approx(0.038 / 0.032)
    assert found.delays["by_kind"]["first-op"] == pytest.approx(1.0)
    assert replayed(tmp_path, *(row for row in rows if row[0] == 0)).delays == {}, "without delays nothing is split"


def test_a_late_batch_is_a_delay_of_the_first_operation(tmp_path: Path) -> None:
    rows = [row for dp, late in enumerate((0.0, 0.010)) for row in (
        (dp, 0, 0, "forward-compute", late, late + F, 0, 0),
        (dp, 0, 0, "grads-reduce-scatter", late + F, 0.010 + F, -1, 0))]  # fmt: skip
    found = replayed(tmp_path, *rows)
    assert next(iter(found.delays["by_kind"].items())) == ("first-op", pytest.approx(2.0))


def test_every_step_has_its_own_answer(tmp_path: Path) -> None:
    rows = [(dp, 0, step, "forward-compute", 0.0, F * (2 if (dp, step) == (1, 7) else 1), 0, 0)
            for step in (3, 7) for dp in (0, 1)]  # fmt: skip
    found = replayed(tmp_path, *rows)
    mean = 5 * F / 4
    assert {step: one["replayed_s"] for step, one in found.by_step.items()} == pytest.approx({"3": F, "7": 2 * F})
    assert found.by_step["7"]["by_dp_rank"] == pytest.approx({"0": 1.0, "1": 2 * F / mean})
    assert found.by_step["3"]["ideal_s"] == pytest.approx(mean)


def test_a_slow_rank_of_many_is_replayed_by_itself(tmp_path: Path) -> None:
    """300 ranks: of those that are not replayed one by one, stage and replica cost less."""
    rows = [row for dp in range(150) for row in _two_stages(dp, 3.0 if dp == 77 else 1.0)]
    found = replayed(tmp_path, *rows)
    assert len(found.by_rank) == 256
    assert found.blame == ("rank", "155")
    assert "first cause: rank 155" in run(tmp_path, "import", str(tmp_path / "p.parquet"))


def _two_stages(dp: int, slow: float) -> list[Row]:
    """One micro-batch through two stages; the second is slow."""
    last = F + F * slow
    back = last + B * slow
    return [(dp, 0, 0, "forward-compute", 0.0, F, 0, 0), (dp, 0, 0, "forward-send", F, F, -1, 0),
            (dp, 1, 0, "forward-recv", 0.0, F, -1, 0), (dp, 1, 0, "forward-compute", F, last, 0, 0),
            (dp, 1, 0, "backward-compute", last, back, 0, 0), (dp, 1, 0, "backward-send", back, back, -1, 0),
            (dp, 0, 0, "backward-recv", F, back, -1, 0),
            (dp, 0, 0, "backward-compute", back, back + B, 0, 0)]  # fmt: skip


def test_unequal_micro_batches_are_nobody_s_fault(tmp_path: Path) -> None:
    """Lengths of micro-batches differ, and with them forward and backward passes alike."""
    lengths = np.random.default_rng(5).lognormal(sigma=0.5, size=(3, 4, 8))

    def job(shift: int) -> Replay:
        """Backward passes of the micro-batches take as long as those of other ones, if there is a shift."""
        each = {"forward-compute": F * lengths, "backward-compute": B * np.roll(lengths, shift, axis=2)}
        rows: list[Row] = []
        for step in range(3):
            done = []
            for dp in range(4):
                clock = 0.0
                for kind, seconds in each.items():
                    for number, own in enumerate(seconds[step, dp].tolist()):
                        rows.append((dp, 0, step, kind, clock, clock + own, number, 0))
                        clock += own
                done.append(clock)
            rows += [(dp, 0, step, "grads-reduce-scatter", own, max(done), -1, 0) for dp, own in enumerate(done)]
        return replayed(tmp_path, *rows)

    even = job(0)
    assert even.lengths == pytest.approx(1.0)
    assert even.blame is not None
    assert even.blame[0] == "micro-batches"
    assert "micro-batches of unequal length" in run(tmp_path, "import", str(tmp_path / "p.parquet"))
    assert job(3).lengths < 0.9, "passes whose times have nothing to do with each other"


def test_whatever_a_rank_does_between_computations_is_a_part_of_the_step(tmp_path: Path) -> None:
    rows: list[Row] = [(0, 0, 0, "forward-compute", 0.0, F, 0, 0), (0, 0, 0, "recompute", F, 2 * F, -1, 0),
                       (0, 0, 0, "backward-compute", 2 * F, 2 * F + B, 0, 0)]  # fmt: skip
    assert replayed(tmp_path, *rows).replayed_s == pytest.approx(2 * F + B)
    beside: list[Row] = [rows[0], (0, 0, 0, "data-load", 0.0, F + B / 2, -1, 0),
                         (0, 0, 0, "backward-compute", F, F + B, 0, 0)]  # fmt: skip
    assert replayed(tmp_path, *beside).replayed_s == pytest.approx(F + B), "it ran beside a computation"


def test_gradients_of_a_chunk_wait_for_its_own_backward_pass(tmp_path: Path) -> None:
    """The reduction of chunk 1 was launched only when the backward pass of chunk 0 had ended."""
    done = 2 * F + 2 * B
    rows = [row for dp in (0, 1) for row in (
        (dp, 0, 0, "forward-compute", 0.0, F, 0, 0), (dp, 0, 0, "forward-compute", F, 2 * F, 0, 1),
        (dp, 0, 0, "backward-compute", 2 * F, 2 * F + B, 0, 1), (dp, 0, 0, "backward-compute", 2 * F + B, done, 0, 0),
        (dp, 0, 0, "grads-reduce-scatter", done, done + 0.015, -1, 1),
        (dp, 0, 0, "grads-reduce-scatter", done + 0.015, done + 0.030, -1, 0))]  # fmt: skip
    assert replayed(tmp_path, *rows).replayed_s == pytest.approx(done + 0.015), "the first one fits beside backward"


def test_transfers_that_move_nothing_are_left_out(tmp_path: Path) -> None:
    """Profilers record receives after the last pass, and sends before the first."""
    rows = run_step(1, lambda replica, stage, way: 1.6 if stage == 3 else 1.0)
    usual = replay(read_operations(write(tmp_path / "a.parquet", rows)))
    end = max(row[4] for row in rows)
    nothing = [(replica, stage, kind, begin, begin, -1, -1) for replica in (0, 1) for stage in range(1, STAGES - 1)
               for kind, begin in (("forward-recv", end), ("backward-send", 0.0))]  # fmt: skip
    other = replay(read_operations(write(tmp_path / "b.parquet", rows + nothing)))
    assert (other.unpaired, other.blame) == (0, ("stage", "3"))
    assert (other.replayed_s, other.ideal_s) == pytest.approx((usual.replayed_s, usual.ideal_s))


def test_short_operations_at_one_time_are_no_circle(tmp_path: Path) -> None:
    """Three exchanges of 50 us one after the other: each had nearly ended when the next began."""
    tail = [("layernorm-grads-all-reduce", 0.0), ("grads-reduce-scatter", 5e-5), ("optimizer-clip-main-grad", 1e-4)]
    rows: list[Row] = [(dp, 0, 0, "backward-compute", 0.0, B, 0, 0) for dp in (0, 1)]
    rows += [(dp, 0, 0, kind, B + at, B + at + 5e-5, -1, 0) for dp in (0, 1) for kind, at in tail]
    assert replayed(tmp_path, *rows).replayed_s == pytest.approx(B + 1.5e-4)


def test_a_folder_with_one_table_is_that_job_and_one_step_is_enough(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    table(folder / "trace.parquet", [row for dp in (0, 1) for row in _two_stages(dp, 1.5)])
    (folder / "meta.yaml").write_text("dp_size: 2\n")
    (folder / "result.json").write_text("{}")
    assert "a step takes 0.075 s" in run(tmp_path, "import", str(folder), "--name", "one")
    assert "first cause: stage 1" in run(tmp_path, "explain", "one")


def test_a_timeline_of_the_same_operations_has_the_same_answer(tmp_path: Path) -> None:
    rows, free = run_replica(0, 2, lambda replica, stage, way: (F if way == "forward" else B) * (1 + (stage == 3)))
    events: list[dict[str, Any]] = []
    for replica in (0, 1):
        for _, stage, kind, begin, end, batch, chunk in rows:
            args = {"step": 5, "mb_id": batch if "compute" in kind else None, "model_chunk": chunk // STAGES}
            thread = 5 * (2 * stage + replica) + ("compute" not in kind)
            events.append({"ph": "X", "name": kind, "pid": replica, "tid": thread,
                           "ts": 1e6 * begin, "dur": 1e6 * (end - begin), "args": args})  # fmt: skip
        events += [{"ph": "M", "name": "thread_name", "pid": replica, "tid": 5 * (2 * stage + replica) + stream,
                    "args": {"name": f"PP rank {stage}, TP rank 0, x"}}
                   for stage in range(STAGES) for stream in range(5)]  # fmt: skip
    path = tmp_path / "timeline.json.gz"
    path.write_bytes(gzip.compress(json.dumps(events).encode()))
    answer = replay(read_operations(path))
    assert (answer.measured_s, answer.replayed_s) == pytest.approx((max(free), max(free)))
    assert (answer.blame, len(answer.by_rank), answer.unpaired) == (("stage", "3"), 8, 0)
    nameless = [event for event in events if event["ph"] == "X"]
    path.write_bytes(gzip.compress(json.dumps(nameless).encode()))
    with pytest.raises(InputError, match="no thread_name says the stage"):
        read_operations(path)


def test_the_delays_of_everybody_are_what_the_measured_step_takes_longer(tmp_path: Path) -> None:
    """Although a straggler lengthens the step as well: delays are compared with the step that has it."""
    rows = [row for dp, (late, slow) in enumerate(((0.0, 1), (0.006, 2))) for row in (
        (dp, 0, 0, "forward-compute", 0.0, F, 0, 0), (dp, 0, 0, "backward-compute", F + late, F + late + slow * B,
         0, 0),
        (dp, 0, 0, "grads-reduce-scatter", F + late + slow * B, F + 0.006 + 2 * B + 0.002, -1, 0))]  # fmt: skip
    found = replayed(tmp_path, *rows)
    assert found.ideal_s < found.replayed_s < found.measured_s
    assert found.delays["by_stage"]["0"] * found.replayed_s == pytest.approx(found.measured_s)


@pytest.mark.parametrize(("late", "clock"), [({2}, 0.0), ({0, 1, 2, 3}, 0.003)])
def test_clocks_differ_where_one_rank_usually_ends_a_collective_later(
    tmp_path: Path, late: set[int], clock: float
) -> None:
    rows = [row for step in range(5) for dp in (0, 1) for row in (
        (dp, 0, step, "forward-compute", 0.0, F, 0, 0),
        (dp, 0, step, "grads-reduce-scatter", F, F + 0.002 + 0.003 * (dp == 1 and step in late), -1, 0))]  # fmt: skip
    assert replayed(tmp_path, *rows).clock_s == pytest.approx(clock)


def test_a_straggler_alone_is_no_delay(tmp_path: Path) -> None:
    rows = [row for dp, slow in enumerate((1, 2)) for row in (
        (dp, 0, 0, "forward-compute", 0.0, slow * F, 0, 0),
        (dp, 0, 0, "grads-reduce-scatter", slow * F, 2 * F + 0.002, -1, 0))]  # fmt: skip
    found = replayed(tmp_path, *rows)
    assert found.slowdown > 1.25
    assert found.measured_s == pytest.approx(found.replayed_s)
    assert found.delays == {}
