"""Faults that an attack on the product has found: payload that does not pass, outsiders, full disks, hangs, pauses."""

from __future__ import annotations

import contextlib
import random
import resource
import secrets
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator

from lib.fault_groups import SyncerJob
from lib.fault_jobs import SILENCE, DiskJob, Endpoint, Failed, Job, VirtualJob
from lib.fault_turns import (
    Cost,
    after_kill,
    all_step,
    back_after,
    chosen,
    longest_gap,
    noticed_and_went_on,
    undisturbed,
)
from paceline.channel.handshake import VERSION

OPENS, LOGS_IN = 81, 601
"""Bytes from which packets are dropped: connections open and nothing is said, or whole logins and heartbeats pass."""
STRANGERS = 1000


def payload(job: Job, generator: random.Random) -> Cost:
    """A link that lets handshakes through and drops what is larger, as a wrong MTU or a middlebox does."""
    assert isinstance(job, VirtualJob)
    (victim,) = chosen(job, generator, 1)
    at = time.monotonic()
    with job.smaller_than(victim, generator.choice((OPENS, LOGS_IN))):
        detect, go_on = noticed_and_went_on(job, at, [victim], size=job.size - 1)
        time.sleep(generator.uniform(0.1, 1.0))
    back = time.monotonic()
    return Cost(detect, go_on, all_step(job, back) - back, (victim,))


def imposter(job: Job, generator: random.Random) -> Cost:
    """An outsider listens where a dead rank did, and answers with noise, silence, or what a survivor says to it."""
    (victim,) = chosen(job, generator, 1)
    endpoints = job.endpoints()
    own = endpoints.pop(job.names.index(victim))
    at = time.monotonic()
    job.processes[victim].kill()
    with _posing(own, generator.choice(endpoints), generator):
        detect, go_on = noticed_and_went_on(job, at, [victim], size=job.size - 1)
        time.sleep(generator.uniform(1.0, 1.5))  # the leader asks lost peers every second
        job.processes[victim].wait()
        job.start(victim, late=True)
        return Cost(detect, go_on, back_after(job, [victim]), (victim,))


def disk(job: Job, generator: random.Random) -> Cost:
    """No space for checkpoints: a warning; steps go on, and the next checkpoint is written when there is space."""
    assert isinstance(job, DiskJob)
    (victim,) = chosen(job, generator, 1)
    at, warned = time.monotonic(), job.said("cannot write the checkpoint")
    with job.full():
        job.wait_for(lambda: job.said("cannot write the checkpoint") > warned, "a warning of the full disk")
        if generator.random() < 0.5:
            killed = time.monotonic()
            job.processes[victim].kill()
            after_kill(job, generator, [victim], killed)
        all_step(job, time.monotonic())
    freed = time.time_ns()
    job.wait_for(lambda: job.saved_at() > freed, "a checkpoint after there was space again")
    if job.said("is not a sound checkpoint"):
        raise Failed("a full disk left a damaged checkpoint")
    return Cost(go_on=longest_gap(job, at), victims=(victim,))


def between(job: Job, generator: random.Random) -> Cost:
    """A shard dies at the n-th moment between two messages, also while a group starts."""
    assert isinstance(job, SyncerJob)
    time.sleep(generator.uniform(0.1, 0.4))
    index = generator.randrange(len(job.ports))
    known = max(job.newest(name)[0]["versions"][index] for name in job.names)
    at, starts = time.monotonic(), generator.choice([*job.names, None, None])
    job.order(f"die-at-shard-{index}").write_text(str(generator.randrange(20)))
    if starts is not None:
        job.processes[starts].kill()
        job.processes[starts].wait()
        job.start(starts)
    job.processes[f"shard-{index}"].wait(60)
    time.sleep(generator.uniform(0.0, 0.2))
    job.start_shard(index)
    found = [job.until(lambda record: record["versions"][index] > known + 1, since=at, only=[one]) for one in job.names]
    return Cost(back=max(record["at"] for record in found) - at, victims=(starts,) if starts else ())


