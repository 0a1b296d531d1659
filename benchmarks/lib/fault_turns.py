"""What one turn of the fault benchmark consists of, whatever the fault: whom it meets, what is waited for, its cost."""

from __future__ import annotations

import contextlib
import random
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lib.fault_jobs import SILENCE, Failed, Job

STARVED = SILENCE / 3
"""Seconds by which a thread wakes up late on a machine that has no time for it."""
RECENT = 3.0
"""Seconds before a fault in which its view may have ended for another reason."""


@dataclass(frozen=True)
class Cost:
    """Seconds, None where there is no such part, and who suffered."""

    detect: float | None = None
    """From the fault to the first moment at which a survivor knows of it."""
    go_on: float | None = None
    """From then to the next step that survivors commit, or the longest gap between steps if nobody is left behind."""
    back: float | None = None
    """From the call of `join`, or the mended cause, to the first step with everybody."""
    victims: tuple[str, ...] = ()
    lag: float = 0.0
    """Seconds by which threads of other ranks woke up late meanwhile; from `STARVED` on, times say nothing."""
    usual: float = 0.0
    """Seconds from one step to the next, usually."""


def chosen(job: Job, generator: random.Random, count: int) -> list[str]:
    """Some ranks, after a random while; the leader as often as any."""
    time.sleep(generator.uniform(0.3, 0.8) / job.haste)
    return generator.sample([name for name in job.names[: job.size] if name not in job.spared], count)


def after_kill(job: Job, generator: random.Random, victims: list[str], at: float) -> Cost:
    """The survivors go on, and whoever was killed comes back."""
    detect, go_on = noticed_and_went_on(job, at, victims, size=job.size - len(victims))
    time.sleep(generator.uniform(0.1, 0.4) / job.haste)
    for victim in victims:
        job.processes[victim].wait()
        job.start(victim, late=True)
    return Cost(detect, go_on, back_after(job, victims), tuple(victims))


def noticed_and_went_on(
    job: Job, at: float, victims: list[str], *, size: int, known: bool = False
) -> tuple[float, float]:
    """`known`: the view may have been over already when this fault came, so that there was nothing to notice.

    On a busy machine it may be so by itself: a rank was silent for a second just before.
    """
    step = job.until(lambda record: record["size"] == size, since=at, without=victims)
    noticed = job.noticed(at, victims)
    if noticed is None and not known and job.noticed(at - RECENT, victims) is None:
        raise Failed("a smaller group stepped without knowing why")
    noticed = at if noticed is None else noticed
    return noticed - at, step["at"] - noticed


def all_step(job: Job, since: float) -> float:
    """When all step together again, by each one's own record."""
    names = job.names[: job.size]
    return max(job.until(lambda record: record["size"] == job.size, since=since, only=[name])["at"] for name in names)


def back_after(job: Job, victims: list[str]) -> float:
    """From the last call of `join` to the first step with all; starting Python is not counted."""
    begun = time.monotonic()
    return all_step(job, begun) - max(job.joined(victim) for victim in victims)


def undisturbed(job: Job, since: float, why: str) -> None:
    """Everybody commits another step, and no view ended meanwhile."""
    now = time.monotonic()
    all_step(job, now)
    noticed = job.noticed(since)
    if noticed is not None and lag_of(job, since) < STARVED:
        logs = "\n".join(job.log(name)[-1500:] for name in job.names)
        raise Failed(f"{why} ended a view\n{logs}")


def lag_of(job: Job, since: float, victims: Sequence[str] = ()) -> float:
    """How late threads of the ranks woke up since a moment, at worst; those of who was stopped do not count."""
    names = [name for name in job.names if name not in victims]
    return max((record["lag"] for name in names for record in job.steps(name) if record["at"] > since), default=0.0)


def longest_gap(job: Job, since: float) -> float:
    """Seconds between two steps, whoever wrote them."""
    moments = _moments(job)
    return max(after - before for before, after in pairwise(moments) if after > since)


def usual_gap(job: Job) -> float:
    """The same, as it is mostly."""
    return statistics.median([after - before for before, after in pairwise(_moments(job))] or [0.0])


def _moments(job: Job) -> list[float]:
    """When each step was first written."""
    first: dict[int, float] = {}
    for name in job.names:
        for record in job.steps(name):
            first[record["step"]] = min(record["at"], first.get(record["step"], record["at"]))
    return sorted(first.values())


@contextlib.contextmanager
def while_there(job: Job, name: str) -> Any:
    """An order that stands for a while."""
    job.order(name).touch()
    try:
        yield
    finally:
        job.order(name).unlink()


def knock(place: tuple[str, int], said: bytes) -> None:
    """Say something without the secret, and wait to be turned away."""
    with contextlib.suppress(ConnectionError), socket.create_connection(place, timeout=5) as door:
        door.sendall(said)
        door.shutdown(socket.SHUT_WR)
        while door.recv(1000):
            pass
