"""From one group to several and back, without starting a process anew.

Each group's first rank opens the door at which its group meets and starts a shard of the syncer beside it; all ranks
learn the places over the wire of the group that they are about to leave. The way back is an appointment made through
the syncer: no group gets fresh samples, and when the last one has handed in its progress all meet at one door.
"""

from __future__ import annotations

import json
import os
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
from paceline.runtime.members.channel import call
from paceline.runtime.members.member import Member
from paceline.runtime.members.view import Patience
from paceline.runtime.syncer.between import Membership

__all__ = ["NAME", "Door", "moved", "open_door", "part"]

SHARD_STARTS_S = 20.0
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


def part(session: Any, member: Member, choice: Choice, patience: Patience) -> tuple[Member, Membership]:
    """Take up a place in one of several groups; all ranks of the session call this."""
    number = next(index for index, group in enumerate(choice.groups) if session.rank in group)
    group, address = choice.groups[number], member.peer.address
    door = open_door(address) if session.rank == group[0] else None
    ports = torch.zeros(len(choice.groups), 2, dtype=torch.int64)
    if door is not None:
        shard = _start_shard(number, address, choice, member._secret)
        ports[number] = torch.tensor([door.place[1], shard])
    session.wire.all_reduce(ports)()
    hosts = [session.view.peers[ranks[0]].address for ranks in choice.groups]
    places = [(host, int(port)) for host, port in zip(hosts, ports[:, 1].tolist(), strict=True)]
    where = Membership(
        group=NAME.format(number),
        places=tuple(places),
        secret=member._secret,
        local_steps=choice.local_steps,
        share=choice.samples[number] / sum(choice.samples),
    )
    meet = (hosts[number], int(ports[number, 0]))
    return moved(member, meet, door, size=len(group), patience=patience), where


def moved(member: Member, meet: tuple[str, int], door: Door | None, *, size: int, patience: Patience) -> Member:
    """The same process as a member of the group that meets there."""
    door_of_mine = door or open_door(member.peer.address)
    peer = replace(member.peer, port=door_of_mine.place[1])
    found = Member(door_of_mine.server, member._secret, peer=peer, patience=patience)
    member.leave()
    found.start(meet, first=size if door is not None else None)
    return found


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
    """Start a shard, and again whenever it was killed; what it had committed is in its folder."""
    env = {**os.environ, "PACELINE_SECRET": secret.decode()}
    while True:
        with (folder / "log").open("ab") as log:
            code = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True).wait()
        if code >= 0:
            return


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
