"""A group's side of the syncer: leases of samples, rounds of local steps, progress since the last exchange.

Its state is shared inside the group like the model's, so that whichever rank speaks next can repeat an exchange that
was under way; the syncer recognises the exchange by its sequence number.
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
    """Which group this process is in, and where the syncer is."""

    group: str
    shards: tuple[Endpoint, ...]
    secret: bytes
    local_steps: int
    """Steps of the group between two exchanges."""
    share: float
    """Of the global batch that this group takes."""


def group_membership(env: Mapping[str, str] = os.environ) -> GroupMembership | None:
    """From the launcher's variables; None if there is one group only."""
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
    """What a group knows about its exchanges; every rank of the group holds the same."""

    def __init__(self, where: GroupMembership, model: nn.Module, settings: Settings, *, global_batch: int) -> None:
        self.where, self._packing = where, settings.compress
        self._rules = (settings.staleness, settings.outer)
        trained = [(name, item) for name, item in model.named_parameters() if item.requires_grad]
        self._layout = tuple((name, parameter.numel()) for name, parameter in trained)
        if any(parameter.dtype != torch.float32 for _, parameter in trained):
            raise InputError("groups exchange float32 parameters only", hint="use one group for other types")
        self.held = HeldNumbers([parameter for _, parameter in trained])
        """What this rank holds of the parameters."""
        if self.held.sharded and self._packing == "int8":
            raise InputError(
                "compress='int8' scales blocks of the whole model, of which this rank has shards",
                hint="compress='half', or leave it out",
            )
        self.batch = max(1, round(global_batch * where.share))
        self._connections: ShardConnections | None = None
        self.session = 0
        """How the group began at the syncer."""
        self.sequence = 0
        """Number of the last exchange; 0 before the first."""
        self.versions: list[int] = [0] * len(where.shards)
        self.base = torch.zeros(self.held.count)
        """The common parameters of the last exchange; what this rank holds of them."""
        self._owed = torch.zeros_like(self.base)
        """What packing has kept back of earlier progress."""
        self.epoch = self.begin = self.end = 0
        """The lease: samples `begin` to `end` of the epoch's order."""
        self.over = False
        """Whether no samples are left for this group."""
        self.local_steps = where.local_steps
        self.staleness = 0
        """Updates by other groups between the parameters that the last progress started from and its own update."""
        self.seconds = 0.0
        """Of the last exchange, without waiting for other groups."""

    @property
    def statuses(self) -> dict[str, GroupStatus | None]:
        """What each group last said of itself; on the rank that speaks for the group."""
        return self._last_reply.statuses

    @property
    def merged_group(self) -> tuple[Endpoint, int] | None:
        """Where all groups meet as one and how many ranks they have; None if training is over, or on a listener."""
        if self._connections is None or self._last_reply.merge_at is None:
            return None
        return self._last_reply.merge_at, sum(status.size for status in self.statuses.values() if status is not None)

    def retune(self, *, local_steps: int, quorum: int, merge_at: Endpoint | None) -> None:
        """Tell all groups how to go on; with `merge_at`, as one group that meets there."""
        self._connected().retune(local_steps=local_steps, quorum=quorum, merge_at=merge_at)

    def handed_in(self) -> Tensor:
        """What this rank holds of what the next exchange begins with: parameters at first, then progress."""
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
        """Hand in all numbers, and ask for the next samples; on the rank that speaks for the group.

        What `take` needs comes back, with the common parameters as a whole. Nothing is taken before all ranks have
        it: if the group changes meanwhile, the exchange is repeated.
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
                # The number that was rejected is not used again, as what was sent with it may still arrive; the next
                # one is left out, so that the count of samples shows that this lease was not pushed.
                theta, versions = connections.come_back()
                number += 1
        self.seconds = time.perf_counter() - began - connections.waited
        lease = connections.lease(number, self.batch * self.local_steps, status)
        if lease is not None:
            self.local_steps = self._last_reply.local_steps or self.local_steps
            samples = (lease.epoch, lease.begin, lease.end)
        else:
            # Nobody trains any more, so these are the last common parameters, the same for all groups.
            theta, versions = connections.common()
            samples = (*self._last_reply.position, self._last_reply.position[1])
        header = [connections.session, number, *samples, int(lease is None), *versions]
        return torch.tensor(header, dtype=torch.int64), torch.from_numpy(theta)

    def speak(self, *, speaks: bool) -> None:
        """Only the rank that speaks for the group sends heartbeats to the syncer between exchanges."""
        if speaks and self.sequence > 0:
            self._connected()
        elif not speaks and self._connections is not None:
            self._connections.close()
            self._connections = None

    def header(self) -> Tensor:
        """What the other ranks of the group must know, as numbers."""
        numbers = [self.session, self.sequence, self.epoch, self.begin, self.end, int(self.over), *self.versions]
        return torch.tensor(numbers, dtype=torch.int64)

    @staticmethod
    def is_over(header: Tensor) -> bool:
        """Whether a header says that no samples are left for the group."""
        return bool(header[5])

    def take(self, header: Tensor, theta: Tensor) -> None:
        """What the rank that speaks has learnt, and of the common parameters what this rank holds."""
        # Before the state changes: what is owed depends on the progress since the exchange before. A number was left
        # out if that progress counts for nothing, because the group was declared failed.
        if self.sequence and int(header[1]) == self.sequence + 1:
            self._settle()
        self._take_header(header)
        self.base = theta
        self.held.write(theta)

    def state_dict(self) -> dict[str, Any]:
        """For ranks of this group that join late, and for checkpoints."""
        return {
            "base": self.held.tensors(self.base),
            "owed": self.held.tensors(self._owed),
            "header": self.header(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become what another rank of the group is; the parameters come with the model."""
        self._take_header(state["header"])
        self.base, self._owed = self.held.numbers_of(state["base"]), self.held.numbers_of(state["owed"])

    def begin_anew(self) -> None:
        """Start at the syncer as it is now, which may be another than the one that a checkpoint knew."""
        self.session = self.sequence = 0
        self.over = False
        self._owed.zero_()

    def leave(self) -> None:
        """This process speaks for the group no more; the group has finished if it is over."""
        if self._connections is not None:
            if self.over:
                self._connections.leave()
            else:
                self._connections.close()

    def facts(self) -> dict[str, Any]:
        """Versions, groups and staleness, by the first shard's count."""
        return vars(self._connected().facts())

    @property
    def _last_reply(self) -> LeaseReply:
        reply = self._connected().last_reply
        assert reply is not None, "asked before the first lease"
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
        """Keep what the syncer did not see; every rank of the group computes it by itself and gets the same."""
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
