"""The replay of pipelines: times that are known in closed form, and who makes them longer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline.errors import InputError
from paceline.explain.replay import replay
from paceline.measurements.foreign.operations import Operations, read_operations
from tests.property.records import OPERATIONS

F, B = 0.010, 0.020


def pipeline(path: Path, *, stages: int = 4, batches: int = 6, dp: int = 2, slow: dict[int, float] | None = None,
             steps: int = 3, slow_dp: int | None = None, gap: float = 0.0) -> Path:  # fmt: skip
    """GPipe without time for transfers: all forward passes, then all backward passes; measured as it would run."""
    factors = slow or {}
    rows = []
    for step in range(steps):
        finish = 0.0
        tails = []
        for replica in range(dp):
            mine = factors if slow_dp in (None, replica) else {}
            times = _gpipe(stages, batches, [mine.get(stage, 1.0) for stage in range(stages)], gap)
            for stage, parts in enumerate(times):
                for (kind, number), (begin, end) in parts.items():
                    rows.append((replica, stage, kind, number, begin, end, step, number))
                    rows += _transfers(replica, stage, stages, kind, number, begin, end, step)
                tails.append((replica, stage, max(end for _, end in parts.values())))
            finish = max(finish, max(end for *_, end in tails))
        rows += [(replica, stage, "grads-reduce-scatter", 0, end, _group_end(tails, stage), step, -1)
                 for replica, stage, end in tails]  # fmt: skip
    return _write(path, rows, stages)


def _group_end(tails: list[tuple[int, int, float]], stage: int) -> float:
    return max(end for _, other, end in tails if other == stage) + 0.001


def _gpipe(
    stages: int, batches: int, factors: list[float], gap: float
) -> list[dict[tuple[str, int], tuple[float, float]]]:
    done: list[dict[tuple[str, int], tuple[float, float]]] = [{} for _ in range(stages)]
    free = [0.0] * stages
    for kind, seconds, order in (("forward", F, range(stages)), ("backward", B, reversed(range(stages)))):
        before = -1 if kind == "forward" else 1
        for stage in order:
            for number in range(batches):
                peer = done[stage + before].get((f"{kind}-compute", number)) if 0 <= stage + before < stages else None
                begin = max(free[stage], peer[1] if peer else 0.0) + gap
                free[stage] = begin + seconds * factors[stage]
                done[stage][f"{kind}-compute", number] = (begin, free[stage])
    return done


def _transfers(replica, stage, stages, kind, number, begin, end, step):  # type: ignore[no-untyped-def]
    direction = kind.split("-")[0]
    forth = 1 if direction == "forward" else -1
    rows = []
    if 0 <= stage + forth < stages:
        rows.append((replica, stage, f"{direction}-send", number, end, end, step, -1))
    if 0 <= stage - forth < stages:
        rows.append((replica, stage, f"{direction}-recv", number, begin, begin, step, -1))
    return rows


def _write(path: Path, rows: list[tuple[object, ...]], stages: int) -> Path:
    columns = list(zip(*rows, strict=True))
    names = ("dp_rank", "stage", "optype", "seq_id", "start_ts", "end", "step", "mb_id")
    table = dict(zip(names, columns, strict=True))
    ends = np.array(table.pop("end"), dtype=float)
    table["duration"] = ends - np.array(table["start_ts"], dtype=float)
    table["rank"] = [d * stages + s for d, s in zip(table["dp_rank"], table["stage"], strict=True)]
    table["gmc"] = [s if m >= 0 else -1 for s, m in zip(table["stage"], table["mb_id"], strict=True)]
    pq.write_table(pa.table(table), path)
    return path


def test_an_even_pipeline_has_no_stragglers_and_its_closed_form(tmp_path: Path) -> None:
    answer = replay(read_operations(pipeline(tmp_path / "p.parquet")))
    expected = (6 + 4 - 1) * (F + B) + 0.001
    assert answer.measured_s == pytest.approx(expected)
    assert answer.replayed_s == pytest.approx(expected)
    assert answer.ideal_s == pytest.approx(expected)
    assert max(answer.by_stage.values()) == pytest.approx(1.0)


def test_a_slow_stage_costs_what_the_closed_form_says_and_is_named_first(tmp_path: Path) -> None:
    """A stage k times as slow: every micro-batch waits for it, the others only fill and drain the pipeline."""
    stages, batches, k = 4, 6, 1.8
    answer = replay(read_operations(pipeline(tmp_path / "p.parquet", slow={3: k})))
    assert answer.replayed_s == pytest.approx((stages - 1 + k * batches) * (F + B) + 0.001)
    mean = (stages - 1 + k) / stages
    ideal = (batches + stages - 1) * mean * (F + B) + 0.001
    assert answer.ideal_s == pytest.approx(ideal)
    assert next(iter(answer.by_stage)) == "3"
    alone = ((stages - 1) * mean + k * batches) * (F + B) + 0.001
    assert answer.by_stage["3"] == pytest.approx(alone / ideal)
    assert list(answer.by_kind)[:2] == ["backward-compute", "forward-compute"]
    assert all(value <= 1.0 + 1e-9 for stage, value in answer.by_stage.items() if stage != "3")


@pytest.mark.parametrize(("old", "new"), [(b"forward", b"for\xffward"), (b"gmc", b"g\xe4c")], ids=["value", "column"])
def test_bytes_that_are_no_text_are_one_error(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = tmp_path / "operations.csv"
    path.write_bytes(OPERATIONS.encode().replace(old, new))
    with pytest.raises(InputError, match=r"operations\.csv"):
        read_operations(path)


def test_one_slow_rank_is_told_from_its_stage(tmp_path: Path) -> None:
    answer = replay(read_operations(pipeline(tmp_path / "p.parquet", slow={1: 2.0}, slow_dp=1)))
    assert next(iter(answer.by_rank)) == "5"
    assert next(iter(answer.by_dp_rank)) == "1"
    assert answer.by_rank["5"] > 1.2
    assert answer.by_rank["1"] < 1.01


def test_delays_between_operations_are_not_stragglers(tmp_path: Path) -> None:
    answer = replay(read_operations(pipeline(tmp_path / "p.parquet", gap=0.002)))
    assert answer.measured_s == pytest.approx((6 + 4 - 1) * (F + B + 0.004) - 0.002 + 0.001)
    assert answer.replayed_s == pytest.approx((6 + 4 - 1) * (F + B) + 0.001)
    assert answer.slowdown == pytest.approx(1.0)


def test_a_collective_begins_when_its_last_rank_arrives(tmp_path: Path) -> None:
    """Two replicas of one stage: the fast one waits 30 ms in the reduction, which itself takes 5 ms."""
    rows = [(replica, 0, kind, 0, begin, end, step, mb) for step in range(2) for replica, slow in ((0, 0.0), (1, 0.03))
            for kind, begin, end, mb in (("forward-compute", 0.0, F, 0), ("backward-compute", F, F + B + slow, 0),
                                         ("grads-reduce-scatter", F + B + slow, F + B + 0.035, -1))]  # fmt: skip
    answer = replay(read_operations(_write(tmp_path / "p.parquet", rows, 1)))
    assert answer.replayed_s == pytest.approx(F + B + 0.035)
    assert answer.ideal_s == pytest.approx(F + B + 0.015 + 0.005)
    assert next(iter(answer.by_rank)) == "1"


@pytest.mark.parametrize("recorded", ["all", "real"])
def test_model_chunks_follow_each_other_through_the_stages(tmp_path: Path, recorded: str) -> None:
    """Four chunks on two stages, two micro-batches one after the other; the third chunk takes 30 ms longer.

    A profiler records transfers to and from nobody at the ends of the model, or only real ones.
    """
    rows, clock = [], 0.0
    for direction, chunks in (("forward", (0, 1, 2, 3)), ("backward", (3, 2, 1, 0))):
        for batch in (0, 1):
            for chunk in chunks:
                end = clock + F + (0.03 if chunk == 2 else 0.0)
                given = (chunk % 2, f"{direction}-compute", chunk, clock, end, batch, chunk)
                rows.append(given)
                first, last = chunk == chunks[0], chunk == chunks[-1]
                rows += (
                    [(chunk % 2, f"{direction}-recv", 0, clock, clock, -1, -1)]
                    if recorded == "all" or not first
                    else []
                )
                rows += [(chunk % 2, f"{direction}-send", 0, end, end, -1, -1)] if recorded == "all" or not last else []
                clock = end
    table = {name: [row[place] for row in rows] for place, name in enumerate(
        ("stage", "optype", "seq_id", "start_ts", "end", "mb_id", "gmc"))}  # fmt: skip
    table["duration"] = [end - start for start, end in zip(table["start_ts"], table.pop("end"), strict=True)]
    constant = {"dp_rank": 0, "step": 0}
    full = {**table, **{name: [value] * len(rows) for name, value in constant.items()}, "rank": table["stage"]}
    pq.write_table(pa.table(full), tmp_path / "p.parquet")
    answer = replay(read_operations(tmp_path / "p.parquet"))
    assert answer.measured_s == pytest.approx(16 * F + 4 * 0.03)
    assert answer.replayed_s == pytest.approx(_chunked(F, 0.03))
    assert answer.ideal_s == pytest.approx(_chunked(F + 0.03 / 4, 0.0))
    assert next(iter(answer.by_stage)) == "0"


def _chunked(seconds: float, more: float) -> float:
    """Two stages with chunks 0 and 2, 1 and 3: each in its recorded order, each chunk after the one before it."""
    done: dict[tuple[str, int, int], float] = {}
    free = [0.0, 0.0]
    for direction, chunks in (("forward", (0, 1, 2, 3)), ("backward", (3, 2, 1, 0))):
        for batch in (0, 1):
            for place, chunk in enumerate(chunks):
                before = done.get((direction, batch, chunks[place - 1]), 0.0) if place else 0.0
                free[chunk % 2] = max(free[chunk % 2], before) + seconds + (more if chunk == 2 else 0.0)
                done[direction, batch, chunk] = free[chunk % 2]
    return max(free)


def test_operations_that_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    """Two stages that each receive from the other before they send."""
    rows = []
    for stage, sends, receives in ((0, "forward", "backward"), (1, "backward", "forward")):
        kinds = (f"{receives}-recv", f"{receives}-compute", f"{sends}-compute", f"{sends}-send")
        rows += [(0, stage, kind, 0, 0.1 * at, 0.1 * at + 0.1, 0, at % 3 - 1) for at, kind in enumerate(kinds)]
    operations = read_operations(_write(tmp_path / "p.parquet", rows, 2))
    with pytest.raises(InputError, match="in a circle"):
        replay(operations)


def test_a_pair_recorded_as_one_operation_is_two(tmp_path: Path) -> None:
    rows = [(0, 0, "forward-send-backward-recv", 0, 0.0, 0.1, 0, -1), (0, 0, "forward-compute", 0, 0.0, 0.1, 0, 0)]
    found = read_operations(_write(tmp_path / "p.parquet", rows, 1))
    assert sorted(found.kind.tolist()) == ["backward-recv", "forward-compute", "forward-send"]
    assert isinstance(found, Operations)
