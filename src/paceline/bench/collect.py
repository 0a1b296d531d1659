"""Conversion of the ranks' events to a run: steps, spans, and a failure if a rank did not finish."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.bench.frameworks.harness import MISMATCH_EXIT, OUT_OF_MEMORY_EXIT
from paceline.bench.sites.site import Process
from paceline.bench.virtual.dilation import Faithfulness, judge
from paceline.measurements.failures import LogExplanation, exit_description, explain_log, signal_of
from paceline.measurements.run import Failure, FailurePhase, FailureReason, Span, Step

__all__ = ["Ending", "RankReport", "explain_failure", "faithfulness_of", "read_report", "unfaithful"]

TAIL_BYTES = 4000
LOST_PEER = re.compile(r"closed (the connection|by peer)|reset by peer|broken pipe|EOFError", re.IGNORECASE)
"""Errors of a rank whose peer failed before it."""
LOG_BYTES = 1 << 20
"""How much of the end of a log is searched for what explains a death."""


@dataclass
class RankReport:
    """The events of one rank, possibly incomplete."""

    rank: int
    phase: FailurePhase = "launch"
    done: bool = False
    error: str = ""
    error_at: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    warmup: dict[str, int] = field(default_factory=dict)
    timers: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True)
class Ending:
    """How a launch ended: exit codes by process before any was stopped, and the first failures."""

    codes: dict[str, int | None]
    first_failed: tuple[str, ...] = ()
    """Processes that had failed when the first failure was detected."""
    timed_out: bool = False
    oom_killed: bool = False


def read_report(path: Path, rank: int, *, dilation: float = 1.0) -> RankReport:
    """The events of a rank, without an incomplete last line."""
    report = RankReport(rank)
    for event in _events(path):
        if event["event"] in _READERS:
            _READERS[event["event"]](report, event, dilation)
    return report


def _events(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(event, dict) and "event" in event:
            yield event


def _read_phase(report: RankReport, event: dict[str, Any], dilation: float) -> None:
    report.phase = event["phase"]


def _read_facts(report: RankReport, event: dict[str, Any], dilation: float) -> None:
    report.versions.update(event.get("versions", {}))
    report.labels = (*report.labels, *event.get("labels", ()))
    report.timers.update({name: value / dilation for name, value in event.get("timers", {}).items()})
    report.facts.update(event.get("facts", {}))


def _read_pass(report: RankReport, event: dict[str, Any], dilation: float) -> None:
    name, dropped = event["name"], event["warmup"]
    report.warmup[name] = dropped
    for warmup, rows in ((True, event.get("warmup_rows", [])), (False, event["rows"])):
        report.steps += [
            Step(name, report.rank, index, warmup, start / dilation, seconds / dilation)
            for index, (start, seconds) in enumerate(rows)
        ]


def _read_spans(report: RankReport, event: dict[str, Any], dilation: float) -> None:
    report.spans += [
        Span(
            rank=report.rank,
            step=span["step"],
            phase=span["phase"],
            name=span["name"],
            start_s=span["start_s"] / dilation,
            seconds=span["seconds"] / dilation,
            size_bytes=span.get("size_bytes"),
        )
        for span in event["spans"]
    ]


def _read_error(report: RankReport, event: dict[str, Any], dilation: float) -> None:
    report.error = f"{event['kind']}: {event['message']}"
    report.error_at = event["at"]


def _read_done(report: RankReport, event: dict[str, Any], dilation: float) -> None:
    report.done = True


_READERS = {
    "phase": _read_phase,
    "facts": _read_facts,
    "pass": _read_pass,
    "spans": _read_spans,
    "error": _read_error,
    "done": _read_done,
}


def explain_failure(processes: list[Process], reports: list[RankReport], ending: Ending) -> Failure | None:
    """Why the launch has no result; None if every rank finished."""
    codes = [ending.codes.get(process.name) for process in processes if process.rank is not None]
    if all(report.done for report in reports) and not any(codes) and not ending.timed_out:
        return None
    process = _culprit(processes, reports, ending)
    report = reports[process.rank] if process.rank is not None else reports[0]
    code = ending.codes.get(process.name)
    said = explain_log(tail(process.log, LOG_BYTES))
    reason = _reason(1 if code is None and report.error else code, ending, said)
    return Failure(
        phase=report.phase,
        reason=reason,
        message=_message(reason, process.name, report, code, said, last=_last_line(process.log)),
        rank=process.rank,
        exit_code=code,
        log_tail=tail(process.log),
    )


def faithfulness_of(reports: list[RankReport], *, dilation: float) -> Faithfulness | None:
    """The accuracy of the emulation; None without emulated devices."""
    facts = [report.facts["keeping_up"] for report in reports if "keeping_up" in report.facts]
    return judge(facts, dilation=dilation) if facts else None


def unfaithful(reports: list[RankReport], *, dilation: float) -> Failure | None:
    """A failure if the machine was too slow to emulate the devices."""
    faithfulness = faithfulness_of(reports, dilation=dilation)
    if faithfulness is None or faithfulness.holds:
        return None
    message = f"the machine could not keep up: off by up to {100 * faithfulness.error:.1f} % ({faithfulness})"
    return Failure(phase="measure", reason="unsustained", message=message)


def _culprit(processes: list[Process], reports: list[RankReport], ending: Ending) -> Process:
    """The process that failed first; without one, a process that did not finish.

    If several failed between two polls, a killed process comes first, then the earliest error, because the others often
    fail only for lack of a peer. If the earliest error is a lost peer, a rank with another error comes first.
    """
    failed = [process for process in processes if process.name in ending.first_failed]
    if failed:
        first = min(failed, key=lambda process: _blame(process, reports, ending))
        errors = {p.name: reports[p.rank].error for p in processes if p.rank is not None}
        own = [p for p in processes if errors.get(p.name) and not LOST_PEER.search(errors[p.name])]
        return own[0] if own and LOST_PEER.search(errors.get(first.name, "")) else first
    unfinished = [p for p in processes if p.rank is not None and not reports[p.rank].done]
    return (unfinished or processes)[0]


def _blame(process: Process, reports: list[RankReport], ending: Ending) -> tuple[bool, float]:
    error_at = reports[process.rank].error_at if process.rank is not None else 0.0
    return (ending.codes[process.name] or 0) > 0, error_at


def _reason(code: int | None, ending: Ending, said: LogExplanation | None) -> FailureReason:
    killed = signal_of(code) == "SIGKILL"
    if code == OUT_OF_MEMORY_EXIT or (killed and ending.oom_killed) or (code and said and said.out_of_memory):
        return "out_of_memory"
    if ending.timed_out:
        return "timeout"
    if code == MISMATCH_EXIT:
        return "mismatch"
    return exit_description(code) or ("crash" if code else "no_output")


def _last_line(log: Path) -> str:
    """The last line of a log, which often says why a program exits, as an addition to a message."""
    lines = [line.strip() for line in tail(log).splitlines() if line.strip()]
    return f"; its last line: {lines[-1][:200]}" if lines else ""


def _message(
    reason: FailureReason, name: str, report: RankReport, code: int | None, said: LogExplanation | None, *, last: str
) -> str:
    """One line: the process, the reason from its report or log, and how it ended."""
    ended = signal_of(code)
    by_kernel = ended == "SIGKILL" and reason == "out_of_memory"
    words = {
        "timeout": f"{name} was still in {report.phase} when the time ran out",
        "killed": f"{name} was ended by {ended} in {report.phase}",
        "crash": f"{name} was ended by {ended} in {report.phase}" if ended else f"{name}: exit code {code}",
        "no_output": f"{name} ended without saying so",
        "out_of_memory": f"{name} ran out of memory in {report.phase}{', killed by the kernel' if by_kernel else ''}",
    }
    why = report.error.splitlines()[0][:300] if report.error else said.line if said and code else ""
    if reason in ("crash", "mismatch") and not ended:
        return f"{name}: {why}" if why else f"{words['crash']}{last}"
    return f"{words[reason]}: {why}" if why else words[reason]


def tail(path: Path, most: int = TAIL_BYTES) -> str:
    """The end of a log."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - most))
        return file.read(most).decode("utf-8", errors="replace")
