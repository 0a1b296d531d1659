"""Regrouping of running processes: splits one group into several, and merges several groups into one.

Split: the first rank of each new group opens the listener of its group and starts a shard of the syncer on its host.
All ranks learn the endpoints through the old group before they leave it. Merge: the first group announces the
endpoint of
the merged group through the syncer. The syncer then leases no further samples; when the last group has pushed its
progress, all ranks connect to that endpoint.

A rank that is restarted while there are several groups finds its group in a file beside the roster of the job. The
first rank writes this file at a split and removes it at a merge. Each group also has a roster of its own. The restarted
rank joins its group if the group still runs. If all ranks of the group have failed, the group starts again with the
present common parameters and with fresh samples; the syncer leases the samples of the failed group again.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from paceline import variables
from paceline.errors import LaunchFailed
from paceline.files import atomic_write
from paceline.runtime.auto.choose import Choice
from paceline.runtime.group.session import GroupSession
from paceline.runtime.members.channel import Endpoint, login_of, open_channel
from paceline.runtime.members.member import Member
from paceline.runtime.members.peers import answers
from paceline.runtime.members.rendezvous import LaunchContext
from paceline.runtime.members.view import Peer, Timeouts, read_roster
from paceline.runtime.protocol.messages import Role
from paceline.runtime.syncer.client import GroupMembership
from paceline.runtime.syncer.journal import DAMAGED, SHARD_RESTARTS

__all__ = [
    "GROUP_NAME",
    "GroupAssignment",
    "Listener",
    "assignment_of",
    "join_again",
    "merge_groups",
    "open_listener",
    "split_groups",
]

SHARD_START_TIMEOUT = 20.0
"""Seconds until a started shard has to listen: it imports numpy on a host that trains at the same time."""
SHARD_ANSWER_TIMEOUT = 1.0
"""Seconds for one attempt to reach a shard that starts."""
SHARD_POLL = 0.05
FULL_DISK_PAUSE = 1.0
"""Seconds before a shard that could not write is restarted, so that a full disk does not cause a busy loop."""
MOVE_TIMEOUT = 20.0
"""Timeout of the rendezvous in seconds. All ranks were connected a moment ago, so a missing rank has failed."""
GROUP_NAME = "group{}"
"""Name of a group, from its number."""
OF = " of "
"""Between the session of a job and the name of one of its groups: a group accepts no member of another one."""


@dataclass(frozen=True)
class Listener:
    """The listener at which the ranks of a group connect; the process that opened it becomes the leader."""

    server: socket.socket
    endpoint: Endpoint


@dataclass(frozen=True)
class GroupAssignment:
    """One group after a split, as written to the file beside the roster; without the secret of the job."""

    group: str
    addresses: dict[str, str]
    """Address of each rank of the group; the keys are the ranks that the launcher assigned."""
    meet: Endpoint
    shards: tuple[Endpoint, ...]
    local_steps: int
    share: float

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> GroupAssignment:
        """The assignment from JSON data."""
        shards = tuple((str(host), int(port)) for host, port in plain["shards"])
        return cls(**{**plain, "meet": (str(plain["meet"][0]), int(plain["meet"][1])), "shards": shards})

    def membership(self, secret: bytes) -> GroupMembership:
        """The membership in this group, for a process that has the secret."""
        return GroupMembership(self.group, self.shards, secret, self.local_steps, self.share)


def open_listener(address: str) -> Listener:
    """Open a listener on a free port of this address."""
    server = socket.create_server((address, 0), backlog=128)
    return Listener(server, (address, int(server.getsockname()[1])))


def split_groups(
    session: GroupSession, member: Member, choice: Choice, timeouts: Timeouts, *, roster: Path | None
) -> tuple[Member, GroupMembership]:
    """Split the ranks of a session into groups and join the group of this rank; all ranks of the session call this."""
    number = next(index for index, group in enumerate(choice.groups) if session.rank in group)
    group, address = choice.groups[number], member.peer.address
    listener = open_listener(address) if session.rank == group[0] else None
    ports = torch.zeros(len(choice.groups), 2, dtype=torch.int64)
    if listener is not None:
        shard = _start_shard(number, address, choice, member.secret)
        ports[number] = torch.tensor([listener.endpoint[1], shard])
    # This sum is also a barrier: no rank leaves the old group before all listeners and shards exist.
    session.wire.all_reduce(ports)()
    assignments = _assignments(session.peers, choice, ports.tolist())
    if session.rank == 0:
        _write_groups(roster, assignments)
    mine = assignments[number]
    moved = _move(
        member, mine.meet, listener, size=len(group), timeouts=timeouts, roster=_group_roster(roster, mine.group),
        session=f"{member.session}{OF}{mine.group}",
    )  # fmt: skip
    return moved, mine.membership(member.secret)


def merge_groups(
    member: Member, meet: Endpoint, listener: Listener | None, size: int, timeouts: Timeouts, *, roster: Path | None
) -> Member:
    """Join the merged group of all `size` ranks; `listener` is given on the process that opened it."""
    if listener is not None:
        path = _groups_file(roster)
        if path is not None:
            path.unlink(missing_ok=True)
    session = member.session.partition(OF)[0]
    return _move(member, meet, listener, size=size, timeouts=timeouts, roster=roster, session=session)


def join_again(context: LaunchContext, assignment: GroupAssignment, timeouts: Timeouts) -> Member:
    """Join the group to which this restarted rank was assigned; if none of its members is left, its first rank starts
    the group again."""
    assert context.secret is not None, "a job with a roster has a secret"
    secret, roster = context.secret, _group_roster(context.roster, assignment.group)
    own = f"rank{context.rank}-{secrets.token_hex(3)}"
    session = f"{context.session}{OF}{assignment.group}"
    login = login_of(secret, Role.MEMBER, own, session=session)
    alive = any(answers(endpoint, login) for endpoint in read_roster(roster))
    begins = not alive and context.rank == min(int(rank) for rank in assignment.addresses)
    listener = open_listener(assignment.addresses[str(context.rank)])
    peer = Peer(own, context.rank, *listener.endpoint)
    member = Member(listener.server, secret, peer=peer, timeouts=timeouts, session=session)
    member.start(listener.endpoint if begins else assignment.meet, first=1 if begins else None, roster=roster)
    return member


def assignment_of(context: LaunchContext) -> GroupAssignment | None:
    """The group of a restarted rank; None if all ranks are one group, or if this is the first start of the rank."""
    path = _groups_file(context.roster)
    if not context.late or path is None:
        return None
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        groups = [GroupAssignment.of(plain) for plain in json.loads(path.read_text(encoding="utf-8"))]
        return next((group for group in groups if str(context.rank) in group.addresses), None)
    return None


def _assignments(peers: Sequence[Peer], choice: Choice, ports: Sequence[Sequence[int]]) -> list[GroupAssignment]:
    """The assignment of ranks to groups; `ports` has the ports of the listener and of the shard of each group."""
    hosts = [peers[ranks[0]].address for ranks in choice.groups]
    shards = tuple((host, shard) for host, (_, shard) in zip(hosts, ports, strict=True))
    return [
        GroupAssignment(
            group=GROUP_NAME.format(number),
            addresses={str(peers[rank].rank): peers[rank].address for rank in ranks},
            meet=(hosts[number], ports[number][0]),
            shards=shards,
            local_steps=choice.local_steps,
            share=choice.samples[number] / sum(choice.samples),
        )
        for number, ranks in enumerate(choice.groups)
    ]


def _move(
    member: Member, meet: Endpoint, listener: Listener | None, *, size: int, timeouts: Timeouts, roster: Path | None,
    session: str,
) -> Member:  # fmt: skip
    """Leave the present group and join the group that meets at this endpoint."""
    own = listener or open_listener(member.peer.address)
    peer = replace(member.peer, port=own.endpoint[1])
    timeouts = replace(timeouts, join=min(timeouts.join, MOVE_TIMEOUT))
    moved = Member(own.server, member.secret, peer=peer, timeouts=timeouts, session=session)
    # The old group is left first: otherwise its leader would wait for reports of ranks that have moved.
    member.leave()
    moved.start(meet, first=size if listener is not None else None)
    moved.roster = roster  # set only now: until the join the file describes a group without members
    return moved


def _start_shard(index: int, address: str, choice: Choice, secret: bytes) -> int:
    """Start a shard as a child process and return its port; the shard ends when all groups have left it."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-shard-"))
    with socket.create_server((address, 0)) as probe:
        port = int(probe.getsockname()[1])
    settings = {"index": index, "folder": str(folder), "address": address, "port": port, "ends": True}
    path = folder / "settings.json"
    path.write_text(json.dumps({**settings, "groups": len(choice.groups), "quorum": choice.quorum}), encoding="utf-8")
    argv = [sys.executable, "-m", "paceline.runtime.syncer.shard", str(path)]
    threading.Thread(target=_keep, args=(argv, folder, secret), daemon=True, name="paceline-shard").start()
    _await_answer(address, port, secret)
    return port


