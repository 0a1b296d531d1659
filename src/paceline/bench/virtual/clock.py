"""The clock of an emulated device, and the record of how well the host kept up with it.

Work is queued on the device's own clock, as on an accelerator: a host that is late (waking up, running hooks, copying
gradients that a device would copy itself) does not delay the device as long as it catches up within the step.
Standard library only, because it runs inside measured processes; Python 3.9 syntax.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import math
import os
import random
import time
from typing import Any

__all__ = ["DeviceClock", "HostLag", "exact_timers", "real_time"]

WAKE_S = 30e-6
"""Wake-up time of a thread on an idle core; not lateness, because streams continue meanwhile."""
_TIMER_SLACK = 29
PRIORITY = 10
"""Real-time priority of measured processes; that of probes of links is the same (`chrt -r 10`)."""


class DeviceClock:
    """The time line of one emulated device, in real seconds (already dilated)."""

    def __init__(
        self, emulation: dict[str, Any], *, dilation: float = 1.0, seed: int = 0, forgiven: float = math.inf
    ) -> None:
        """`forgiven`: maximum lag in seconds with which the host may still catch up; beyond it, the device waits."""
        self._emulation, self._dilation, self._forgiven = emulation, dilation, forgiven
        self._draw = random.Random(seed)
        self._free_at = 0.0
        self._factor = 1.0
        self._behind = 0.0
        self.late_s = 0.0
        """Real seconds by which the host finished its compute later than the device, over all steps."""
        least = emulation.get("least_tail")
        self._least_tail = None if least is None else least * dilation
        self.beyond_s = 0.0
        """Real seconds from the end of compute to the end of the exchange, minus the minimum of the links."""

    def begin_step(self) -> None:
        """Start a step and draw its jitter."""
        self.late_s += self._behind
        self._behind = 0.0
        self._free_at = time.perf_counter()
        jitter, straggle = self._emulation.get("jitter", 0.0), self._emulation.get("straggle", 0.0)
        self._factor = max(0.05, self._draw.gauss(1.0, jitter)) if jitter else 1.0
        if straggle and self._draw.random() < straggle:
            self._factor *= self._emulation["straggle_factor"]

    def run(self, seconds: float) -> None:
        """Occupy the device for some emulated seconds and wait until they have passed."""
        now = time.perf_counter()
        self._free_at = max(self._free_at, now - self._forgiven) + seconds * self._factor * self._dilation
        rest = self._free_at - now
        self._behind = max(0.0, -rest)
        if rest > 0:
            time.sleep(rest)

    def end_compute(self) -> None:
        """End the compute of a step and record the lateness of the host."""
        now = time.perf_counter()
        self.late_s += self._behind
        self._behind = 0.0
        if self._least_tail is not None:
            self.beyond_s += max(0.0, now - self._free_at - self._least_tail)
        self._free_at = max(self._free_at, now)

    @property
    def bounds_exchange(self) -> bool:
        """Whether the minimum time between compute and end of a step is known."""
        return self._least_tail is not None

    def waited_for_data(self) -> None:
        """Advance the clock to now after a wait for peers, which is not lateness of the host."""
        self._free_at = max(self._free_at, time.perf_counter())
        self._behind = 0.0


class HostLag:
    """Records whether the machine kept up with the emulation during an interval."""

    def __init__(self, clock: DeviceClock) -> None:
        self._clock = clock
        self._begin = self._sample()

    def _sample(self) -> tuple[float, float, float, dict[str, tuple[float, int]]]:
        return time.perf_counter(), self._clock.late_s, self._clock.beyond_s, _queued()

    def report(self) -> dict[str, float]:
        """Shares of the elapsed time: host late, most delayed thread waiting, exchange beyond its minimum."""
        (begin, late_before, beyond_before, before), (end, late, beyond, after) = self._begin, self._sample()
        seconds = end - begin
        waits = [0.0]
        for thread, (waited, turns) in after.items():
            waited_before, turns_before = before.get(thread, (0.0, 0))
            waits.append(waited - waited_before - WAKE_S * (turns - turns_before))
        shares = {"late_share": (late - late_before) / seconds, "queued_share": max(waits) / seconds}
        return {**shares, "beyond_share": (beyond - beyond_before) / seconds} if self._clock.bounds_exchange else shares


def exact_timers() -> None:
    """Set the timer slack of this process to its minimum, so that sleeps are not longer than requested."""
    ctypes.CDLL(None).prctl(_TIMER_SLACK, 1, 0, 0, 0)


def real_time() -> bool:
    """Set real-time priority and exact timers; without them wake-ups are late by a scheduler tick."""
    exact_timers()
    with contextlib.suppress(PermissionError, OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
        return True
    return False


def _queued() -> dict[str, tuple[float, int]]:
    """For each communication thread: seconds in the run queue, and number of times that it was scheduled."""
    waits = {}
    main = f"/proc/self/task/{os.getpid()}/schedstat"  # its lateness is measured on the device clock
    for path in set(glob.glob("/proc/self/task/*/schedstat")) - {main}:
        with contextlib.suppress(OSError, IndexError), open(path, encoding="ascii") as file:
            _, waited, turns = file.read().split()
            waits[path] = (int(waited) / 1e9, int(turns))
    return waits