def stuck(job: Job, generator: random.Random) -> Cost:
    """User code that does not return: it is named with rank, step and seconds, and nobody is left behind."""
    (victim,) = chosen(job, generator, 1)
    at, said = time.monotonic(), f"rank{victim}-"
    before = job.named(said)
    order = job.order(f"stuck-{victim}")
    order.write_text(generator.choice(("sleeps", "computes")))
    job.wait_for(lambda: job.named(said) > before, "a word on the rank that hangs")
    detect = time.monotonic() - at
    step = job.named(said)[-1][0]
    order.unlink()
    if step not in range(job.newest(victim)[0]["step"] - 3, job.newest(victim)[0]["step"] + 3):
        raise Failed(f"rank {victim} was said to hang in step {step}, it was in {job.newest(victim)[0]['step'] + 1}")
    undisturbed(job, at, "a hang in user code")
    return Cost(detect=detect, back=longest_gap(job, at))


def crowd(job: Job, generator: random.Random) -> Cost:
    """A thousand unauthenticated peers at all listeners while the group loses a rank, and while the rank comes back."""
    (victim,) = chosen(job, generator, 1)
    places = job.endpoints()
    del places[job.names.index(victim)]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * STRANGERS), hard))
    callers: list[socket.socket] = []
    with contextlib.ExitStack() as doors:
        pushing = threading.Thread(target=_push, args=(places, doors, callers, random.Random(generator.random())))
        pushing.start()
        time.sleep(generator.uniform(0.0, 0.1))
        at = time.monotonic()
        job.processes[victim].kill()
        cost = after_kill(job, generator, [victim], at)
        pushing.join()
    if len(callers) < 0.9 * STRANGERS:
        raise Failed(f"only {len(callers)} unauthenticated peers came through to the listeners")
    return cost


def pause(job: Job, generator: random.Random) -> Cost:
    """SIGSTOP for less than the deadline, or for more, then SIGCONT."""
    (victim,) = chosen(job, generator, 1)
    short = generator.random() < 0.5
    at = time.monotonic()
    job.processes[victim].send_signal(signal.SIGSTOP)
    time.sleep(SILENCE * (generator.uniform(0.1, 0.5) if short else generator.uniform(1.2, 3.0)))
    back = time.monotonic()
    job.processes[victim].send_signal(signal.SIGCONT)
    if short:
        undisturbed(job, at, "a pause shorter than the deadline")
    return Cost(back=all_step(job, back) - back, victims=(victim,))


ATTACKS = (payload, imposter, disk, between, stuck, crowd, pause)


def _push(
    places: list[Endpoint], doors: contextlib.ExitStack, callers: list[socket.socket], generator: random.Random
) -> None:
    """A thousand callers; each says something wrong and stays as long as it is let."""
    for _ in range(STRANGERS):
        with contextlib.suppress(OSError):
            callers.append(doors.enter_context(socket.create_connection(generator.choice(places), timeout=5)))
            callers[-1].sendall(_said(generator))


def _said(generator: random.Random) -> bytes:
    claim = b"PACELINE" + struct.pack(">H", VERSION) + secrets.token_bytes(32) + struct.pack(">H", 40) + b"\0" * 72
    return generator.choice((b"", b"[" * 1024, b"GET / HTTP/1.0\r\n\r\n", claim, claim[:30], generator.randbytes(200)))


@contextlib.contextmanager
def _posing(place: Endpoint, survivor: Endpoint, generator: random.Random) -> Iterator[None]:
    """Answer whoever calls a dead rank, as soon as its port is free."""
    over = threading.Event()
    thread = threading.Thread(target=_pose, args=(place, survivor, over, random.Random(generator.random())))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _pose(place: Endpoint, survivor: Endpoint, over: threading.Event, generator: random.Random) -> None:
    with contextlib.ExitStack() as doors:
        server = None
        while server is None and not over.is_set():
            with contextlib.suppress(OSError):
                server = doors.enter_context(socket.create_server(place))
        while server is not None and not over.is_set():
            server.settimeout(0.1)
            with contextlib.suppress(OSError):
                caller = doors.enter_context(server.accept()[0])
                if generator.random() < 0.5:
                    caller.sendall(_said(generator))
                else:
                    _relay(caller, doors.enter_context(socket.create_connection(survivor, timeout=1)))


def _relay(caller: socket.socket, other: socket.socket) -> None:
    """Pass on what a survivor says to its own listener, or to another one, and the answer back."""
    caller.settimeout(0.3)
    other.settimeout(0.3)
    for sender, receiver in ((other, caller), (caller, other), (other, caller)):
        receiver.sendall(sender.recv(4096))
