"""One rank of a group of which some ranks hold their model in shards; writes what it saw as JSON."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

from paceline import Settings, join, shard_mesh
from paceline.errors import PacelineError
from paceline.runtime import Timeouts

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PATIENT = Timeouts(heartbeat_interval=0.2, heartbeat_timeout=120.0, join=300.0, settle=0.05)
"""A closed connection tells of a killed rank at once; on a busy machine a rank may be silent for long."""


def network() -> nn.Sequential:
    """Rows that do not divide by two or three, and a vector of one number."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 1), nn.Linear(1, 1)]
    return nn.Sequential(*layers).double()


def whole(model: nn.Module) -> list[torch.Tensor]:
    """All parameters, whatever this rank holds."""
    return [getattr(one.detach(), "full_tensor", one.detach)() for one in model.parameters()]


def train(options: dict[str, Any]) -> dict[str, Any]:
    """Some steps; the parameters afterwards."""
    model, units = network(), options.get("units")
    if units:
        if "store" in options:
            dist.init_process_group("gloo", init_method=f"file://{options['store']}", rank=RANK, world_size=SIZE)
        mesh = shard_mesh(units)
        if mesh is not None:
            for layer in model:
                if next(layer.parameters(), None) is not None:
                    fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(100, 6, generator=generator, dtype=torch.float64)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    if options.get("optimizer") == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    settings = Settings(
        clip=options.get("clip"),
        timeouts=PATIENT,
        checkpoint=Path(options["checkpoint"]) if "checkpoint" in options else None,
        checkpoint_every=4,
    )
    seen: list[list[Any]] = []
    with join(model, optimizer, data, global_batch=options.get("batch", 24), settings=settings) as pace:
        for batch in pace.batches(steps=options["steps"]):
            if pace.position.step == options.get("die_at") and options["dies"] == RANK:
                os.kill(os.getpid(), signal.SIGKILL)
            position = pace.position
            if pace.step((model(batch.inputs) - batch.targets).square().mean()):
                seen.append([position.step, position.epoch, [int(index) for index in batch.indices]])
        views = pace.views
        held = sum(getattr(one, "_local_tensor", one).numel() for one in model.parameters())
        found = torch.cat([tensor.flatten() for tensor in whole(model)])
    return {
        "parameters": found.tolist(),
        "hash": hashlib.sha256(found.numpy().tobytes()).hexdigest(),
        "held": held,
        "views": [size for _, size, _ in views],
        "seen": seen,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        found = train(json.loads(sys.argv[2]))
    except PacelineError as error:
        found = {"error": error.message, "hint": error.hint, "kind": type(error).__name__}
    Path(sys.argv[3]).write_text(json.dumps(found), encoding="utf-8")
    os._exit(0)
