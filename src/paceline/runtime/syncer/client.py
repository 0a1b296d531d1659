"""The client of the syncer in a group: leases of samples, local steps, and progress since the last exchange.

All ranks of the group hold its state, like that of the model, so that the next first rank can repeat an unfinished
exchange; the syncer recognises the exchange by its sequence number.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline import variables
from paceline.channel.handshake import MAX_FIELD
from paceline.errors import InputError
from paceline.runtime.members.channel import Endpoint
from paceline.runtime.members.rendezvous import number_of
from paceline.runtime.protocol.messages import LeaseReply
from paceline.runtime.settings import Settings
from paceline.runtime.syncer.connections import LeaseRevoked, ShardConnections, as_received
from paceline.runtime.syncer.held import HeldNumbers
from paceline.runtime.syncer.leases import GroupStatus

__all__ = ["GroupMembership", "SyncerClient", "group_membership"]

log = logging.getLogger("paceline.runtime")


@dataclass(frozen=True)
class GroupMembership:
    """The group of this process, and the endpoints of the syncer."""

    group: str
    shards: tuple[Endpoint, ...]
    secret: bytes
    local_steps: int
    """Number of steps between two exchanges."""
    share: float
    """Share of the global batch that this group computes."""


def group_membership(env: Mapping[str, str] = os.environ) -> GroupMembership | None:
    """The membership from the launcher's variables; None for a single group."""
    if variables.SYNCER not in env:
        return None
    shards = []
    for text in env[variables.SYNCER].split(","):
        host, _, port = text.rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and len(port) <= 5):
            raise InputError(f"{variables.SYNCER} holds {text!r}, expected host:port")
        shards.append((host, int(port)))
    missing = [name for name in (variables.GROUP, variables.SYNCER_SECRET) if not env.get(name)]
    if missing:
        raise InputError(f"{variables.SYNCER} is set, {missing[0]} is not", hint="`paceline train` sets both")
    return GroupMembership(
        group=_group_name(env[variables.GROUP]),
        shards=tuple(shards),
        secret=os.fsencode(env[variables.SYNCER_SECRET]),
        local_steps=number_of(env, (variables.LOCAL_STEPS,), otherwise=1, least=1),
        share=_share(env.get(variables.GROUP_SHARE, "1.0")),
    )


def _group_name(text: str) -> str:
    """The name of a group, which files are named after."""
    if "/" in text or not text.isprintable() or len(os.fsencode(text)) > MAX_FIELD:
        expected = f"a printable name without a slash, at most {MAX_FIELD} bytes"
        raise InputError(f"{variables.GROUP} is {text[:60]!r}, expected {expected}")
    return text


