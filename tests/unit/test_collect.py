"""A stored failure says why: the line of the log that explains, and how the process ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.bench import collect
from paceline.bench.collect import Ending, RankReport, explain_failure, read_report, tail
from paceline.bench.frameworks.harness import OUT_OF_MEMORY_EXIT
from paceline.bench.sites.site import Process
from paceline.bench.virtual.dilation import Faithfulness
from paceline.measurements.run import Failure, Span, Step
from tests.unit.test_failures import CAFFE, CHAINED


def failure_of(
    folder: Path, log: str, code: int | None, *, oom: bool = False, error: str = "", timed_out: bool = False
) -> Failure:
    (folder / "log").write_text(log)
    process = Process(name="rank 0", host=0, argv=(), env={}, rank=0, log=folder / "log")
    report = RankReport(0, phase="setup", error=error)
    first = () if timed_out else ("rank 0",)
    found = explain_failure([process], [report], Ending({"rank 0": code}, first, timed_out=timed_out, oom_killed=oom))
    assert found is not None
    return found


CHECK = "concat_layer.cpp:42: Check failed: top_shape[j] == bottom[i]->shape(j) (16 vs. 17)"


@pytest.mark.parametrize("code", [134, -6])
def test_a_failed_check_is_in_the_message(tmp_path: Path, code: int) -> None:
    failure = failure_of(tmp_path, CAFFE + "more output\n" * 10_000, code)
    assert failure.reason == "crash"
    assert failure.message.startswith(f"rank 0 was ended by SIGABRT in setup: {CHECK}")
    assert "\n" not in failure.message


@pytest.mark.parametrize(("code", "oom", "reason", "message"), [
    (-9, False, "killed", "rank 0 was ended by SIGKILL in setup"),
    (137, False, "killed", "rank 0 was ended by SIGKILL in setup"),
    (137, True, "out_of_memory", "rank 0 ran out of memory in setup, killed by the kernel"),
    (-9, True, "out_of_memory", "rank 0 ran out of memory in setup, killed by the kernel"),
    (-11, True, "crash", "rank 0 was ended by SIGSEGV in setup"),
    (-15, False, "killed", "rank 0 was ended by SIGTERM in setup"),
    (OUT_OF_MEMORY_EXIT, False, "out_of_memory", "rank 0 ran out of memory in setup"),
    (3, False, "crash", "rank 0: exit code 3; its last line: step 1"),
    (0, False, "no_output", "rank 0 ended without saying so"),
])  # fmt: skip
def test_ends_without_a_line_have_words_too(tmp_path: Path, code: int, oom: bool, reason: str, message: str) -> None:
    failure = failure_of(tmp_path, "step 1\n", code, oom=oom)
    assert (failure.reason, failure.message) == (reason, message)


def test_a_traceback_is_in_the_message(tmp_path: Path) -> None:
    failure = failure_of(tmp_path, CHAINED, 1)
    assert failure.reason == "crash"
    assert failure.message.startswith("rank 0: RuntimeError: cannot read the batch (after ValueError:")


def test_what_the_rank_itself_reported_comes_first(tmp_path: Path) -> None:
    assert failure_of(tmp_path, CHAINED, 1, error="KeyError: 'x'\nmore").message == "rank 0: KeyError: 'x'"


def test_memory_that_the_framework_ran_out_of_is_called_so(tmp_path: Path) -> None:
    log = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
    failure = failure_of(tmp_path, log, -6)
    assert failure.reason == "out_of_memory"
    assert "std::bad_alloc" in failure.message
    assert failure_of(tmp_path, log, 0).reason == "no_output"


def test_an_old_traceback_does_not_explain_a_process_that_ended_well(tmp_path: Path) -> None:
    assert failure_of(tmp_path, CHAINED, 0).message == "rank 0 ended without saying so"


def test_a_timeout_is_no_crash(tmp_path: Path) -> None:
    failure = failure_of(tmp_path, "step 1\n", None, timed_out=True)
    assert (failure.reason, failure.message) == ("timeout", "rank 0 was still in setup when the time ran out")


def events_of(folder: Path, *lines: object) -> Path:
    path = folder / "events.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_events_become_a_report_with_every_time_divided_by_the_dilation(tmp_path: Path) -> None:
    path = events_of(
        tmp_path,
        {"event": "phase", "phase": "measure"},
        {"event": "facts", "versions": {"torch": "2"}, "labels": ["one"], "timers": {"update": 0.4}},
        {"event": "facts", "labels": ["two"], "facts": {"loss": 1.5}},
        {"event": "pass", "name": "clean", "warmup": 1, "warmup_rows": [[0.0, 8.0]], "rows": [[8.0, 2.0], [10.0, 4.0]]},
        {"event": "spans", "spans": [{"step": 1, "phase": "forward", "name": "conv", "start_s": 6.0, "seconds": 1.0}]},
        "{not json",
        '["event"]',
        {"event": "of a later version"},
        {"event": "done"},
    )
    report = read_report(path, 3, dilation=2.0)
    assert (report.rank, report.phase, report.done, report.error) == (3, "measure", True, "")
    assert (report.versions, report.labels, report.facts) == ({"torch": "2"}, ("one", "two"), {"loss": 1.5})
    assert (report.timers, report.warmup) == ({"update": 0.2}, {"clean": 1})
    assert report.steps == [
        Step("clean", 3, 0, True, 0.0, 4.0),
        Step("clean", 3, 0, False, 4.0, 1.0),
        Step("clean", 3, 1, False, 5.0, 2.0),
    ]
    assert report.spans == [Span(3, 1, "forward", "conv", 3.0, 0.5)]


def test_a_rank_that_wrote_nothing_or_an_error_says_so(tmp_path: Path) -> None:
    assert read_report(tmp_path / "missing", 0) == RankReport(0)
    error = {"event": "error", "kind": "KeyError", "message": "'x'", "at": 12.5}
    found = read_report(events_of(tmp_path, {"event": "phase", "phase": "setup"}, error), 1)
    assert (found.error, found.error_at, found.phase, found.done) == ("KeyError: 'x'", 12.5, "setup", False)


def processes(folder: Path, count: int) -> list[Process]:
    return [Process(f"rank {rank}", 0, (), {}, folder / f"log{rank}", rank) for rank in range(count)]


def test_a_launch_succeeds_only_if_every_rank_is_done_and_ended_well_in_time(tmp_path: Path) -> None:
    ranks, good = processes(tmp_path, 2), [RankReport(0, done=True), RankReport(1, done=True)]
    ended = {"rank 0": 0, "rank 1": 0}
    assert explain_failure(ranks, good, Ending(ended)) is None
    helper = Process("server 0", 0, (), {}, tmp_path / "log")
    assert explain_failure([*ranks, helper], good, Ending({**ended, "server 0": -15})) is None
    late = explain_failure(ranks, good, Ending(ended, timed_out=True))
    silent = explain_failure(ranks, [good[0], RankReport(1, phase="measure")], Ending(ended))
    broken = explain_failure(ranks, good, Ending({**ended, "rank 1": 1}, ("rank 1",)))
    assert (late and late.reason, silent and silent.reason, broken and broken.reason) == (
        "timeout", "no_output", "crash",
    )  # fmt: skip
    assert (silent and (silent.rank, silent.phase), broken and broken.rank) == ((1, "measure"), 1)


def test_the_rank_that_was_killed_is_named_then_the_one_with_the_earliest_error(tmp_path: Path) -> None:
    ranks = processes(tmp_path, 3)
    reports = [RankReport(0, error="a", error_at=3.0), RankReport(1, error="b", error_at=2.0), RankReport(2)]
    both = Ending({"rank 0": 1, "rank 1": 1, "rank 2": None}, ("rank 0", "rank 1"))
    killed = Ending({"rank 0": -9, "rank 1": 1, "rank 2": None}, ("rank 0", "rank 1"))
    found = [explain_failure(ranks, reports, ending) for ending in (both, killed)]
    assert [failure and (failure.rank, failure.reason) for failure in found] == [(1, "crash"), (0, "killed")]


def test_a_rank_that_lost_its_peer_is_not_blamed(tmp_path: Path) -> None:
    ranks, lost = processes(tmp_path, 2), "PeerClosed: the peer closed the connection"
    reports = [RankReport(0, error=lost, error_at=1.0), RankReport(1, error="RuntimeError: planted", error_at=2.0)]
    ending = Ending({"rank 0": 1, "rank 1": None}, ("rank 0",))
    found = explain_failure(ranks, reports, ending)
    assert found is not None
    assert (found.rank, found.reason, found.message) == (1, "crash", "rank 1: RuntimeError: planted")
    reports[1].error = "ConnectionResetError: [Errno 104] Connection reset by peer"
    other = explain_failure(ranks, reports, ending)
    assert other is not None
    assert other.rank == 0


def test_the_end_of_a_log_is_kept(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"first\n" + b"x" * 100 + b"\xfflast")
    assert tail(tmp_path / "log", 6) == "x\ufffdlast"
    assert tail(tmp_path / "log", 1000).startswith("first")
    assert tail(tmp_path / "none") == ""


def test_an_emulation_that_the_machine_could_not_keep_up_with_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def judged(found: object, *, dilation: float) -> Faithfulness:
        asked.append((found, dilation))
        return Faithfulness(late_share=0.3, queued_share=0.1, dilation=dilation)

    monkeypatch.setattr(collect, "judge", judged)
    emulated = [RankReport(0, facts={"keeping_up": "a"}), RankReport(1)]
    failure = collect.unfaithful(emulated, dilation=4.0)
    assert failure is not None
    assert (failure.phase, failure.reason, "off by up to 40.0 %" in failure.message) == ("measure", "unsustained", True)
    assert asked == [(["a"], 4.0)]
    monkeypatch.setattr(collect, "judge", lambda found, *, dilation: Faithfulness(0.0, 0.0, dilation))
    assert collect.unfaithful(emulated, dilation=4.0) is None
    assert collect.unfaithful([RankReport(0)], dilation=1.0) is None
