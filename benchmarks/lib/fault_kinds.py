"""What each kind of fault does to a job, and what one of them cost."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lib.fault_jobs import Failed, Job, RoundsJob, SyncerJob, VirtualJob, delayed
from paceline.bench.virtual.layout import lay_out
from paceline.bench.virtual.links.delay import start_delays, stop_delays


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


def kill(job: Job, generator: random.Random) -> Cost:
    """SIGKILL, then back again."""
    (victim,) = _chosen(job, generator, 1)
    at = time.monotonic()
    job.processes[victim].kill()
    return _after_kill(job, generator, [victim], at)


def aggregation(job: Job, generator: random.Random) -> Cost:
    """SIGKILL in the middle of an all-reduce."""
    (victim,) = _chosen(job, generator, 1)
    job.order(f"die-in-all_reduce-{victim}").touch()
    job.processes[victim].wait(30)
    at = float(job.order(f"died-{victim}").read_text())
    return _after_kill(job, generator, [victim], at)


def recovery(job: Job, generator: random.Random) -> Cost:
    """A second SIGKILL while the group forms anew, and a third while the state is handed to one that comes back."""
    first, second = _chosen(job, generator, 2)
    job.processes[first].kill()
    time.sleep(generator.uniform(0.0, 0.25))
    at = time.monotonic()
    job.processes[second].kill()
    detect, go_on = _noticed_and_went_on(job, at, [first, second], size=1, known=True)
    for victim in (first, second):
        job.processes[victim].wait()
    if generator.random() < 0.5:
        job.order(f"die-in-broadcast-{first}").touch()
        job.start(first, late=True)
        job.processes[first].wait(30)
    for victim in (first, second):
        job.start(victim, late=True)
    return Cost(detect, go_on, _back(job, [first, second]), (first, second))


def last(job: Job, generator: random.Random) -> Cost:
    """SIGKILL of all but one."""
    victims = _chosen(job, generator, job.size - 1)
    at = time.monotonic()
    for victim in victims:
        job.processes[victim].kill()
    return _after_kill(job, generator, victims, at)


def hang(job: Job, generator: random.Random) -> Cost:
    """SIGSTOP until the others go on without it."""
    (victim,) = _chosen(job, generator, 1)
    at = time.monotonic()
    job.processes[victim].send_signal(signal.SIGSTOP)
    detect, go_on = _noticed_and_went_on(job, at, [victim], size=job.size - 1)
    time.sleep(generator.uniform(0.1, 0.4))
    back = time.monotonic()
    job.processes[victim].send_signal(signal.SIGCONT)
    return Cost(detect, go_on, _full(job, back) - back, (victim,))


def slow(job: Job, generator: random.Random) -> Cost:
    """A slow device still beats: nobody may be left behind."""
    (victim,) = _chosen(job, generator, 1)
    at = time.monotonic()
    with _while_there(job, f"slow-{victim}"):
        time.sleep(generator.uniform(0.5, 1.5))
    _undisturbed(job, at, "a slow device")
    return Cost(go_on=_longest_gap(job, at))


def late(job: Job, generator: random.Random) -> Cost:
    """One more than ever, then one less."""
    time.sleep(generator.uniform(0.1, 0.5))
    if "3" not in job.names:
        job.names.append("3")
    begun = job.start("3", late=True)
    full = job.until(lambda record: record["size"] == job.size + 1, since=begun)["at"]
    back = full - job.joined("3")
    time.sleep(generator.uniform(0.1, 0.4))
    at = time.monotonic()
    job.processes["3"].kill()
    detect, go_on = _noticed_and_went_on(job, at, ["3"], size=job.size)
    job.processes.pop("3").wait()
    return Cost(detect, go_on, back, ("3",))


def stranger(job: Job, generator: random.Random) -> Cost:
    """Callers without the secret are turned away and the steps go on."""
    host, _, port = job.meet.rpartition(":")
    time.sleep(generator.uniform(0.05, 0.3))
    before, at = job.log("0").count("refused a connection from"), time.monotonic()
    noise = generator.randbytes(64)
    wrong = b'{"kind":"response","nonce":"00","proof":"00"}'
    with socket.create_connection((host, int(port)), timeout=5):
        for said in (struct.pack(">I", len(wrong)) + wrong, b"\xff" * 4 + noise, struct.pack(">I", 2**31 - 1)):
            _knock((host, int(port)), said)
        time.sleep(0.2)
        _undisturbed(job, at, "a stranger")
    refused = job.log("0").count("refused a connection from") - before
    if refused < 3:
        raise Failed(f"3 strangers, {refused} in the log")
    return Cost(go_on=_longest_gap(job, at))


def delay(job: Job, generator: random.Random) -> Cost:
    """Late packets are not lost ones: nobody may be left behind."""
    assert isinstance(job, VirtualJob)
    time.sleep(generator.uniform(0.1, 0.5))
    at = time.monotonic()
    slower = lay_out(delayed(job), instance=job.up.home.name)
    processes = job.up.processes
    start_delays(slower, keeper=processes.keeper, hosts=processes.hosts, floor_s=0.0)
    time.sleep(generator.uniform(1.0, 2.0))
    stop_delays(keeper=processes.keeper, hosts=processes.hosts)
    _undisturbed(job, at, "a delayed link")
    return Cost(go_on=_longest_gap(job, at))


def cut(job: Job, generator: random.Random) -> Cost:
    """A host that nothing reaches any more, until the others went on without it."""
    assert isinstance(job, VirtualJob)
    (victim,) = _chosen(job, generator, 1)
    at = time.monotonic()
    job.link(victim, up=False)
    detect, go_on = _noticed_and_went_on(job, at, [victim], size=job.size - 1)
    time.sleep(generator.uniform(0.1, 1.0))
    back = time.monotonic()
    job.link(victim, up=True)
    return Cost(detect, go_on, _full(job, back) - back, (victim,))


def syncer(job: Job, generator: random.Random) -> Cost:
    """A shard that is killed comes back with all it ever acknowledged."""
    assert isinstance(job, SyncerJob)
    time.sleep(generator.uniform(0.1, 0.6))
    index = generator.randrange(len(job.ports))
    known = max(job.newest(name)[0]["versions"][index] for name in job.names)
    at = time.monotonic()
    job.processes[f"shard-{index}"].kill()
    job.processes[f"shard-{index}"].wait()
    time.sleep(generator.uniform(0.0, 0.2))
    job.start_shard(index)
    found = [
        job.until(lambda record: record["versions"][index] > known + 1, since=at, only=[name]) for name in job.names
    ]
    return Cost(back=max(record["at"] for record in found) - at)


def group(job: Job, generator: random.Random) -> Cost:
    """A whole group dies or hangs: the other one waits for it no longer than it must, and it comes back."""
    assert isinstance(job, RoundsJob)
    time.sleep(generator.uniform(0.1, 0.6))
    victim, survivor = generator.sample(job.names, 2)
    dies = generator.random() < 0.5
    known = job.newest(survivor)[0]["lease"][0]
    at, wall = time.monotonic(), time.time()
    job.processes[victim].send_signal(signal.SIGKILL if dies else signal.SIGSTOP)
    # The exchange that was under way may have had all it needed, the one after cannot.
    step = job.until(lambda record: record["lease"][0] > known + 1, since=at, only=[survivor])
    lost = job.lost(victim, wall)
    if lost is None:
        raise Failed(f"a round of two went on with one of them\n{job.log('shard-0')[-2000:]}")
    detect = lost - wall
    time.sleep(generator.uniform(0.1, 0.4))
    back, old = time.monotonic(), job.newest(victim)[0]["lease"]
    if dies:
        job.processes[victim].wait()
        job.start(victim)
    else:
        job.processes[victim].send_signal(signal.SIGCONT)
    first = job.until(lambda record: record["lease"] != old, since=back, only=[victim])["at"]
    begun = job.joined(victim) if dies else back
    return Cost(detect, step["at"] - at - detect, first - begun, (victim,))


KINDS: dict[str, Callable[[Any, random.Random], Cost]] = {
    made.__name__: made
    for made in (kill, aggregation, recovery, last, hang, slow, late, stranger, delay, cut, syncer, group)
}


def _chosen(job: Job, generator: random.Random, count: int) -> list[str]:
    """Some ranks, after a random while; the leader as often as any."""
    time.sleep(generator.uniform(0.3, 0.8))
    return generator.sample([name for name in job.names[: job.size] if name not in job.spared], count)


def _after_kill(job: Job, generator: random.Random, victims: list[str], at: float) -> Cost:
    detect, go_on = _noticed_and_went_on(job, at, victims, size=job.size - len(victims))
    time.sleep(generator.uniform(0.1, 0.4))
    for victim in victims:
        job.processes[victim].wait()
        job.start(victim, late=True)
    return Cost(detect, go_on, _back(job, victims), tuple(victims))


def _noticed_and_went_on(
    job: Job, at: float, victims: list[str], *, size: int, known: bool = False
) -> tuple[float, float]:
    """`known`: the view may have been over already when this fault came, so that there was nothing to notice."""
    step = job.until(lambda record: record["size"] == size, since=at, without=victims)
    noticed = job.noticed(at, victims)
    if noticed is None and not known:
        raise Failed("a smaller group stepped without knowing why")
    noticed = at if noticed is None else noticed
    return noticed - at, step["at"] - noticed


def _full(job: Job, since: float) -> float:
    """When all step together again, by each one's own record."""
    names = job.names[: job.size]
    return max(job.until(lambda record: record["size"] == job.size, since=since, only=[name])["at"] for name in names)


