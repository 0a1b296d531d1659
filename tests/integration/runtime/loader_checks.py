"""Checks of loaders in one process with torch; prints what each one found as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections import namedtuple
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from paceline.errors import PacelineError
from paceline.runtime import Settings
from paceline.runtime.data.batches import InLoop, as_batch
from paceline.runtime.data.feed import source_of
from paceline.runtime.data.loader import LoaderSource, RankSampler
from paceline.runtime.samples import Attempt

Named = namedtuple("Named", ["first", "second", "third"])


class Numbers(Dataset[int]):
    """Ten numbers, each after a while."""

    def __init__(self, seconds: float = 0.0, count: int = 10) -> None:
        self.seconds, self.count = seconds, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds)
        return index


class Endless(IterableDataset[int]):
    """Samples without numbers."""

    def __iter__(self) -> Any:
        return iter(())


def refused() -> dict[str, str]:
    """What is said about loaders that choose samples themselves."""
    attempts: dict[str, Any] = {
        "loader": (DataLoader(Numbers()), Settings()),
        "own_sampler": (lambda sampler: DataLoader(Numbers(), batch_size=2), Settings()),
        "own_batch": (lambda sampler: DataLoader(Numbers(), sampler=sampler, batch_size=2), Settings()),
        "a_class": (Numbers, Settings()),
        "iterable": (lambda sampler: DataLoader(Endless()), Settings()),
        "no_loader": (lambda sampler: [1], Settings()),
        "out_of_order": (lambda sampler: DataLoader(Numbers(), batch_sampler=sampler, in_order=False), Settings()),
        "two_collates": (lambda sampler: DataLoader(Numbers(), batch_sampler=sampler), Settings(collate=list)),
        "empty": (lambda sampler: DataLoader(Numbers(count=0), batch_sampler=sampler), Settings()),
    }
    said = {}
    for name, (data, settings) in attempts.items():
        try:
            source_of(data, settings)
            said[name] = "accepted"
        except PacelineError as error:
            said[name] = str(error)
    return said


def loaded_by(dataset: Numbers) -> LoaderSource:
    """By two workers."""
    sampler = RankSampler()
    return LoaderSource(DataLoader(dataset, batch_sampler=sampler, num_workers=2), sampler)  # type: ignore[arg-type]


def dropped() -> list[list[int]]:
    """Batches that were taken, before and after all others were not wanted any more, and after a pause."""
    source = loaded_by(Numbers())
    taken = []

    def take(*lists: list[int], only: int | None = None) -> None:
        for indices in lists:
            source.expect(np.array(indices))
        taken.extend(source.take().content.tolist() for _ in lists[:only])

    take([0, 1], [2], [3, 4], [5, 6], [7], only=2)
    source.forget()
    take([7, 8], [9])
    take([3, 4], [5])  # the loader has run dry
    source.close()
    return taken


def contents() -> dict[str, list[str]]:
    """Types of inputs and targets."""
    one = torch.zeros(2)
    made = {"pair": [one, one], "named": Named(one, one, one), "table": {"a": one}}
    batches = {name: as_batch(content, np.arange(2), torch.device("cpu")) for name, content in made.items()}
    return {name: [type(batch.inputs).__name__, type(batch.targets).__name__] for name, batch in batches.items()}


def work() -> list[tuple[float, float]]:
    """Seconds between two batches of two samples, and waited for one, with two workers and in the loop."""
    loader = loaded_by(Numbers(0.05))
    seconds = []
    for source in (loader, InLoop(Numbers(0.05), None)):
        source.expect(np.arange(2))
        loaded = source.take()
        seconds.append((loaded.work, loaded.waited))
        source.close()
    return seconds


def costs() -> list[float]:
    """Of a step of four seconds: one waited for a loader that is hidden, for a slow one; two without workers."""

    def cost(**more: Any) -> float:
        return Attempt(1, (1,), [], began=0.0, **more).cost

    hidden = cost(compute=4.0, waited=1.0, loading=2.0, beside=True)
    slow = cost(compute=4.0, waited=1.0, loading=5.0, beside=True)
    return [hidden, slow, cost(compute=2.0, waited=1.0, loading=5.0)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    checks = (refused, dropped, contents, work, costs)
    sys.stdout.write(json.dumps({check.__name__: check() for check in checks}))
