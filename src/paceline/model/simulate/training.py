"""Training as events: synchronous steps, asynchronous workers with servers, jobs that share a link, failures.

Where a closed form exists the simulation equals it: one synchronous step is the recurrence of `iteration`, equal
asynchronous workers reach min(workers / (compute + exchange), 1 / service) updates per second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.model.simulate.events import FairLink, FifoServer, Simulation

__all__ = [
    "AsyncResult", "AsyncRun", "Job", "SyncRun", "simulate_async", "simulate_jobs", "simulate_step", "simulate_sync",
]  # fmt: skip

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class AsyncRun:
    """Workers that push gradients to one queue of servers and go on with what they get back."""

    compute: Floats
    """Seconds of one iteration of each worker."""
    exchange: float
    """Seconds on the way to the servers and back, both together."""
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
    """When each worker fails or leaves; what it computes then is lost."""


@dataclass(frozen=True)
class AsyncResult:
    """What came out of an asynchronous run."""

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


def simulate_step(ready: Floats, exchange: Floats) -> float:
    """End of the last exchange of one synchronous step: ready (devices, buckets), exchange seconds per bucket."""
    simulation, link = Simulation(), FifoServer()
    waiting = [ready.shape[0]] * ready.shape[1]
    state = {"next": 0, "end": 0.0}

    def arrived(bucket: int) -> None:
        waiting[bucket] -= 1
        while state["next"] < len(waiting) and waiting[int(state["next"])] == 0:
            state["end"] = link.serve(simulation.now, float(exchange[int(state["next"])]))
            state["next"] += 1

    for device in ready.tolist():
        for bucket, time in enumerate(device):
            simulation.at(time, arrived, bucket)
    simulation.run()
    return float(state["end"])


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
    """Seconds from a failure to going on."""
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