def _share(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (share := float(text)) <= 1:
            return share
    raise InputError(f"{variables.GROUP_SHARE} is {text[:40]!r}, expected a number above 0, at most 1")


class SyncerClient:
    """The state of a group's exchanges; equal on all ranks of the group."""

    def __init__(self, where: GroupMembership, model: nn.Module, settings: Settings, *, global_batch: int) -> None:
        self.where, self._packing = where, settings.compress
        self._rules = (settings.staleness, settings.outer)
        trained = [(name, item) for name, item in model.named_parameters() if item.requires_grad]
        self._layout = tuple((name, parameter.numel()) for name, parameter in trained)
        if any(parameter.dtype != torch.float32 for _, parameter in trained):
            raise InputError("groups exchange float32 parameters only", hint="use one group for other types")
        self.held = HeldNumbers([parameter for _, parameter in trained])
        """The part of the parameters that this rank holds."""
        if self.held.sharded and self._packing == "int8":
            raise InputError(
                "compress='int8' scales blocks of the whole model, of which this rank has shards",
                hint="compress='half', or leave it out",
            )
        self.batch = max(1, round(global_batch * where.share))
        self._connections: ShardConnections | None = None
        self.session = 0
        """Session id of the group at the syncer."""
        self.sequence = 0
        """Sequence number of the last exchange; 0 before the first exchange."""
        self.versions: list[int] = [0] * len(where.shards)
        self.base = torch.zeros(self.held.count)
        """This rank's part of the common parameters of the last exchange."""
        self._owed = torch.zeros_like(self.base)
        """Rounding errors of packed progress, which are added to the next progress."""
        self.epoch = self.begin = self.end = 0
        """The lease: samples `begin` to `end` in the order of the epoch."""
        self.over = False
        """Whether no samples are left for this group."""
        self.local_steps = where.local_steps
        self.staleness = 0
        """Updates by other groups between the parameters that the last progress started from and its own update."""
        self.seconds = 0.0
        """Seconds of the last exchange, without waiting for other groups."""

    @property
    def statuses(self) -> dict[str, GroupStatus | None]:
        """The last status of each group; known on the first rank of the group."""
        return self._last_reply.statuses

    @property
    def merged_group(self) -> tuple[Endpoint, int] | None:
        """Endpoint and number of ranks of the merged group; None if there is no merge."""
        if self._connections is None or self._last_reply.merge_at is None:
            return None
        return self._last_reply.merge_at, sum(status.size for status in self.statuses.values() if status is not None)

    def retune(self, *, local_steps: int, quorum: int, merge_at: Endpoint | None) -> None:
        """Change the settings of all groups; with `merge_at`, all groups merge at that endpoint."""
        self._connected().retune(local_steps=local_steps, quorum=quorum, merge_at=merge_at)

    def handed_in(self) -> Tensor:
        """This rank's part of what the next exchange sends: the parameters at the start, then progress."""
        return self._progress() if self.sequence else self.held.read()

    def exchange(
        self,
        numbers: Tensor,
        *,
        num_samples: int,
        epochs: int,
        begin: tuple[int, int] = (0, 0),
        status: GroupStatus | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Push parameters or progress, and request the next samples; called on the first rank of the group.

        Returns the arguments of `take`, with the whole common parameters. No state changes before all ranks have
        them: if the group changes meanwhile, the exchange is repeated.
        """
        connections, began = self._connected(), time.perf_counter()
        number, mine = self.sequence + 1, numbers.numpy()
        if self.sequence == 0:
            theta, versions = connections.start(
                mine, num_samples=num_samples, epochs=epochs, begin=begin, rules=self._rules, layout=self._layout
            )
        else:
            try:
                theta, versions = self._hand_in(connections, mine, (self.batch * self.local_steps, status))
                self.staleness = max(0, versions[0] - self.versions[0] - 1)
            except LeaseRevoked:
                log.warning("this group was declared failed; other groups have its samples")
                # The rejected number is not reused, because its push may still arrive at other shards. The next number
                # is skipped, which tells the shard that the progress of this lease was not pushed.
                theta, versions = connections.come_back()
                number += 1
        self.seconds = time.perf_counter() - began - connections.waited
        lease = connections.lease(number, self.batch * self.local_steps, status)
        if lease is not None:
            self.local_steps = self._last_reply.local_steps or self.local_steps
            samples = (lease.epoch, lease.begin, lease.end)
        else:
            # No group trains any more, so these are the final common parameters, equal for all groups.
            theta, versions = connections.common()
            samples = (*self._last_reply.position, self._last_reply.position[1])
        header = [connections.session, number, *samples, int(lease is None), *versions]
        return torch.tensor(header, dtype=torch.int64), torch.from_numpy(theta)

    def speak(self, *, speaks: bool) -> None:
        """Set whether this rank is the first rank of the group, which sends heartbeats to the syncer."""
        if speaks and self.sequence > 0:
            self._connected()
        elif not speaks and self._connections is not None:
            self._connections.close()
            self._connections = None

    def header(self) -> Tensor:
        """The state of the exchange as numbers, for the other ranks of the group."""
        numbers = [self.session, self.sequence, self.epoch, self.begin, self.end, int(self.over), *self.versions]
        return torch.tensor(numbers, dtype=torch.int64)

    @staticmethod
    def is_over(header: Tensor) -> bool:
        """Whether a header says that no samples are left for the group."""
        return bool(header[5])

    def take(self, header: Tensor, theta: Tensor) -> None:
        """Apply an exchange: the header from the first rank, and this rank's part of the common parameters."""
        # Rounding errors are computed before the state changes, from the progress since the previous exchange. If the
        # group was declared failed, a number was skipped: then that progress was dropped and leaves no errors.
        if self.sequence and int(header[1]) == self.sequence + 1:
            self._settle()
        self._take_header(header)
        self.base = theta
        self.held.write(theta)

    def state_dict(self) -> dict[str, Any]:
        """State for late joiners of this group and for checkpoints."""
        return {
            "base": self.held.tensors(self.base),
            "owed": self.held.tensors(self._owed),
            "header": self.header(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of another rank of the group; the parameters are loaded with the model."""
        self._take_header(state["header"])
        self.base, self._owed = self.held.numbers_of(state["base"]), self.held.numbers_of(state["owed"])

    def begin_anew(self) -> None:
        """Start a new session, because the syncer may not be the one of the checkpoint."""
        self.session = self.sequence = 0
        self.over = False
        self._owed.zero_()

    def leave(self) -> None:
        """Stop communicating with the syncer; if no samples are left, the group leaves the syncer."""
        if self._connections is not None:
            if self.over:
                self._connections.leave()
            else:
                self._connections.close()

    def facts(self) -> dict[str, Any]:
        """Versions, groups and staleness, as counted by the first shard."""
        return vars(self._connected().facts())

    @property
    def _last_reply(self) -> LeaseReply:
        reply = self._connected().last_reply
        assert reply is not None, "no lease was requested yet"
        return reply

    def _hand_in(
        self, connections: ShardConnections, progress: np.ndarray, then: tuple[int, GroupStatus | None]
    ) -> tuple[np.ndarray, list[int]]:
        return connections.exchange(
            progress,
            sequence=self.sequence,
            versions=self.versions,
            samples=self.end - self.begin,
            packing=self._packing,
            then=then,
        )

    def _progress(self) -> Tensor:
        return self.base - self.held.read() + self._owed

    def _settle(self) -> None:
        """Keep the rounding errors of the last push; every rank of the group computes them itself, with equal
        results."""
        if self._packing != "none":
            progress = self._progress()
            seen = as_received(progress.numpy(), len(self.where.shards), self._packing)
            self._owed = progress - torch.from_numpy(seen)

    def _take_header(self, header: Tensor) -> None:
        self.session, self.sequence, self.epoch, self.begin, self.end, over, *self.versions = header.tolist()
        self.over = bool(over)

    def _connected(self) -> ShardConnections:
        if self._connections is None:
            self._connections = ShardConnections(self.where.shards, self.where.secret, group=self.where.group)
        self._connections.session = self.session or self._connections.session
        return self._connections
