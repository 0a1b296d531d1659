"""One rank that trains from streams of shards; writes the samples of every committed step."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from paceline.runtime import Settings, ShardStreams, Timeouts, join

RANK = int(os.environ["RANK"])
QUICK = Timeouts(heartbeat_interval=0.1, heartbeat_timeout=20.0, join=60.0, settle=0.05)
SHARDS = ["0-9", "9-10", "10-10", "10-31", "31-47", "47-50", "50-50", "50-66", "66-80", "80-90"]
"""Unequal, and some empty."""


def read(shard: str) -> Iterator[dict[str, torch.Tensor]]:
    """Samples that say which they are; slower where the rank is told to be."""
    begin, end = map(int, shard.split("-"))
    for number in range(begin, end):
        time.sleep(float(os.environ.get(f"SLOW_{RANK}", "0")))
        yield {"x": torch.full((4,), number / 90), "number": torch.tensor(number)}


def train(options: dict[str, Any], progress: Any) -> dict[str, Any]:
    """Until the epochs are done, or as told."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpoint = Path(options["checkpoint"]) if "checkpoint" in options else None
    settings = Settings(timeouts=QUICK, checkpoint=checkpoint, checkpoint_every=1, chunk=options.get("chunk"))
    streams, workers = ShardStreams(SHARDS[: options.get("shards")], read), options.get("workers", 2)
    marker = Path(options.get("awaits", ""))
    if "PACELINE_LATE" in os.environ:
        marker.touch()
    data: Any = (lambda _: DataLoader(streams, num_workers=workers)) if workers else streams
    with join(model, optimizer, data, global_batch=options.get("batch", 12), settings=settings) as pace:
        numbers: list[int] = []
        for batch in pace.batches(epochs=2, steps=options.get("leave")):
            if [RANK, pace.position.step] == options.get("kill"):
                os.kill(os.getpid(), signal.SIGKILL)
            while "awaits" in options and pace.position.step == 4 and not marker.exists():
                time.sleep(0.05)
            epoch, views = pace.position.epoch, len(pace.views)
            numbers += batch.inputs["number"].tolist() if len(batch.indices) else []
            pace.backward(model(batch.inputs["x"].double()).square().mean())
            time.sleep(options.get("pause", 0.0))
            if pace.update():
                record = pace.records[-1]
                line = {"step": pace.position.step, "epoch": epoch, "samples": numbers, "size": record.samples}
                progress.write(json.dumps({**line, "shares": record.shares}) + "\n")
                progress.flush()
                numbers = []
            elif len(pace.views) != views:
                numbers = []
        return {"weights": [value for tensor in model.parameters() for value in tensor.flatten().tolist()]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Path(sys.argv[3]).with_suffix(".steps").open("a") as file:
        found = train(json.loads(sys.argv[2]), file)
    Path(sys.argv[3]).write_text(json.dumps(found))
