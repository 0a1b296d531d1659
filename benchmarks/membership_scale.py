"""What it costs a group to form, to lose one rank and to lose its leader, by the number of ranks.

    .venv/bin/python benchmarks/membership_scale.py [--real 4,16,64] [--simulated 100,1000,10000]

Real ranks are processes that hold a `Member` each and train nothing: seconds from the moment at which all listen, or
one was killed, until the last of them has the next view, and bytes that those who live sent since the last view,
heartbeats of the second between two events included.
Simulated ranks are the decisions of the runtime (`protocol/leading.py`, `following.py`) in this process, without a
network: seconds that the decisions and the encoding of all messages take, and bytes of all messages.
"""

from __future__ import annotations

import json
import math
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from lib.result import Figure, parser_of, publish

from paceline.runtime.members.view import Peer, Report, Timeouts
from paceline.runtime.protocol import messages
from paceline.runtime.protocol.codec import encode_message
from paceline.runtime.protocol.following import Following
from paceline.runtime.protocol.leading import Action, Leading, Send

FRAME = 44
"""Bytes of a frame around its text."""
EVENTS = ("form", "lose one", "lose the leader")
TIMES = Timeouts(heartbeat_timeout=30.0)


def simulated(ranks: int) -> dict[str, tuple[float, int]]:
    """Seconds and bytes of each event."""
    peers = [Peer(f"rank{rank}-{rank:06x}", rank, f"10.0.{rank // 250}.{rank % 250}", 40000) for rank in range(ranks)]
    cores = {peer.id: Following(peer, TIMES, 0.0) for peer in peers}
    found: dict[str, tuple[float, int]] = {}
    leading = Leading(peers[0].id, TIMES, first=ranks, now=0.0, memory=cores[peers[0].id].memory)
    found["form"] = _timed(lambda: _gather(leading, cores, step=0))
    lost = peers[-1].id
    del cores[lost]
    found["lose one"] = _timed(lambda: _lose(leading, cores, lost))
    for core in cores.values():
        core.lost(silent=False)
    del cores[peers[0].id]
    heir = Leading(peers[1].id, TIMES, first=None, now=0.0, memory=cores[peers[1].id].memory)
    found["lose the leader"] = _timed(lambda: _gather(heir, cores, step=2))
    return found


def _timed(event: Any) -> tuple[float, int]:
    began = time.perf_counter()
    size = event()
    return time.perf_counter() - began, size


def _size(message: messages.Message) -> int:
    return len(encode_message(message)[0]) + FRAME


def _deliver(actions: list[Action], cores: dict[str, Following]) -> int:
    """Bytes of what a leader sends; members that receive a view have exchanged tensors in it."""
    total = 0
    for action in actions:
        if isinstance(action, Send) and action.to in cores:
            total += _size(action.message)
            if not isinstance(action.message, messages.Welcome):
                cores[action.to].hear(action.message, 0.0)
            if isinstance(action.message, messages.ViewFormed):
                cores[action.to].establish(action.message.view.number)
    return total


def _gather(leading: Leading, cores: dict[str, Following], *, step: int) -> int:
    """All say hello and report, and get a view."""
    total, leader = 0, next(iter(cores.values())).peer
    for core in cores.values():
        hello = core.hello()
        core.welcomed((leader.id, *leader.endpoint), 0.0)
        total += _size(hello) + _deliver(leading.join(core.peer, hello, 0.0), cores)
    return total + _report(leading, cores, step)


def _report(leading: Leading, cores: dict[str, Following], step: int) -> int:
    total = 0
    for core in cores.values():
        ready = core.report(Report(step, f"1:{leading.number}:{step}", leading.number), finished=False)
        total += _size(ready) + _deliver(leading.hear(core.peer.id, ready, 0.0), cores)
    return total + _deliver(leading.tick(1.0), cores)


def _lose(leading: Leading, cores: dict[str, Following], lost: str) -> int:
    return _deliver(leading.lose(lost, 0.0, farewell=False), cores) + _report(leading, cores, 1)


