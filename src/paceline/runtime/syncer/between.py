"""A group's view of the other groups: leases of samples, rounds of local steps, progress since the last exchange.

Its state is shared inside the group like the model's, so that whichever rank leads next can repeat an exchange that was
under way; the syncer recognises it by its sequence number.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from paceline.errors import InputError
from paceline.runtime.syncer.client import LeftBehind, SyncerClient, as_received
from paceline.runtime.syncer.packing import Packing

__all__ = ["Between", "Membership", "membership"]

log = logging.getLogger("paceline.runtime")


@dataclass(frozen=True)
class Membership:
    """Which group this process is in, and where the syncer is."""

    group: str
    places: tuple[tuple[str, int], ...]
    secret: bytes
    local_steps: int
    share: float
    """Of the global batch that this group takes."""


def membership(env: Mapping[str, str] = os.environ) -> Membership | None:
    """From the launcher's variables; None if there is one group only."""
    if "PACELINE_SYNCER" not in env:
        return None
    places = []
    for text in env["PACELINE_SYNCER"].split(","):
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit():
            raise InputError(f"PACELINE_SYNCER holds {text!r}, expected host:port")
        places.append((host, int(port)))
    return Membership(
        group=env["PACELINE_GROUP"],
        places=tuple(places),
        secret=env["PACELINE_SYNCER_SECRET"].encode(),
        local_steps=int(env.get("PACELINE_LOCAL_STEPS", "1")),
        share=float(env.get("PACELINE_GROUP_SHARE", "1.0")),
    )


class Between:
    """What a group knows about its exchanges; every rank of the group holds the same."""

    def __init__(self, where: Membership, model: nn.Module, *, global_batch: int, compress: Packing = "none") -> None:
        self.where, self._packing = where, compress
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if any(parameter.dtype != torch.float32 for parameter in self._parameters):
            raise InputError("groups exchange float32 parameters only", hint="use one group for other types")
        self.batch = max(1, round(global_batch * where.share))
        self._client: SyncerClient | None = None
        self.sequence = 0
        self.versions: list[int] = [0] * len(where.places)
        self.base = torch.zeros(sum(parameter.numel() for parameter in self._parameters))
        self._owed = torch.zeros_like(self.base)
        """What packing has kept back of earlier progress."""
        self.epoch = self.begin = self.end = 0
        self.over = False
        self.local_steps = where.local_steps
        self.told: Any = None
        """What this group says of itself with every exchange."""
        self.seconds = 0.0
        """Of the last exchange, without waiting for other groups."""

    @property
    def news(self) -> dict[str, Any]:
        """What the syncer told the rank that speaks for the group."""
        return self._connected().news

    def news_of_end(self) -> dict[str, Any] | None:
        """Where all groups meet as one and how many ranks those are; None if training is over, or on a listener."""
        meet = self.news.get("meet") if self._client is not None else None
        if meet is None:
            return None
        told = [group for group in self.news["told"].values() if group]
        return {"meet": tuple(meet), "size": sum(group["size"] for group in told)}

    def retune(self, *, local_steps: int, quorum: int, meet: tuple[str, int] | None) -> None:
        """Tell all groups how to go on; with `meet`, as one group that meets there."""
        self._connected().retune(local_steps=local_steps, quorum=quorum, meet=meet)

    def exchange(self, *, num_samples: int, epochs: int, begin: tuple[int, int] = (0, 0)) -> None:
        """Hand in progress, take the common parameters and the next samples; on the rank that speaks for the group."""
        client, began = self._connected(), time.perf_counter()
        number = self.sequence + 1
        if self.sequence == 0:
            mine = parameters_to_vector(self._parameters).detach()
            theta, self.versions = client.start(mine.numpy(), num_samples=num_samples, epochs=epochs, begin=begin)
        else:
            try:
                theta, self.versions = self._hand_in(client)
                self._settle()
            except LeftBehind:
                log.warning("this group was taken for dead; others do the samples that it had")
                theta, self.versions = client.come_back()
                number = self.sequence
        self.seconds = time.perf_counter() - began - client.waited
        self._take(torch.from_numpy(theta.copy()))
        lease = client.lease(number, self.batch * self.local_steps, self.told)
        self.sequence = number
        self.over = lease is None
        if lease is not None:
            self.epoch, self.begin, self.end = lease.epoch, lease.begin, lease.end
            self.local_steps = int(client.news.get("local_steps") or self.local_steps)
            return
        # Nobody trains any more, so these are the last common parameters, the same for all groups.
        theta, self.versions = client.common()
        self._take(torch.from_numpy(theta.copy()))
        self.epoch, self.begin = client.news["at"]
        self.end = self.begin

    def _hand_in(self, client: SyncerClient) -> tuple[np.ndarray, list[int]]:
        return client.exchange(
            self._progress().numpy(),
            sequence=self.sequence,
            versions=self.versions,
            samples=self.end - self.begin,
            packing=self._packing,
        )

    def take_turn(self, *, speaks: bool) -> None:
        """Who speaks for the group gives the syncer signs of life between exchanges, nobody else does."""
        if speaks and self.sequence > 0:
            self._connected()
        elif not speaks and self._client is not None:
            self._client.close()
            self._client = None

    def _progress(self) -> Tensor:
        return self.base - parameters_to_vector(self._parameters).detach() + self._owed

    def _settle(self) -> None:
        """Keep what the syncer did not see; every rank of the group works it out by itself and finds the same."""
        if self._packing != "none":
            progress = self._progress()
            seen = as_received(progress.numpy(), len(self.where.places), self._packing)
            self._owed = progress - torch.from_numpy(seen)

    def header(self) -> Tensor:
        """What the other ranks of the group must know, as numbers."""
        numbers = [self.sequence, self.epoch, self.begin, self.end, int(self.over), *self.versions]
        return torch.tensor(numbers, dtype=torch.int64)

    def follow(self, header: Tensor, theta: Tensor) -> None:
        """Take what the speaking rank learnt; progress of a group that was left behind counts for nothing."""
        if 0 < self.sequence < int(header[0]):
            self._settle()
        self.sequence, self.epoch, self.begin, self.end, over, *self.versions = header.tolist()
        self.over = bool(over)
        self._take(theta)

    def state_dict(self) -> dict[str, Any]:
        """For ranks of this group that come late, and for checkpoints."""
        return {"base": self.base, "owed": self._owed, "header": self.header()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become what another rank of the group is; the parameters come with the model."""
        header = state["header"].tolist()
        self.sequence, self.epoch, self.begin, self.end, over, *self.versions = header
        self.over, self.base, self._owed = bool(over), state["base"].clone(), state["owed"].clone()

    def leave(self) -> None:
        """This process speaks for the group no more; the group has finished if it is over."""
        if self._client is not None:
            if self.over:
                self._client.leave()
            else:
                self._client.close()

    def facts(self) -> dict[str, Any]:
        """What the syncer says."""
        return self._connected().facts()

    def _connected(self) -> SyncerClient:
        if self._client is None:
            self._client = SyncerClient(self.where.places, self.where.secret, group=self.where.group)
        return self._client

    def _take(self, theta: Tensor) -> None:
        self.base = theta.clone()
        with torch.no_grad():
            vector_to_parameters(theta, self._parameters)
