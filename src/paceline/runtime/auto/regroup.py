"""From one group to several and back, without starting a process anew.

Each group's first rank opens the door at which its group meets and starts a shard of the syncer beside it; all ranks
learn the places over the wire of the group that they are about to leave. The way back is an appointment made through
the syncer: no group gets fresh samples, and when the last one has handed in its progress all meet at one door.
A rank that is started again while there are several groups finds its own by what the split has left beside the roster.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from paceline.errors import LaunchFailed
from paceline.runtime.auto.choose import Choice
from paceline.runtime.auto.seats import GroupSeats, forget_groups, group_roster, note_groups
from paceline.runtime.members.around import answers, read_roster
from paceline.runtime.members.channel import call
from paceline.runtime.members.meet import Launched
from paceline.runtime.members.member import Member
from paceline.runtime.members.view import Patience, Peer
from paceline.runtime.syncer.between import Membership

__all__ = ["NAME", "Door", "gathered", "join_again", "open_door", "part"]

SHARD_STARTS_S = 20.0
FULL_DISK_S = 1.0
"""Pause before a shard that could not write is started again."""
COME_OVER_S = 20.0
"""All who are to meet were there an instant ago: who has not come by then has died on the way."""
NAME = "group{}"
"""Of each group, by its number."""


@dataclass(frozen=True)
class Door:
    """Where a group is about to meet; whoever opened it leads."""

    server: socket.socket
    place: tuple[str, int]


def open_door(address: str) -> Door:
    """Listen on the job's interface."""
    server = socket.create_server((address, 0), backlog=128)
    return Door(server, (address, int(server.getsockname()[1])))


def part(
    session: Any, member: Member, choice: Choice, patience: Patience, *, roster: Path | None
) -> tuple[Member, Membership]:
    """Take up a place in one of several groups; all ranks of the session call this."""
    number = next(index for index, group in enumerate(choice.groups) if session.rank in group)
    group, address = choice.groups[number], member.peer.address
    door = open_door(address) if session.rank == group[0] else None
    ports = torch.zeros(len(choice.groups), 2, dtype=torch.int64)
    if door is not None:
        shard = _start_shard(number, address, choice, member.secret)
        ports[number] = torch.tensor([door.place[1], shard])
    session.wire.all_reduce(ports)()
    seats = _seats(session.view.peers, choice, ports.tolist())
    if session.rank == 0:
        note_groups(roster, seats)
    mine = seats[number]
    left = group_roster(roster, mine.group)
    found = _moved(member, mine.meet, door, size=len(group), patience=patience, roster=left)
    return found, mine.membership(member.secret)


def _seats(peers: Sequence[Peer], choice: Choice, ports: Sequence[Sequence[int]]) -> list[GroupSeats]:
    """Who is where from now on; `ports` are each group's door and shard."""
    hosts = [peers[ranks[0]].address for ranks in choice.groups]
    places = tuple((host, shard) for host, (_, shard) in zip(hosts, ports, strict=True))
    return [
        GroupSeats(
            group=NAME.format(number),
            addresses={str(peers[rank].rank): peers[rank].address for rank in ranks},
            meet=(hosts[number], ports[number][0]),
            places=places,
            local_steps=choice.local_steps,
            share=choice.samples[number] / sum(choice.samples),
        )
        for number, ranks in enumerate(choice.groups)
    ]


def gathered(
    member: Member, told: dict[str, Any], door: Door | None, patience: Patience, *, roster: Path | None
) -> Member:
    """The same process in the one group of all ranks; `told` is what the syncer said, the door is its opener's."""
    if door is not None:
        forget_groups(roster)
    return _moved(member, tuple(told["meet"]), door, size=told["size"], patience=patience, roster=roster)


def _moved(
    member: Member, meet: tuple[str, int], door: Door | None, *, size: int, patience: Patience, roster: Path | None
) -> Member:
    """The same process as a member of the group that meets there."""
    door_of_mine = door or open_door(member.peer.address)
    peer = replace(member.peer, port=door_of_mine.place[1])
    patience = replace(patience, join=min(patience.join, COME_OVER_S))
    found = Member(door_of_mine.server, member.secret, peer=peer, patience=patience)
    member.leave()
    found.start(meet, first=size if door is not None else None)
    found.roster = roster  # not before: what it says now is of a group that nobody is in any more
    return found


def join_again(start: Launched, seats: GroupSeats, patience: Patience) -> Member:
    """Join the group where it runs; if nobody of it is left, its first rank begins it anew."""
    assert start.secret is not None, "a job with a roster has a secret"
    secret, roster = start.secret, group_roster(start.roster, seats.group)
    alive = any(answers(place, secret) for place in read_roster(roster))
    begins = not alive and start.rank == min(int(rank) for rank in seats.addresses)
    door = open_door(seats.addresses[str(start.rank)])
    peer = Peer(f"rank{start.rank}-{secrets.token_hex(3)}", start.rank, *door.place)
    member = Member(door.server, secret, peer=peer, patience=patience)
    member.start(door.place if begins else seats.meet, first=1 if begins else None, roster=roster)
    return member


def _start_shard(index: int, address: str, choice: Choice, secret: bytes) -> int:
    """A shard beside this process; its port. It ends by itself when all groups have left it."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-shard-"))
    with socket.create_server((address, 0)) as probe:
        port = int(probe.getsockname()[1])
    settings = {"index": index, "folder": str(folder), "address": address, "port": port, "ends": True}
    path = folder / "settings.json"
    path.write_text(json.dumps({**settings, "groups": len(choice.groups), "quorum": choice.quorum}), encoding="utf-8")
    argv = [sys.executable, "-m", "paceline.runtime.syncer.server", str(path)]
    threading.Thread(target=_keep, args=(argv, folder, secret), daemon=True, name="paceline-shard").start()
    _await_answer(address, port, secret)
    return port


def _keep(argv: Sequence[str], folder: Path, secret: bytes) -> None:
    """Start a shard, and again whenever it was killed or could not write; what it had committed is in its folder."""
    env = {**os.environ, "PACELINE_SECRET": secret.decode()}
    while True:
        with (folder / "log").open("ab") as log:
            code = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True).wait()
        if code == 0:
            return
        time.sleep(FULL_DISK_S if code > 0 else 0.0)


def _await_answer(address: str, port: int, secret: bytes) -> None:
    deadline = time.monotonic() + SHARD_STARTS_S
    while True:
        try:
            call(address, port, secret, timeout=1.0).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise LaunchFailed(f"the syncer's shard at {address}:{port} did not start: {error}") from error
            time.sleep(0.05)