def real(ranks: int) -> dict[str, tuple[float, int]]:
    """The same with processes, the last rank and the first of which are killed."""
    secret = secrets.token_hex(16)
    argv = [sys.executable, __file__, "--worker", secret, str(ranks)]
    jobs = [
        subprocess.Popen([*argv, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    try:
        ports = [json.loads(job.stdout.readline()) for job in jobs]  # type: ignore[union-attr]
        began = time.monotonic()
        for job in jobs:
            job.stdin.write(f"{ports[0]}\n")  # type: ignore[union-attr]
            job.stdin.flush()  # type: ignore[union-attr]
        found, sent = {}, dict.fromkeys(jobs, 0)
        for event, victim in zip(EVENTS, (None, jobs[-1], jobs[0]), strict=True):
            if victim is not None:
                time.sleep(1.0)
                began = time.monotonic()
                victim.kill()
                jobs.remove(victim)
            told = [json.loads(job.stdout.readline()) for job in jobs]  # type: ignore[union-attr]
            total = sum(each["sent"] - sent[job] for job, each in zip(jobs, told, strict=True))
            found[event] = (max(each["at"] for each in told) - began, total)
            sent = {job: each["sent"] for job, each in zip(jobs, told, strict=True)}
        return found
    finally:
        for job in jobs:
            job.kill()
            job.wait()


def worker(secret: str, ranks: int, rank: int) -> None:
    """One rank: it takes every view and says when, and how many bytes this process has sent."""
    from paceline.channel.frames import SecureConnection
    from paceline.runtime.members.member import Member

    sent = [0]
    plain = SecureConnection.send

    def counted(self: SecureConnection, text: bytes, data: bytes = b"", **more: Any) -> None:
        sent[0] += len(text) + len(data) + FRAME
        plain(self, text, data, **more)

    SecureConnection.send = counted  # type: ignore[method-assign]
    server = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(server.getsockname()[1], flush=True)
    meet = ("127.0.0.1", int(sys.stdin.readline()))
    peer = Peer(f"rank{rank}-{secrets.token_hex(3)}", rank, *server.getsockname())
    member = Member(server, secret.encode(), peer=peer, timeouts=TIMES)
    member.start(meet, first=ranks if rank == 0 else None)
    while True:
        view = member.next_view(Report(0, "same"))
        member.establish(view)
        print(json.dumps({"at": time.monotonic(), "sent": sent[0]}), flush=True)
        threading.Event().wait(0.05) if member.interrupted.is_set() else member.interrupted.wait()


def growth(sizes: Sequence[int], values: Sequence[float]) -> float:
    """The exponent of n between the smallest and the largest number of ranks."""
    return math.log(values[-1] / values[0]) / math.log(sizes[-1] / sizes[0])


def main() -> int:
    """Measure every size."""
    parser = parser_of(__doc__)
    parser.add_argument("--real", default="4,16,64", help="numbers of processes")
    parser.add_argument("--simulated", default="100,1000,10000", help="numbers of simulated ranks")
    parser.add_argument("--worker", nargs=3, help="for the processes that this benchmark starts")
    args = parser.parse_args()
    if args.worker:
        worker(args.worker[0], int(args.worker[1]), int(args.worker[2]))
    figures: list[Figure] = []
    turns: dict[str, Any] = {}
    passed = True
    for kind, run, chosen in (("processes", real, args.real), ("simulated ranks", simulated, args.simulated)):
        sizes = [int(size) for size in chosen.split(",") if size]
        results = {size: run(size) for size in sizes}
        turns[kind] = results
        for event in EVENTS:
            for size in sizes:
                seconds, sent = results[size][event]
                figures += [
                    Figure(f"{size} {kind}: {event}", seconds, "s"),
                    Figure(f"{size} {kind}: {event}", sent, "B"),
                ]
            if kind != "processes" and len(sizes) > 1:
                total = [results[size][event][1] for size in sizes]
                bound = math.log(sizes[-1] * math.log(sizes[-1]) / (sizes[0] * math.log(sizes[0])))
                passed = passed and math.log(total[-1] / total[0]) <= bound
                times = [results[size][event][0] for size in sizes]
                figures.append(Figure(f"bytes of {event}: exponent of n", growth(sizes, total)))
                figures.append(Figure(f"seconds of {event}: exponent of n", growth(sizes, times)))
    return publish(args, figures, turns=turns, passed=passed)


if __name__ == "__main__":
    sys.exit(main())
