"""The record of one process: exclusive seconds of each phase of each step, appended to a file.

An error here ends the recording, never the training. Python 3.9 and the standard library only.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.util import Finalize, register_after_fork
from typing import Any, TypeVar

from paceline import variables

__all__ = ["TRACED_STEPS", "Recorder", "guarded", "place_of_process"]

ORDER = ("io", "h2d", "forward", "backward", "aggregate", "update")
"""The columns of a row after step, start and seconds."""
TRACED_STEPS = (4, 6, 8)
"""Steps that are traced layer by layer; they take longer, so they have no row."""
FLUSH_S = (0.1, 2.0)
"""Bounds of the seconds between two writes, which are a tenth of the time so far; a kill may lose this much."""
PAUSE_S = 0.001
"""Garbage collections longer than this many seconds are recorded with their step."""
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
HASH = 2654435761
"""Knuth's multiplicative hash: the choice of sampled steps is irregular, and equal on all ranks."""

F = TypeVar("F", bound=Callable[..., Any])


def guarded(method: F) -> F:
    """Wrap a hook: an error in it is recorded and ends the recording, and the training continues."""

    @functools.wraps(method)
    def safe(self: Any, *given: Any, **named: Any) -> Any:
        if self.recorder.alive:
            try:
                return method(self, *given, **named)
            except Exception as error:  # noqa: BLE001
                self.recorder.give_up(error)
        return None

    return safe  # type: ignore[return-value]


def place_of_process() -> tuple[int, int]:
    """Rank and number of ranks, from the variables of torchrun or of `paceline train`."""
    names = (("RANK", variables.RANK), ("WORLD_SIZE", variables.SIZE))
    rank, world = (next((value for name in pair if (value := os.environ.get(name))), "") for pair in names)
    return int(rank or 0), int(world or 1)


