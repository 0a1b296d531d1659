"""What each kind of fault does to a job, and what one of them cost."""

from __future__ import annotations

import random
import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from lib.fault_attacks import ATTACKS
from lib.fault_groups import RoundsJob, SyncerJob
from lib.fault_jobs import DROPPED, RESET, Failed, Job, VirtualJob, delayed
from lib.fault_turns import (
    Cost,
    after_kill,
    all_step,
    back_after,
    chosen,
    knock,
    longest_gap,
    noticed_and_went_on,
    undisturbed,
    while_there,
)
from paceline.bench.virtual.layout import lay_out
from paceline.bench.virtual.shaping import start_delays, stop_delays


def kill(job: Job, generator: random.Random) -> Cost:
    """SIGKILL, then back again."""
    (victim,) = chosen(job, generator, 1)
    at = time.monotonic()
    job.processes[victim].kill()
    return after_kill(job, generator, [victim], at)


def aggregation(job: Job, generator: random.Random) -> Cost:
    """SIGKILL in the middle of an all-reduce."""
    (victim,) = chosen(job, generator, 1)
    job.order(f"die-in-all_reduce-{victim}").touch()
    job.processes[victim].wait(30)
    at = float(job.order(f"died-{victim}").read_text())
    return after_kill(job, generator, [victim], at)


def recovery(job: Job, generator: random.Random) -> Cost:
    """A second SIGKILL while the group forms anew, and a third while the state is handed to one that comes back."""
    first, second = chosen(job, generator, 2)
    job.processes[first].kill()
    time.sleep(generator.uniform(0.0, 0.25))
    at = time.monotonic()
    job.processes[second].kill()
    detect, go_on = noticed_and_went_on(job, at, [first, second], size=1, known=True)
    for victim in (first, second):
        job.processes[victim].wait()
    if generator.random() < 0.5:
        job.order(f"die-in-broadcast-{first}").touch()
        job.start(first, late=True)
        job.processes[first].wait(30)
    for victim in (first, second):
        job.start(victim, late=True)
    return Cost(detect, go_on, back_after(job, [first, second]), (first, second))


def last(job: Job, generator: random.Random) -> Cost:
    """SIGKILL of all but one."""
    victims = chosen(job, generator, job.size - 1)
    at = time.monotonic()
    for victim in victims:
        job.processes[victim].kill()
    return after_kill(job, generator, victims, at)


def hang(job: Job, generator: random.Random) -> Cost:
    """SIGSTOP until the others go on without it."""
    (victim,) = chosen(job, generator, 1)
    at = time.monotonic()
    job.processes[victim].send_signal(signal.SIGSTOP)
    detect, go_on = noticed_and_went_on(job, at, [victim], size=job.size - 1)
    time.sleep(generator.uniform(0.1, 0.4))
    back = time.monotonic()
    job.processes[victim].send_signal(signal.SIGCONT)
    return Cost(detect, go_on, all_step(job, back) - back, (victim,))


def slow(job: Job, generator: random.Random) -> Cost:
    """A slow device still beats: nobody may be left behind."""
    (victim,) = chosen(job, generator, 1)
    at = time.monotonic()
    with while_there(job, f"slow-{victim}"):
        time.sleep(generator.uniform(0.5, 1.5))
    undisturbed(job, at, "a slow device")
    return Cost(go_on=longest_gap(job, at))


def late(job: Job, generator: random.Random) -> Cost:
    """One more than ever, then one less."""
    time.sleep(generator.uniform(0.1, 0.5))
    if "3" not in job.names:
        job.names.append("3")
    begun = job.start("3", late=True)
    whole = job.until(lambda record: record["size"] == job.size + 1, since=begun)["at"]
    back = whole - job.joined("3")
    time.sleep(generator.uniform(0.1, 0.4))
    at = time.monotonic()
    job.processes["3"].kill()
    detect, go_on = noticed_and_went_on(job, at, ["3"], size=job.size)
    job.processes.pop("3").wait()
    return Cost(detect, go_on, back, ("3",))


def outsider(job: Job, generator: random.Random) -> Cost:
    """Callers without the secret are turned away and the steps go on."""
    host, _, port = job.meet.rpartition(":")
    time.sleep(generator.uniform(0.05, 0.3))
    at = time.monotonic()
    noise = generator.randbytes(64)
    wrong = b'{"kind":"response","nonce":"00","proof":"00"}'
    with socket.create_connection((host, int(port)), timeout=5):
        for said in (struct.pack(">I", len(wrong)) + wrong, b"\xff" * 4 + noise, struct.pack(">I", 2**31 - 1)):
            knock((host, int(port)), said)
        time.sleep(0.2)
        undisturbed(job, at, "an outsider")
    if "refused a connection from" not in job.log("0"):  # of many, the log has a few
        raise Failed("unauthenticated peers were refused, and nothing was logged")
    return Cost(go_on=longest_gap(job, at))


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
    undisturbed(job, at, "a delayed link")
    return Cost(go_on=longest_gap(job, at))


def cut(job: Job, generator: random.Random) -> Cost:
    """A host that nothing reaches any more, until the others went on without it."""
    assert isinstance(job, VirtualJob)
    (victim,) = chosen(job, generator, 1)
    at = time.monotonic()
    which, fate = generator.choice((((), DROPPED), (("-p", "tcp"), RESET)))
    job.link(victim, up=False, which=which, fate=fate)
    detect, go_on = noticed_and_went_on(job, at, [victim], size=job.size - 1)
    time.sleep(generator.uniform(0.1, 1.0))
    back = time.monotonic()
    job.link(victim, up=True, which=which, fate=fate)
    return Cost(detect, go_on, all_step(job, back) - back, (victim,))


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
    for made in (kill, aggregation, recovery, last, hang, slow, late, outsider, delay, cut, syncer, group, *ATTACKS)
}
