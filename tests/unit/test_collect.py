"""A stored failure says why: the line of the log that explains, and how the process ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.bench.collect import Ending, RankReport, explain_failure
from paceline.bench.frameworks.harness import OUT_OF_MEMORY_EXIT
from paceline.bench.sites.site import Process
from paceline.measurements.run import Failure
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
    (3, False, "crash", "rank 0: exit code 3"),
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


def test_an_old_traceback_does_not_explain_a_process_that_ended_well(tmp_path: Path) -> None:
    assert failure_of(tmp_path, CHAINED, 0).message == "rank 0 ended without saying so"


def test_a_timeout_is_no_crash(tmp_path: Path) -> None:
    failure = failure_of(tmp_path, "step 1\n", None, timed_out=True)
    assert (failure.reason, failure.message) == ("timeout", "rank 0 was still in setup when the time ran out")