def _back(job: Job, victims: list[str]) -> float:
    """From the last call of `join` to the first step with all; starting Python is not counted."""
    begun = time.monotonic()
    full = _full(job, begun)
    return full - max(job.joined(victim) for victim in victims)


def _undisturbed(job: Job, since: float, why: str) -> None:
    """Everybody commits another step, and no view ended meanwhile."""
    now = time.monotonic()
    _full(job, now)
    noticed = job.noticed(since)
    if noticed is not None:
        logs = "\n".join(job.log(name)[-1500:] for name in job.names)
        raise Failed(f"{why} ended a view\n{logs}")


def _longest_gap(job: Job, since: float) -> float:
    """Seconds between two steps, whoever wrote them: a rank that has no share of a step writes nothing."""
    first: dict[int, float] = {}
    for name in job.names:
        for record in job.steps(name):
            first[record["step"]] = min(record["at"], first.get(record["step"], record["at"]))
    moments = sorted(first.values())
    return max(after - before for before, after in pairwise(moments) if after > since)


@contextlib.contextmanager
def _while_there(job: Job, name: str) -> Any:
    job.order(name).touch()
    try:
        yield
    finally:
        job.order(name).unlink()


def _knock(place: tuple[str, int], said: bytes) -> None:
    with contextlib.suppress(ConnectionError), socket.create_connection(place, timeout=5) as door:
        door.sendall(said)
        door.shutdown(socket.SHUT_WR)
        while door.recv(1000):
            pass
