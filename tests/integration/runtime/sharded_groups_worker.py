"""One rank of a group that may hold its model in shards and exchanges with others; writes what it saw as JSON.

The arithmetic is exact in float32: weights, inputs and targets are whole numbers, a gradient is a sum of signs times
inputs, and the rate is a power of two. Parameters then do not depend on the order of sums.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

from paceline import Settings, join, shard_mesh
from paceline.errors import PacelineError
from paceline.runtime import Timeouts

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SAMPLES, RATE = 128, 2.0**-8
PATIENT = Timeouts(heartbeat_interval=0.2, heartbeat_timeout=120.0, join=300.0, settle=0.05)


class Sum(nn.Module):
    """Two layers beside each other, of a number of rows that does not divide by two."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(6, 5, bias=False)
        for number, parameter in enumerate(self.parameters()):
            whole = torch.arange(parameter.numel(), dtype=torch.float32).view_as(parameter)
            parameter.data = (whole * (7 + number)) % 5 - 2

    def forward(self, inputs: Tensor) -> Tensor:
        """One answer for each row."""
        return self.first(inputs) + self.second(inputs.square())


def dataset() -> TensorDataset:
    """Whole numbers."""
    sample, column = torch.arange(SAMPLES)[:, None], torch.arange(6)
    inputs = (sample * 7 + column * 3 + sample * column) % 5 - 2
    targets = (sample * 11 + column[:5] * 5 + sample * column[:5] * 3) % 41 - 20
    return TensorDataset(inputs.float(), targets.float())


def shard(model: nn.Module, options: dict[str, Any]) -> None:
    """As FSDP2 does it, if this rank is not alone in its unit."""
    if not options.get("units"):
        return
    dist.init_process_group("gloo", init_method=f"file://{options['store']}", rank=RANK, world_size=SIZE)
    mesh = shard_mesh(options["units"])
    if mesh is not None:
        for layer in model.children():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)


def meet_other(options: dict[str, Any], step: int) -> None:
    """One job says by a file that it trains, and another one waits for that at a step."""
    if "says" in options:
        Path(options["says"]).touch()
    while "waits_for" in options and step == options["waits_at"] and not Path(options["waits_for"]).exists():
        time.sleep(0.05)


def train(options: dict[str, Any], result: Path) -> dict[str, Any]:
    """All epochs; the parameters afterwards."""
    model = Sum()
    shard(model, options)
    settings = Settings(
        reduction="sum",
        balance=False,
        compress=options.get("compress", "none"),
        timeouts=PATIENT,
        checkpoint=Path(options["checkpoint"]) if "checkpoint" in options else None,
        checkpoint_every=options.get("every", 1000),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    steps = result.with_suffix(".steps").open("a")
    with join(model, optimizer, dataset(), global_batch=32, settings=settings) as pace:
        for batch in pace.batches(epochs=options["epochs"]):
            position = pace.position
            if options.get("dies") == RANK and position.step == options["die_at"]:
                os.kill(os.getpid(), signal.SIGKILL)
            meet_other(options, position.step)
            if pace.step((model(batch.inputs) - batch.targets).abs().sum()):
                samples = [int(index) for index in batch.indices]
                steps.write(json.dumps({"epoch": position.epoch, "samples": samples}) + "\n")
                steps.flush()
        held = sum(getattr(one, "_local_tensor", one).numel() for one in model.parameters())
        whole = [getattr(one.detach(), "full_tensor", one.detach)() for one in model.parameters()]
        views, facts = pace.views, pace.syncer_facts() if pace.rank == 0 else {}
    found = torch.cat([tensor.flatten() for tensor in whole])
    return {
        "parameters": found.tolist(),
        "hash": hashlib.sha256(found.numpy().tobytes()).hexdigest(),
        "held": held,
        "views": [size for _, size, _ in views],
        **facts,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        found = train(json.loads(sys.argv[2]), Path(sys.argv[3]))
    except PacelineError as error:
        found = {"error": error.message, "hint": error.hint, "kind": type(error).__name__}
    Path(sys.argv[3]).write_text(json.dumps(found), encoding="utf-8")
    os._exit(0)