def _keep(argv: Sequence[str], folder: Path, secret: bytes) -> None:
    """Start a shard, and again whenever it was killed or could not write; what it had committed is in its folder."""
    env = {**os.environ, variables.SECRET: os.fsdecode(secret)}
    for _ in range(1 + SHARD_RESTARTS):
        with (folder / "log").open("ab") as log:
            code = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True).wait()
        if code in (0, DAMAGED):
            return
        time.sleep(FULL_DISK_PAUSE if code > 0 else 0.0)


def _await_answer(address: str, port: int, secret: bytes) -> None:
    login, deadline = login_of(secret, Role.GROUP, "start"), time.monotonic() + SHARD_START_TIMEOUT
    while True:
        try:
            open_channel(address, port, login, listener=Role.SHARD, timeout=SHARD_ANSWER_TIMEOUT).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise LaunchFailed(f"the syncer's shard at {address}:{port} did not start: {error}") from error
            time.sleep(SHARD_POLL)


def _group_roster(roster: Path | None, group: str) -> Path | None:
    """The path of the roster of one group."""
    return roster.with_name(f"{roster.stem}-{group}.json") if roster is not None else None


def _write_groups(roster: Path | None, groups: Sequence[GroupAssignment]) -> None:
    """Write the assignment of ranks to groups, if the job has a roster."""
    path = _groups_file(roster)
    if roster is not None and path is not None and path.parent.is_dir():
        # Rosters of an earlier split describe groups that no longer exist.
        for old in path.parent.glob(f"{roster.stem}-*.json"):
            old.unlink(missing_ok=True)
        atomic_write(path, json.dumps([asdict(group) for group in groups]), durable=False)


def _groups_file(roster: Path | None) -> Path | None:
    return roster.with_name("groups.json") if roster is not None else None
