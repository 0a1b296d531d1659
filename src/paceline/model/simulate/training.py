"""Training as events: synchronous steps, asynchronous workers with servers, jobs that share a link, failures.

An event queue, a server that serves in order, and a link that flows share fairly; ties run in order, so that a seed
decides everything. Where a closed form exists the simulation equals it: one synchronous step is the recurrence of
`cost`, equal asynchronous workers reach min(workers / (compute + exchange), 1 / service) updates per second.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError

__all__ = [
    "AsyncResult",
    "AsyncRun",
    "FairLink",
    "FifoServer",
    "Job",
    "Simulation",
    "SyncRun",
    "simulate_async",
    "simulate_jobs",
    "simulate_sync",
]

Floats = NDArray[np.float64]


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


@dataclass(frozen=True)
class AsyncRun:
    """Workers that push gradients to one queue of servers and continue with the returned parameters."""

    compute: Floats
    """Seconds of one iteration of each worker."""
    exchange: float
    """Seconds from a worker to the servers and back, both together."""
    service: float
    """Seconds that the servers are busy with one worker's gradients."""
    iterations: int
    jitter: float = 0.0
    straggle: float = 0.0
    """Probability that a worker's iteration is slowed."""
    straggle_factor: float = 10.0
    join_at: Floats | None = None
    """When each worker starts; elastic membership."""
    leave_at: Floats | None = None
    """When each worker fails or leaves; its current step is lost."""


@dataclass(frozen=True)
class AsyncResult:
    """The result of an asynchronous run."""

    seconds: float
    updates: int
    staleness: float
    """Mean number of updates by others between a worker's pull and its push."""
    server_busy: float
    """Share of the time in which the servers were busy."""
    num_events: int

    @property
    def updates_per_s(self) -> float:
        """Updates of the model per second."""
        return self.updates / self.seconds if self.seconds else 0.0


def simulate_async(run: AsyncRun, *, seed: int = 0) -> AsyncResult:
    """Every worker does its iterations; one event per push."""
    if not len(run.compute) or run.iterations < 1:
        raise InputError("an asynchronous run needs at least one worker and one iteration")
    rng, shape = np.random.default_rng(seed), (len(run.compute), run.iterations)
    drawn = run.compute[:, None] * np.maximum(1 + run.jitter * rng.standard_normal(shape), 0.05)
    if run.straggle > 0:
        drawn = np.where(rng.random(shape) < run.straggle, run.straggle_factor, 1.0) * drawn
    times = drawn.tolist()
    leave = run.leave_at.tolist() if run.leave_at is not None else [float("inf")] * len(run.compute)
    simulation, server = Simulation(), FifoServer()
    done = [0] * len(run.compute)
    pulled = [0] * len(run.compute)
    count = stale = 0
    half = run.exchange / 2

    def push(worker: int) -> None:
        nonlocal count, stale
        finished = server.serve(simulation.now, run.service)
        stale += count - pulled[worker]
        count += 1
        pulled[worker] = count
        done[worker] += 1
        if done[worker] < run.iterations:
            plan(worker, finished + half)

    def plan(worker: int, start: float) -> None:
        arrival = start + times[worker][done[worker]] + half
        if arrival <= leave[worker]:
            simulation.at(arrival, push, worker)

    starts = run.join_at if run.join_at is not None else np.zeros(len(run.compute))
    for worker, start in enumerate(starts.tolist()):
        plan(worker, start)
    simulation.run()
    seconds = server.free_at + half
    return AsyncResult(seconds, count, stale / max(count, 1), server.busy / seconds, simulation.num_events)


@dataclass(frozen=True)
class SyncRun:
    """Synchronous steps with stragglers and failures."""

    compute: Floats
    """Seconds of one step of each device."""
    aggregate: float
    steps: int
    jitter: float = 0.0
    straggle: float = 0.0
    """Probability that a device's step is slowed."""
    straggle_factor: float = 10.0
    failures_per_s: float = 0.0
    """Rate at which a device fails."""
    restart: float = 0.0
    """Seconds from a failure until training continues."""
    checkpoint_every: int = 1
    """Steps between checkpoints; a failure repeats what came after the last."""


def simulate_sync(run: SyncRun, *, seed: int = 0) -> Floats:
    """When each step was finished for good."""
    rng = np.random.default_rng(seed)
    simulation = Simulation()
    devices = len(run.compute)
    ends = np.zeros(run.steps)
    state = {"step": 0}

    def duration() -> float:
        slow = np.where(rng.random(devices) < run.straggle, run.straggle_factor, 1.0)
        times = run.compute * np.maximum(1 + run.jitter * rng.standard_normal(devices), 0.05) * slow
        return float(times.max()) + run.aggregate

    def begin(_: object) -> None:
        seconds = duration()
        fails = rng.exponential(1 / (run.failures_per_s * devices)) if run.failures_per_s > 0 else float("inf")
        if fails < seconds:
            state["step"] -= state["step"] % run.checkpoint_every
            simulation.at(simulation.now + fails + run.restart, begin)
        else:
            simulation.at(simulation.now + seconds, finish)

    def finish(_: object) -> None:
        ends[state["step"]] = simulation.now
        state["step"] += 1
        if state["step"] < run.steps:
            begin(None)

    simulation.at(0.0, begin)
    simulation.run()
    return ends


@dataclass(frozen=True)
class Job:
    """A training job that computes, then sends its gradients over a shared link, again and again."""

    compute: float
    size_bytes: float
    iterations: int
    start: float = 0.0
    """When it begins."""


def simulate_jobs(jobs: Sequence[Job], bandwidth: float) -> Floats:
    """When each job ends; its flows get an equal share of the link with all others that are active."""
    simulation = Simulation()
    link = FairLink(simulation, bandwidth)
    ends = np.zeros(len(jobs))
    left = [job.iterations for job in jobs]

    def compute(index: int) -> None:
        simulation.at(simulation.now + jobs[index].compute, send, index)

    def send(index: int) -> None:
        link.send(jobs[index].size_bytes, sent, index)

    def sent(index: int) -> None:
        left[index] -= 1
        ends[index] = simulation.now
        if left[index] > 0:
            compute(index)

    for index, job in enumerate(jobs):
        simulation.at(job.start, compute, index)
    simulation.run()
    return ends