def _resident() -> int:
    """Largest resident memory of this process so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Recorder:
    """Times the phases of this process's steps. The seconds of a nested phase do not count for the outer phase."""

    def __init__(self, folder: str, every: int = 1) -> None:
        self.folder, self.every = folder, max(1, every)
        self.alive, self.error = True, ""
        self.now: Callable[[], float] = time.perf_counter
        """The clock; on an accelerator it waits for the device."""
        self.peak_bytes: Callable[[], int] = _resident
        """Largest memory of this process so far; on an accelerator, of the device."""
        self.step = 0
        """Number of the present step from 0, which is the number of updates so far."""
        self.watching = True
        """Whether the present step is watched."""
        self.owner: Any = None
        """The hooks that end the steps, if a process has several frameworks."""
        self.samples = self.backwards = 0
        """Samples of the present step, and backward passes of all steps."""
        self.rows: list[list[float]] = []
        """Rows that are not written yet: step, start, seconds, and the phases in order."""
        self.spans: list[dict[str, Any]] = []
        self.work: list[tuple[str, dict[str, Any]]] = []
        """Work of each layer for a sample, once it was counted and until it is written."""
        self.facts: dict[str, Any] = {"gc_s": 0.0, "gc_count": 0}
        self._batches: list[int] = []
        self._thread = threading.get_ident()
        self._open: list[list[Any]] = []
        self._seconds = dict.fromkeys(ORDER, 0.0)
        self._after = ("", 0.0, 0)
        self._begin: float | None = None
        self._origin = 0.0
        self._wall = 0.0
        self._flushed = time.perf_counter()
        self._collecting = 0.0
        self._pauses: dict[int, float] = {}
        gc.callbacks.append(self._collected)
        register_after_fork(self, Recorder._forked)

    def _forked(self) -> None:
        """Start a new record in a forked process, and close it at exit: Python runs no exit handlers there."""
        self.rows, self.spans, self.work, self._pauses = [], [], [], {}
        self._begin, self.step, self.backwards = None, 0, 0
        Finalize(self, self.close, exitpriority=0)

    @property
    def inside(self) -> str:
        """The innermost open phase; empty without one."""
        return str(self._open[-1][0]) if self._open else ""

    def begin(self, phase: str) -> None:
        """Begin a phase."""
        if self.watching and threading.get_ident() == self._thread:
            now = self.now()
            if phase == "backward" and self._after[0] == "forward" and self._after[2] == len(self._open):
                self._seconds["forward"] += now - self._after[1]  # the loss
                if self._open:
                    self._open[-1][2] += now - self._after[1]
            self._open.append([phase, now, 0.0])

    def end(self, phase: str, moved: float = 0.0, to: str = "") -> None:
        """End the innermost phase; `moved` seconds of it count for the phase `to`."""
        if not self.watching or threading.get_ident() != self._thread:
            return
        if not any(found[0] == phase for found in self._open):
            return
        while self._open[-1][0] != phase:
            self._open.pop()  # left open by an exception
        _, since, inner = self._open.pop()
        now = self.now()
        spent = now - since
        if self._open:
            self._open[-1][2] += spent
        moved = min(moved, max(0.0, spent - inner))
        self._seconds[phase] += max(0.0, spent - inner - moved)
        if to:
            self._seconds[to] += moved
        self._after = (phase, now, len(self._open))

    def boundary(self, counts: bool = True) -> None:
        """End the step after an update; the step may be one that does not count."""
        now = self.now() if self.watching else time.perf_counter()
        if self._begin is None:
            self._origin, self._wall, self._thread = now, time.time(), threading.get_ident()
        elif counts and self.watching and self.step not in TRACED_STEPS:
            phases = [self._seconds[name] for name in ORDER]
            self.rows.append([self.step, self._begin - self._origin, now - self._begin, *phases])
            self._batches = [*self._batches[-99:], self.samples]
        self._open.clear()
        self._seconds = dict.fromkeys(ORDER, 0.0)
        self._after, self.samples = ("", 0.0, 0), 0
        self.step += 1
        self.watching = self._sampled(self.step)
        if now - self._flushed > min(max(FLUSH_S[0], (now - self._origin) / 10), FLUSH_S[1]):
            self.flush()
        self._begin = self.now() if self.watching else time.perf_counter()

    def _sampled(self, step: int) -> bool:
        return step <= TRACED_STEPS[-1] or step * HASH % 2**32 < 2**32 / self.every

    def traced(self, spans: list[dict[str, Any]]) -> None:
        """Add the spans of a traced step."""
        self.spans += spans

    def _document(self) -> dict[str, Any]:
        """Everything but rows and spans."""
        known, (rank, world) = sorted(count for count in self._batches if count), place_of_process()
        return {
            "event": "facts", "rank": rank, "world": world,
            "host": socket.gethostname(), "wall": self._wall, "elapsed": time.perf_counter() - self._origin,
            "batch": known[len(known) // 2] if known else 0, "every": self.every, "steps": self.step,
            "error": self.error, "backwards": self.backwards, "attempt": int(os.environ.get(RESTARTS) or 0),
            "peak_bytes": self.peak_bytes(), **self.facts,
        }  # fmt: skip

    def flush(self, **more: Any) -> None:
        """Append new rows and spans to the file of this process."""
        self._flushed = time.perf_counter()
        if self._begin is None and not (more and self.backwards):
            return
        new = {"rows": self.rows, "spans": self.spans, "work": self.work, "collected": list(self._pauses.items())}
        events = [{"event": name, name: found} for name, found in new.items()]
        with open(os.path.join(self.folder, f"process-{os.getpid()}.jsonl"), "a", encoding="utf-8") as file:
            file.write("".join(json.dumps(event) + "\n" for event in (*events, {**self._document(), **more})))
        self.rows, self.spans, self.work, self._pauses = [], [], [], {}

    def close(self) -> None:
        """Write the final record of the process."""
        try:
            if self._collected in gc.callbacks:
                gc.callbacks.remove(self._collected)
                self.flush(ended=True)
            self.alive = self.watching = False
        except Exception as error:  # noqa: BLE001
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Stop recording after an error."""
        self.alive = self.watching = False
        self.error = f"{type(error).__name__}: {error}"

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._collecting = time.perf_counter()
        elif self._begin is not None and self._collecting:
            seconds = time.perf_counter() - self._collecting
            self.facts["gc_s"] += seconds
            self.facts["gc_count"] += 1
            if seconds > PAUSE_S:
                self._pauses[self.step] = self._pauses.get(self.step, 0.0) + seconds
