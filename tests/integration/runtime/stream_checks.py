"""Ranks that read streams, as threads of one process, while a chance decides who fails and when."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import torch

from paceline.runtime import Settings, ShardStreams
from paceline.runtime.data.streamfeed import StreamFeed
from paceline.runtime.data.streams import StreamReader
from paceline.runtime.group.wire import Broken
from paceline.runtime.samples import Position


class Wires:
    """Sums over threads; all of them fail at one of the sums."""

    def __init__(self, size: int, *, fails_at: int) -> None:
        self._barrier, self._lock = threading.Barrier(size), threading.Lock()
        self._sums: dict[int, torch.Tensor] = {}
        self._fails_at = fails_at

    def of_one(self) -> Any:
        """The wire of one rank."""
        calls = iter(range(10_000))

        def start(tensor: torch.Tensor) -> Callable[[], None]:
            return lambda: self._sum(next(calls), tensor)

        return SimpleNamespace(all_reduce_promptly=start)

    def _sum(self, call: int, tensor: torch.Tensor) -> None:
        if call == self._fails_at:
            raise Broken("somebody failed")
        with self._lock:
            self._sums[call] = self._sums[call] + tensor if call in self._sums else tensor.clone()
        self._barrier.wait(10)
        tensor.copy_(self._sums[call])


def as_read(samples: list[int]) -> dict[str, list[int]]:
    """A collate function."""
    return {"samples": samples}


class Rank:
    """One rank: its reader, its feed, how far it is."""

    def __init__(self, name: str, job: Job) -> None:
        self.name, self.position = name, Position()
        self.reader = StreamReader(ShardStreams(range(len(job.lengths)), job.read), None, as_read, seed=job.seed)
        self.reader.workers = job.workers  # how many shards it holds; all are read in this thread
        self.feed = StreamFeed(self.reader, Settings(chunk=2), torch.device("cpu"), global_batch=job.batch)


class Job:
    """Until two epochs are done."""

    def __init__(self, seed: int) -> None:
        self.seed, self.chance = seed, random.Random(seed)
        self.lengths = [self.chance.choice((0, 1, 2, 5, 9, 14)) for _ in range(self.chance.randint(1, 9))] + [3]
        self.batch, self.workers = self.chance.randint(1, 9), self.chance.randint(0, 3)
        self.used: Counter[tuple[int, int, int]] = Counter()
        self.names = iter(f"rank-{number}" for number in range(10_000))
        self.ranks = [Rank(next(self.names), self) for _ in range(self.chance.randint(1, 4))]

    def read(self, shard: int) -> Iterator[int]:
        """So many samples."""
        return iter(range(self.lengths[shard]))

    def run(self) -> None:
        """View after view."""
        while self.ranks[0].position.epoch < 2:
            self.view(breaks=self.chance.random() < 0.7, size=len(self.ranks))
            # One that is ahead stays: a step that only the dead have committed was never taken.
            ahead = max(self.ranks, key=lambda rank: rank.position.step)
            others = [rank for rank in self.ranks if rank is not ahead]
            if others and self.chance.random() < 0.4:
                self.ranks.remove(self.chance.choice(others))
            if len(self.ranks) < 4 and self.chance.random() < 0.4:
                self.ranks.append(Rank(next(self.names), self))
            for rank in self.ranks:
                if rank.position != ahead.position:
                    rank.feed.progress.load_state_dict(ahead.feed.progress.state_dict())
                    rank.position = ahead.position

    def view(self, *, breaks: bool, size: int) -> None:
        """Steps until the view breaks: in the agreement, or between it and the commits of some ranks."""
        wires = Wires(size, fails_at=self.chance.randint(0, 12) if breaks else -1)
        peers = tuple(SimpleNamespace(id=rank.name) for rank in self.ranks)
        shares = [self.chance.randint(0, self.batch) for _ in range(size - 1)]
        bounds = sorted([0, *shares, self.batch])
        split = tuple(end - begin for begin, end in itertools.pairwise(bounds))
        splits = [
            SimpleNamespace(rank=i, peers=peers, wire=wires.of_one(), balance=SimpleNamespace(decide=lambda _: split))
            for i in range(size)
        ]
        with ThreadPoolExecutor(size) as pool:
            for _ in range(self.chance.randint(1, 8)):
                if self.ranks[0].position.epoch == 2:
                    return
                try:
                    attempts = list(pool.map(attempt_of, self.ranks, splits))
                except Broken:
                    return
                self.commit(attempts)
                if len({rank.position for rank in self.ranks}) > 1:
                    return

    def commit(self, attempts: list[Any]) -> None:
        """On all ranks, on some, or on none."""
        sizes = [one.size for one in attempts]
        assert sizes == [sum(sum(map(len, one.chunks)) for one in attempts)] * len(attempts)
        assert len({one.after for one in attempts}) == 1
        committing = [rank for rank in self.ranks if self.chance.random() < 0.95]
        for rank, one in zip(self.ranks, attempts, strict=True):
            contents = [part for batch in rank.feed.batches(one) for part in batch.inputs["samples"]][
                : sum(map(len, one.chunks))
            ]
            assert contents == [int(place) for chunk in one.chunks for _, place in chunk]
            if committing:
                epoch = max(rank.position.epoch for rank in self.ranks)
                self.used.update((epoch, int(shard), int(place)) for chunk in one.chunks for shard, place in chunk)
        for rank, one in zip(self.ranks, attempts, strict=True):
            if rank in committing:
                rank.feed.commit(one)
                rank.position = one.after


def attempt_of(rank: Rank, split: Any) -> Any:
    """As the loop asks for it."""
    return rank.feed.next_attempt(None, split, rank.position, began=0.0)  # type: ignore[arg-type]


def every_sample_counts_once(seeds: range) -> None:
    """Whoever fails."""
    for seed in seeds:
        job = Job(seed)
        job.run()
        samples = [(shard, place) for shard, length in enumerate(job.lengths) for place in range(length)]
        assert job.used == {(epoch, *sample): 1 for epoch in range(2) for sample in samples}, seed


if __name__ == "__main__":
    every_sample_counts_once(range(120))
