"""One rank that trains from a DataLoader with workers; writes the samples of every committed step."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from paceline.runtime import Settings, ShardedSamples, Timeouts, join
from paceline.runtime.group.balance import Balance

RANK = int(os.environ["RANK"])
QUICK = Timeouts(heartbeat_interval=0.1, heartbeat_timeout=20.0, join=60.0, settle=0.05)


class Numbered(Dataset[Any]):
    """Samples that say which they are."""

    def __len__(self) -> int:
        return 90

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), index / 90), "number": torch.tensor(index)}


def read(shard: str) -> Iterator[int]:
    """Like a file: from its beginning on."""
    begin, end = map(int, shard.split("-"))
    yield from range(begin, end)


SHARDS = ShardedSamples({"0-40": 40, "40-47": 7, "47-47": 0, "47-90": 43}, read, Numbered().__getitem__)


def change_shares() -> None:
    """Another split after every step, the same on all ranks; sometimes a rank has nothing."""

    def learn(self: Any, shares: Any, seconds: Any) -> None:
        self.steps = getattr(self, "steps", 0) + 1

    def shares(self: Any, total: int) -> tuple[int, ...]:
        first = total if len(self._ids) == 1 else (getattr(self, "steps", 0) * 11 + 7) % (total + 1)
        return (first, total - first)[: len(self._ids)]

    Balance.learn, Balance.shares = learn, shares  # type: ignore[method-assign]


def loaders(sampler: Any, *, stream: bool = False) -> DataLoader[Any]:
    """A rank prefetches as deep as its number says."""
    more = {"num_workers": 1, "prefetch_factor": 1 + RANK, "persistent_workers": bool(RANK)}
    return DataLoader(SHARDS if stream else Numbered(), batch_sampler=sampler, **more)  # type: ignore[arg-type]


def train(options: dict[str, Any], progress: Any) -> None:
    """Until the epochs are done, or as told."""
    change_shares()
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpoint = Path(options["checkpoint"]) if "checkpoint" in options else None
    settings = Settings(timeouts=QUICK, checkpoint=checkpoint, checkpoint_every=1, chunk=options.get("chunk"))
    made = functools.partial(loaders, stream=options.get("stream", False))
    with join(model, optimizer, made, global_batch=20, settings=settings) as pace:
        numbers: list[int] = []
        for batch in pace.batches(epochs=2, steps=options.get("leave")):
            if [RANK, pace.position.step] == options.get("kill"):
                os.kill(os.getpid(), signal.SIGKILL)
            epoch, views = pace.position.epoch, len(pace.views)
            numbers += batch.inputs["number"].tolist() if len(batch.indices) else []
            assert sorted(numbers[-len(batch.indices) :]) == sorted(batch.indices) or not len(batch.indices)
            if pace.step(model(batch.inputs["x"]).square().mean()):
                progress.write(json.dumps({"step": pace.position.step, "epoch": epoch, "samples": numbers}) + "\n")
                progress.flush()
                numbers = []
                if pace.position.step == options.get("breaks"):
                    break
            elif len(pace.views) != views:
                numbers = []


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Path(sys.argv[3]).with_suffix(".steps").open("a") as file:
        train(json.loads(sys.argv[2]), file)
    Path(sys.argv[3]).write_text("{}")
    os._exit(0)
