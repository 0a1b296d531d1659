"""A pretend device: compute is time that passes on its clock, and a record of how well the host kept up with it.

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

__all__ = ["DeviceClock", "KeepingUp", "exact_timers", "real_time"]

WAKE_S = 30e-6
"""What it takes to wake a thread on an idle core; no lateness, because streams go on meanwhile."""
_TIMER_SLACK = 29


class DeviceClock:
    """The time line of one emulated device, in real seconds (already dilated)."""

    def __init__(
        self, emulation: dict[str, Any], *, dilation: float = 1.0, seed: int = 0, forgiven: float = math.inf
    ) -> None:
        """`forgiven`: the most seconds that the host may be behind and still catch up; beyond, the device waits."""
        self._emulation, self._dilation, self._forgiven = emulation, dilation, forgiven
        self._draw = random.Random(seed)
        self._free_at = 0.0
        self._factor = 1.0
        self._behind = 0.0
        self.late_s = 0.0
        """Real seconds by which the host came to the end of its compute later than the device, over all steps."""
        least = emulation.get("least_tail")
        self._least_tail = None if least is None else least * dilation
        self.beyond_s = 0.0
        """Real seconds from the end of compute to the end of the exchange beyond the least that the links allow."""

    def begin_step(self) -> None:
        """A step starts now; its luck is drawn."""
        self.late_s += self._behind
        self._behind = 0.0
        self._free_at = time.perf_counter()
        jitter, straggle = self._emulation.get("jitter", 0.0), self._emulation.get("straggle", 0.0)
        self._factor = max(0.05, self._draw.gauss(1.0, jitter)) if jitter else 1.0
        if straggle and self._draw.random() < straggle:
            self._factor *= self._emulation["straggle_factor"]

    def run(self, seconds: float) -> None:
        """Occupy the device for some emulated seconds; returns when it is done with them."""
        now = time.perf_counter()
        self._free_at = max(self._free_at, now - self._forgiven) + seconds * self._factor * self._dilation
        rest = self._free_at - now
        self._behind = max(0.0, -rest)
        if rest > 0:
            time.sleep(rest)

    def end_compute(self) -> None:
        """Forward and backward are over; what the host is behind by now is lateness, what comes next starts now."""
        now = time.perf_counter()
        self.late_s += self._behind
        self._behind = 0.0
        if self._least_tail is not None:
            self.beyond_s += max(0.0, now - self._free_at - self._least_tail)
        self._free_at = max(self._free_at, now)

    @property
    def bounds_exchange(self) -> bool:
        """Whether it is known how soon after its compute a step could have ended."""
        return self._least_tail is not None

    def waited_for_data(self) -> None:
        """The device stood still for its peers until now, rightly: that is not the host's lateness."""
        self._free_at = max(self._free_at, time.perf_counter())
        self._behind = 0.0


class KeepingUp:
    """Whether the machine kept up with what it emulates, between two moments."""

    def __init__(self, clock: DeviceClock) -> None:
        self._clock = clock
        self._begin = self._sample()

    def _sample(self) -> tuple[float, float, float, dict[str, tuple[float, int]]]:
        return time.perf_counter(), self._clock.late_s, self._clock.beyond_s, _queued()

    def report(self) -> dict[str, float]:
        """Shares of the time since the beginning: host late, worst thread kept waiting, exchange beyond its least."""
        (begin, late_before, beyond_before, before), (end, late, beyond, after) = self._begin, self._sample()
        seconds = end - begin
        waits = [0.0]
        for thread, (waited, turns) in after.items():
            waited_before, turns_before = before.get(thread, (0.0, 0))
            waits.append(waited - waited_before - WAKE_S * (turns - turns_before))
        shares = {"late_share": (late - late_before) / seconds, "queued_share": max(waits) / seconds}
        return {**shares, "beyond_share": (beyond - beyond_before) / seconds} if self._clock.bounds_exchange else shares


def exact_timers() -> None:
    """Let this process sleep as long as it asks for, not longer by the usual slack of timers."""
    ctypes.CDLL(None).prctl(_TIMER_SLACK, 1, 0, 0, 0)


def real_time(priority: int = 10) -> bool:
    """Give this process real-time priority and exact timers; without it wake-ups stall by a scheduler tick."""
    exact_timers()
    with contextlib.suppress(PermissionError, OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(priority))
        return True
    return False


def _queued() -> dict[str, tuple[float, int]]:
    """For each thread that moves data: seconds it was ready to run and did not, and how often it got a turn."""
    waits = {}
    main = f"/proc/self/task/{os.getpid()}/schedstat"  # its lateness is measured on the device's clock
    for path in set(glob.glob("/proc/self/task/*/schedstat")) - {main}:
        with contextlib.suppress(OSError, IndexError), open(path, encoding="ascii") as file:
            _, waited, turns = file.read().split()
            waits[path] = (int(waited) / 1e9, int(turns))
    return waits
