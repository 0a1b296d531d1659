"""Reports on a watched command while it runs: a rank that becomes slow is reported at once, not only at the end."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

from paceline.explain.watched import FEWEST_STEPS, StepCause, judge_steps
from paceline.measurements.trace.observed import ObservedStep
from paceline.report.terminal.watched import alert_line
from paceline.runtime.watch.job import WARMUP, steps_of

__all__ = ["Alert", "LiveWatch"]

LOOK_S = 1.0
WINDOW = 240
"""The last steps of each rank that are judged."""
LAST, RISEN = 6, 1.03
"""The last steps are judged only if their work has risen by this factor."""
FEWEST_NEW = 4
"""Steps that must be new since the last look."""
SAME = 5
"""Maximum difference in steps between the onsets of two checks that count as the same onset."""


@dataclass(frozen=True)
class Alert:
    """A rank, or every rank, that became slow in mid-run."""

    rank: int | None
    host: str
    since: int
    """Step at which it began."""
    factor: float
    """Work of the rank since then over its work before."""
    phase: str
    """The phase with the largest loss."""
    at_step: int
    """Last step when it was reported."""


class LiveWatch:
    """Reads the records of a running command at intervals; an error here ends only the live reports."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._over = folder, threading.Event()
        self._read: dict[Path, int] = {}
        self._steps: dict[int, deque[ObservedStep]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._hosts: dict[int, str] = {}
        self._world, self._judged = 1, -1
        self._suspected: dict[int | None, int] = {}
        self.alerts: list[Alert] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> LiveWatch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    @property
    def documents(self) -> list[dict[str, Any]]:
        """The alerts as plain data."""
        return [asdict(alert) for alert in self.alerts]

    def _run(self) -> None:
        with contextlib.suppress(Exception):
            while not self._over.wait(LOOK_S):
                for alert in self.look():
                    sys.stderr.write(f"{alert_line(asdict(alert))}\n")
                    sys.stderr.flush()

    def look(self) -> list[Alert]:
        """Read new records; return the alerts on which two consecutive checks agree, one per rank."""
        for path in sorted(self._folder.glob("process-*.jsonl")):
            self._take(path)
        common = self._common()
        if len(self._steps) < self._world or len(common) < FEWEST_STEPS or common[-1] < self._judged + FEWEST_NEW:
            return []
        self._judged = common[-1]
        if not any(_rises(steps) for steps in self._steps.values()):
            self._suspected = {}
            return []
        judgement = judge_steps([step for steps in self._steps.values() for step in steps])
        became = [cause for cause in judgement.causes if cause.kind in ("slow_rank", "slowdown") and _lasts(cause)]
        new = [self._alert(cause) for cause in became if self._confirmed(cause)]
        self._suspected = {cause.rank: cause.since or 0 for cause in became}
        self.alerts += new
        return new

    def _common(self) -> list[int]:
        found = [{step.step for step in steps} for steps in self._steps.values()]
        return sorted(set.intersection(*found)) if found else []

    def _confirmed(self, cause: StepCause) -> bool:
        since, before = cause.since or 0, self._suspected.get(cause.rank)
        reported = any(alert.rank == cause.rank and abs(alert.since - since) <= WINDOW for alert in self.alerts)
        return not reported and before is not None and abs(before - since) <= SAME

    def _alert(self, cause: StepCause) -> Alert:
        since, ranks = cause.since or 0, [cause.rank] if cause.rank is not None else sorted(self._steps)
        work = [(step.step >= since, _work(step)) for rank in ranks for step in self._steps[rank]]
        later, before = (median(seconds for is_later, seconds in work if is_later == side) for side in (True, False))
        host = self._hosts.get(ranks[0], "") if cause.rank is not None else ""
        return Alert(cause.rank, host, since, later / max(before, 1e-9), cause.phase, self._judged)

    def _take(self, path: Path) -> None:
        """The whole lines that were appended to a record."""
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        rows: list[Any] = []
        for line in whole.splitlines():
            event = json.loads(line)
            if event["event"] == "rows":
                rows += event["rows"]
            elif "rank" in event:
                self._world, self._hosts[event["rank"]] = max(self._world, event["world"]), event["host"]
                steps = steps_of({"rank": event["rank"], "rows": rows}, 0.0)
                self._steps[event["rank"]].extend(step for step in steps if step.step >= WARMUP)
                rows = []


def _work(step: ObservedStep) -> float:
    return step.seconds - step.phases.get("aggregate", 0.0)


def _rises(steps: Sequence[ObservedStep]) -> bool:
    """Whether the work of the last steps is longer than before: a look that costs little, before a thorough one."""
    work = [_work(step) for step in steps]
    return len(work) > 2 * LAST and median(work[-LAST:]) > RISEN * median(work[:-LAST])


def _lasts(cause: StepCause) -> bool:
    """Whether it began in mid-run and still acts."""
    return cause.since is not None and cause.until is None
