"""The event queue, a server that serves in order, and a link that flows share fairly. Deterministic: ties in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from paceline.errors import InputError

__all__ = ["FairLink", "FifoServer", "Simulation"]


class Simulation:
    """Actions at times; equal times run in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_events = 0
        self._queue: list[tuple[float, int, Callable[..., None], Any]] = []
        self._planned = 0

    def at(self, time: float, action: Callable[..., None], argument: Any = None) -> None:
        """Call `action(argument)` at a time that is not past."""
        if time < self.now:
            raise ValueError(f"{time} is before {self.now}")
        heapq.heappush(self._queue, (time, self._planned, action, argument))
        self._planned += 1

    def run(self, *, until: float = float("inf"), most: int = 50_000_000) -> None:
        """Run until nothing is planned, or until a time; `most` events guard against a loop."""
        queue, pop = self._queue, heapq.heappop
        count = 0
        while queue and queue[0][0] <= until:
            self.now, _, action, argument = pop(queue)
            action(argument)
            count += 1
            if count > most:
                raise InputError(f"the simulation did not end within {most} events", hint="simulate fewer iterations")
        self.num_events += count


class FifoServer:
    """Serves one request after the other, in the order of arrival."""

    def __init__(self) -> None:
        self.free_at = 0.0
        self.busy = 0.0

    def serve(self, arrival: float, seconds: float) -> float:
        """When a request that arrives now is done; requests must come in the order of time."""
        start = arrival if arrival > self.free_at else self.free_at
        self.free_at = start + seconds
        self.busy += seconds
        return self.free_at


class FairLink:
    """A link whose active flows each get an equal share of its bandwidth (processor sharing, by virtual time)."""

    def __init__(self, simulation: Simulation, bandwidth: float) -> None:
        if not bandwidth > 0:
            raise InputError(f"a bandwidth of {bandwidth} moves nothing", hint="give bytes per second above 0")
        self.simulation = simulation
        self.bandwidth = bandwidth
        self._flows: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._virtual = 0.0
        self._updated = 0.0
        self._version = 0
        self._started = 0

    def send(self, size: float, done: Callable[[Any], None], argument: Any = None) -> None:
        """Start a flow now; `done(argument)` is called when its last byte has passed."""
        self._advance()
        heapq.heappush(self._flows, (self._virtual + size, self._started, done, argument))
        self._started += 1
        self._plan()

    def _advance(self) -> None:
        """Virtual time counts the bytes that each active flow has had since the link started."""
        if self._flows:
            self._virtual += (self.simulation.now - self._updated) * self.bandwidth / len(self._flows)
        self._updated = self.simulation.now

    def _plan(self) -> None:
        self._version += 1
        if self._flows:
            left = max(0.0, self._flows[0][0] - self._virtual) * len(self._flows) / self.bandwidth
            self.simulation.at(self.simulation.now + left, self._finish, self._version)

    def _finish(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        finish, _, done, argument = heapq.heappop(self._flows)
        self._virtual = max(self._virtual, finish)
        self._plan()
        done(argument)
