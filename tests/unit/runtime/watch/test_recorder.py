"""The record of a watched process, on a clock that is set by hand, and what records of ranks make together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.errors import InputError
from paceline.measurements.results import campaign_results
from paceline.measurements.store import Store
from paceline.measurements.trace.observed import record as store_observed
from paceline.runtime.watch import recorder as recorders
from paceline.runtime.watch.job import name_of_command, observe, read_records, steps_of
from paceline.runtime.watch.recorder import Recorder, guarded, place_of_process


class Clock:
    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(recorders, "time", SimpleNamespace(perf_counter=made, time=lambda: 1000.0 + made.at))
    return made


@pytest.fixture
def recorder(clock: Clock, tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder(str(tmp_path))
    made.now = clock
    made._flushed = 100.0  # nothing is written by itself
    made.boundary()
    yield made
    made.close()


def run(recorder: Recorder, clock: Clock, *events: tuple[float, str]) -> None:
    """`+phase` begins, `-phase` ends, at this time."""
    for at, event in events:
        clock.at = at
        (recorder.begin if event[0] == "+" else recorder.end)(event[1:])


def test_a_phase_inside_another_takes_its_seconds_from_it_and_the_loss_is_forward(
    recorder: Recorder, clock: Clock
) -> None:
    run(recorder, clock, (0, "+io"), (1, "-io"), (1, "+forward"), (3, "-forward"), (4, "+backward"))
    run(recorder, clock, (6, "+aggregate"), (7, "-aggregate"), (9, "-backward"), (9, "+update"))
    clock.at = 11.0
    recorder.end("update", moved=0.5, to="aggregate")
    clock.at = 12.0
    recorder.boundary()
    # Step, start, seconds; io, h2d, forward with the loss, backward without the exchange, exchange, update.
    assert recorder.rows == [[1, 0.0, 12.0, 1.0, 0.0, 3.0, 4.0, 1.5, 1.5]]


def test_a_closure_of_the_optimiser_has_its_passes_inside_the_update(recorder: Recorder, clock: Clock) -> None:
    run(recorder, clock, (0, "+update"), (0, "+forward"), (2, "-forward"), (3, "+backward"), (5, "-backward"))
    run(recorder, clock, (6, "-update"))
    recorder.boundary()
    assert recorder.rows[0][3:] == [0.0, 0.0, 3.0, 2.0, 0.0, 1.0]


def test_what_an_exception_left_open_does_not_count_and_an_end_alone_is_nothing(
    recorder: Recorder, clock: Clock
) -> None:
    run(recorder, clock, (0, "-io"), (1, "+forward"), (2, "+io"), (4, "-forward"), (5, "+update"))
    clock.at = 6.0
    recorder.end("update", moved=9.0, to="aggregate")
    recorder.boundary()
    # No more than the update took can have been another's.
    assert recorder.rows[0][3:] == [0.0, 0.0, 3.0, 0.0, 1.0, 0.0]
    recorder.boundary()
    assert recorder.rows[1][1:] == [6.0, 0.0, *[0.0] * 6]


def test_traced_steps_have_no_row_and_a_sample_has_its_share_of_the_others(tmp_path: Path, clock: Clock) -> None:
    recorder = Recorder(str(tmp_path), every=4)
    recorder.now = clock
    for _ in range(2001):
        recorder.boundary()
    watched = [row[0] for row in recorder.rows]
    assert watched[:5] == [1, 2, 3, 5, 7]
    assert all(step * 2654435761 % 2**32 < 2**30 for step in watched[5:])
    assert 490 < len(watched) < 510
    assert recorder.step == 2001
    recorder.close()


def test_what_was_recorded_is_written_once_with_the_usual_batch(
    recorder: Recorder, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for samples in (8, 8, 3):
        recorder.samples = samples
        clock.at += 0.5
        recorder.boundary()
    recorder.traced([{"step": 2}])
    recorder.flush()
    recorder.samples = 8
    clock.at += 2.1
    recorder.boundary()  # more than two seconds later: written by itself
    (record,) = read_records(tmp_path)
    assert [row[:3] for row in record["rows"]] == [[1, 0.0, 0.5], [2, 0.5, 0.5], [3, 1.0, 0.5]]
    assert (record["rank"], record["world"], record["batch"], record["steps"], record["spans"]) == (
        1, 2, 8, 5, [{"step": 2}],
    )  # fmt: skip
    assert (record["wall"], record["elapsed"]) == (1000.0, pytest.approx(3.6))


def test_collections_count_once_training_began_and_long_ones_have_their_step(
    recorder: Recorder, clock: Clock, tmp_path: Path
) -> None:
    clock.at = 1.0
    for seconds in (0.0005, 0.002, 0.004):
        recorder._collected("start", {})
        clock.at += seconds
        recorder._collected("stop", {})
    recorder.flush()
    (record,) = read_records(tmp_path)
    assert (record["gc_s"], record["gc_count"]) == (pytest.approx(0.0065), 3)
    assert record["collected"] == [[1, pytest.approx(0.006)]]


def test_an_error_ends_the_recording_and_not_the_training(recorder: Recorder) -> None:
    class Owner:
        def __init__(self) -> None:
            self.recorder, self.calls = recorder, 0

        @guarded
        def hook(self, fails: bool) -> int:
            self.calls += 1
            if fails:
                raise KeyError("x")
            return 7

    owner = Owner()
    assert (owner.hook(False), owner.hook(True), owner.hook(False), owner.calls) == (7, None, None, 2)
    assert (recorder.alive, recorder.watching, recorder.error) == (False, False, "KeyError: 'x'")


def record(rank: int, steps: int = 12, **more: Any) -> dict[str, Any]:
    rows = [[step, float(step), 2.0, 0.5, 0.0, 0.5, 0.5, 0.25, 0.25] for step in range(steps)]
    facts = {"rank": rank, "world": 2, "wall": 100.0 + rank, "batch": 8, "every": 1, "steps": steps, "host": f"h{rank}",
             "gc_s": 1.0 + rank, "gc_count": 2, "elapsed": 20.0, "peak_bytes": 5,
             "parameters": 9, "served": True}  # fmt: skip
    return {**facts, "rows": rows, "spans": [], "collected": [[3, 0.1 * (rank + 1)]], **more}


def test_the_records_of_ranks_are_one_training_on_one_clock() -> None:
    found = observe("x", [record(0), record(1, collected=[[3, 0.1], [4, 0.3]])])
    first, *_, last = found.steps
    assert (found.ranks, found.batch, found.warmup, len(found.steps)) == (2, 8, 9, 24)
    assert (first.rank, first.step, first.start_s, last.rank, last.start_s) == (0, 0, 0.0, 1, 12.0)
    facts = found.facts
    assert (facts["gc_share"], facts["gc_count"], facts["hosts"]) == (pytest.approx(3 / 40), 4, ["h0", "h1"])
    assert facts["gc_steps"] == [(3, 0.1), (4, 0.3)]
    assert facts["served"] is True
    assert observe("x", [record(0), record(1, parameters=8)]).facts["served"] is False
    assert observe("x", [record(0, every=3, error="E: e", compiled=True), record(1)]).labels == (
        "torch.compile: whole graphs, no layers", "one of 3 steps watched", "the recording ended early: E: e",
    )  # fmt: skip


def test_phases_longer_than_their_step_are_scaled_to_it() -> None:
    long = [[10, 1.0, 2.0, 2.0, 0.0, 1.0, 1.0, 0.0, 0.0], [11, 3.0, 2.0, 0.5, 0.0, 0.5, 0.0, 0.0, 0.0]]
    one, other = steps_of({"rank": 1, "rows": long}, 0.5)
    assert (one.start_s, one.phases["io"], one.phases["backward"]) == (1.5, 1.0, 0.5)
    assert (other.seconds, other.phases["io"], other.phases["forward"]) == (2.0, 0.5, 0.5)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([], "no training step was seen"), ([record(1)], "rank 0 of 2 left no record"),
        ([record(0), record(1, steps=9)], "12 steps are too few: the first 9"),
    ],
)  # fmt: skip
def test_too_little_is_refused(records: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        observe("x", records)


def test_the_training_with_most_steps_counts_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    # The second attempt has two processes of rank 0, of which the longer counts; together its ranks have most steps.
    told = [(0, 0, 10), (1, 0, 3), (1, 0, 7), (1, 1, 6)]
    for number, (attempt, rank, steps) in enumerate(told):
        facts = {"event": "facts", "rank": rank, "world": 2, "attempt": attempt, "steps": steps}
        lines = [{"event": "rows", "rows": [[steps]]}, facts]
        text = "".join(json.dumps(line) + "\n" for line in lines) + '{"event": "rows", "ro'
        (tmp_path / f"process-{number}.jsonl").write_text(text)
    (tmp_path / "process-9.jsonl").write_text('{"event": "rows", "rows": []}\n')
    found = read_records(tmp_path)
    assert [(one["rank"], one["steps"], one["rows"], one["others"]) for one in found] == [
        (0, 7, [[7]], 2), (1, 6, [[6]], 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["torchrun", "--nproc", "2", "a/my train.py", "--x"], "my-train"), (["./-run.sh"], "run"), (["--"], "watched"),
        (["x" * 90], "x" * 80),
    ],
)  # fmt: skip
def test_the_name_of_a_command(command: list[str], name: str) -> None:
    assert name_of_command(command) == name


def test_a_batch_that_no_tensor_told_is_noted() -> None:
    """As with models that take no tensor, or trainings of JAX: a comparison must not count samples of such a run."""
    found = observe("x", [record(0, batch=0), record(1, batch=0)])
    assert found.batch == 1
    assert found.labels == (
        "the batch is not known: no tensor was given to the model; one sample for each rank and step",
    )


@pytest.mark.parametrize(
    ("device", "name", "share"),
    [("NVIDIA A100-SXM4-40GB", "a100-40gb", 8 * 6e12 / 624e12), ("Some GPU 9000", "Some GPU 9000", None)],
)
def test_ranks_on_gpus_are_known_by_their_device_and_their_share_of_its_peak(
    tmp_path: Path, device: str, name: str, share: float | None
) -> None:
    """Two hosts; a step of 2 s on 8 texts of each rank, whose layers multiply 1e12 times for a text."""
    work = [["fc", {"kind": "linear", "macs": 1e12, "moved": 1.0}]]
    told = {"device_name": device, "work": work, "unit": "tokens", "units_per_sample": 1024, "precision": "bfloat16"}
    found = observe("x", [record(0, **told), record(1, **told)])
    store = Store(tmp_path)
    (result,) = campaign_results(store, store_observed(found, store))
    hosts = result.run.case["cluster"]["hosts"]
    assert [[one["name"] for one in host["devices"]] for host in hosts] == [[name], [name]]
    assert result.usage is not None
    assert (result.usage.unit, result.usage.per_s) == ("tokens", pytest.approx(8 * 1024))
    assert result.usage.mfu == (None if share is None else pytest.approx(share))
    assert observe("x", [record(0), record(1)]).cluster is None


def test_a_process_of_paceline_train_knows_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "PACELINE_RANK", "PACELINE_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert place_of_process() == (0, 1)
    monkeypatch.setenv("PACELINE_RANK", "1")
    monkeypatch.setenv("PACELINE_SIZE", "4")
    assert place_of_process() == (1, 4)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert place_of_process() == (0, 2)


def test_samples_of_ranks_with_unequal_shares_are_counted_as_they_are() -> None:
    assert observe("x", [record(0, batch=5), record(1, batch=27)]).batch == 16
