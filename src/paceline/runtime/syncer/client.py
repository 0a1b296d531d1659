"""A group's side of the syncer: progress goes to all shards at once, common parameters come back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from paceline.errors import TrainingLost
from paceline.runtime.members.channel import Channel, Message, call
from paceline.runtime.syncer.beats import Beats
from paceline.runtime.syncer.leases import Lease
from paceline.runtime.syncer.packing import Packing, pack_numbers, unpack_numbers

__all__ = ["LeftBehind", "SyncerClient", "as_received"]

RETRY = 0.1
POLL = 0.1


class LeftBehind(Exception):
    """This group was taken for dead: its samples were given to others, so its progress must not count."""


class SyncerClient:
    """Connections to every shard, made anew when a shard comes back."""

    def __init__(self, places: Sequence[tuple[str, int]], secret: bytes, *, group: str, patience: float = 60.0) -> None:
        self._places, self._secret, self._group, self._patience = list(places), secret, group, patience
        self._channels: dict[int, Channel] = {}
        self.waited = 0.0
        """Seconds of the last exchange that were spent waiting for other groups."""
        self.news: dict[str, Any] = {}
        """What the syncer said with the last lease."""
        self._pool = ThreadPoolExecutor(max_workers=len(places), thread_name_prefix="paceline-syncer")
        self._beats = Beats(self._places, secret, group=group, cut_off=self._hang_up)

    def start(
        self, theta: np.ndarray, *, num_samples: int, epochs: int, begin: tuple[int, int] = (0, 0)
    ) -> tuple[np.ndarray, list[int]]:
        """Offer parameters and say what there is to train on; the common parameters and their versions come back."""
        message = {"kind": "start", "num_samples": num_samples, "epochs": epochs, "begin": begin}
        return self._all(message, np.array_split(theta, len(self._places)))

    def common(self) -> tuple[np.ndarray, list[int]]:
        """The common parameters and their versions, as of now."""
        return self._all({"kind": "theta"}, [np.zeros(0, dtype=np.float32)] * len(self._places))

    def retune(self, *, local_steps: int, quorum: int, meet: tuple[str, int] | None) -> None:
        """Tell all shards, and through them all groups, how to go on; with `meet` as one group that meets there."""
        for index in range(len(self._places)):
            self._ask(index, {"kind": "retune", "local_steps": local_steps, "quorum": quorum, "meet": meet})

    def exchange(
        self,
        progress: np.ndarray,
        *,
        sequence: int,
        versions: Sequence[int],
        samples: int,
        packing: Packing = "none",
    ) -> tuple[np.ndarray, list[int]]:
        """Hand in progress since some versions; the common parameters and their versions come back.

        Raises LeftBehind if this group was taken for dead meanwhile.
        """
        if self._beats.doubtful:
            self._beats.doubtful = False
            if not self._ask(0, {"kind": "counts"})["counts"]:
                raise LeftBehind
        message = {"kind": "push", "sequence": sequence, "samples": samples, "packing": packing}
        bases = [{"base": version} for version in versions]
        return self._all(message, np.array_split(progress, len(self._places)), bases)

    def come_back(self) -> tuple[np.ndarray, list[int]]:
        """Take part again after having been left behind; the common parameters and their versions, as of now."""
        self._tell_all("busy")
        return self.common()

    def lease(self, sequence: int, size: int, told: Any = None) -> Lease | None:
        """The next samples, or None when all are done; while others still work on the last ones, wait aside."""
        aside = False
        while True:
            reply = self._ask(0, {"kind": "lease", "sequence": sequence, "size": size, "told": told})
            lease, self.news = reply["lease"], reply["news"]
            if lease is not None or not reply["others"]:
                if aside and lease is not None:
                    self._beats.busy = True
                    self._tell_all("busy")
                return Lease(**lease) if lease is not None else None
            if not aside:
                aside, self._beats.busy = True, False
                self._tell_all("idle")
            time.sleep(POLL)

    def leave(self) -> None:
        """This group takes part no more."""
        self._beats.stop()
        self._tell_all("leave")
        self.close()

    def facts(self) -> dict[str, Any]:
        """What the first shard says about versions and staleness."""
        return self._ask(0, {"kind": "facts"})

    def close(self) -> None:
        """Hang up."""
        self._beats.stop()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self._pool.shutdown(wait=False)

    def _tell_all(self, kind: str) -> None:
        for index in range(len(self._places)):
            self._ask(index, {"kind": kind})

    def _all(
        self, message: Message, parts: list[np.ndarray], extra: Sequence[Message] | None = None
    ) -> tuple[np.ndarray, list[int]]:
        more, packing = extra or [{}] * len(parts), message.get("packing", "none")
        asked = [
            self._pool.submit(self._ask, index, {**message, **more[index]}, pack_numbers(part, packing))
            for index, part in enumerate(parts)
        ]
        replies = [future.result() for future in asked]
        if any(reply["kind"] == "gone" for reply in replies):
            raise LeftBehind
        self.waited = max(float(reply.get("waited", 0.0)) for reply in replies)
        theta = np.concatenate([unpack_numbers(reply["data"], reply["packing"]) for reply in replies])
        return theta, [int(reply["version"]) for reply in replies]

    def _ask(self, index: int, message: Message, payload: bytes = b"") -> Message:
        """Ask one shard until it answers; what it has done already it does not do twice."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                channel = self._channel(index)
                channel.send({**message, "group": self._group}, payload)
                reply = channel.receive()
                if "payload" in reply:
                    reply["data"] = channel.receive_payload(reply)
                return reply
            except OSError as error:
                self._hang_up(index)
                self._beats.doubtful = True
                if time.monotonic() > deadline:
                    place = self._places[index]
                    raise TrainingLost(f"the syncer at {place[0]}:{place[1]} does not answer: {error}") from error
                time.sleep(RETRY)

    def _hang_up(self, index: int) -> None:
        """Whoever waits for an answer of this shard asks again."""
        broken = self._channels.pop(index, None)
        if broken is not None:
            broken.close()

    def _channel(self, index: int) -> Channel:
        if index not in self._channels:
            self._channels[index] = call(*self._places[index], self._secret, timeout=5.0)
        return self._channels[index]


def as_received(progress: np.ndarray, shards: int, packing: Packing) -> np.ndarray:
    """Progress as the shards will see it."""
    parts = np.array_split(progress, shards)
    return np.concatenate([unpack_numbers(pack_numbers(part, packing), packing) for part in parts])
