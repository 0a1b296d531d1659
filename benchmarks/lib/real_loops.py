"""A small convolutional network trained for real, by Paceline's loop or DistributedDataParallel's; one rank of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

__all__ = ["captured", "parts", "trained"]


def trained(way: str, *, batch: int, steps: int, hidden: tuple[int, ...] = ()) -> list[float]:
    """The moments at which the steps ended."""
    loop = {"paceline": _by_paceline, "ddp": _by_ddp}[way]
    return loop(*parts(batch, hidden), batch=batch, steps=steps)


def captured(path: Path, *, batch: int, steps: int) -> None:
    """Write a profile of the loop in one process."""
    import paceline

    model, optimizer, images, labels = parts(batch, ())
    with paceline.capture(model, optimizer, path=path, name="own-cnn", quiet=True):
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            cross_entropy(model(images[:batch]), labels[:batch]).backward()
            optimizer.step()


def parts(batch: int, hidden: tuple[int, ...]) -> tuple[nn.Module, Any, Any, Any]:
    """Model, optimizer, images and labels."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = _network(hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return model, optimizer, torch.randn(4 * batch, 3, 32, 32), torch.randint(10, (4 * batch,))


def _network(hidden: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.GroupNorm(8, outputs), nn.ReLU()]
    layers.append(nn.Flatten())
    for inputs, outputs in zip((512, *hidden), hidden, strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear((512, *hidden)[-1], 10))


def _by_paceline(model: nn.Module, optimizer: Any, images: Any, labels: Any, *, batch: int, steps: int) -> list[float]:
    """Five lines of a user's loop, no number about the devices."""
    from paceline.runtime import join

    ends = []
    with join(model, optimizer, TensorDataset(images, labels), global_batch=batch) as pace:
        for part in pace.batches(epochs=-(-steps * batch // len(images))):  # several groups count epochs
            pace.step(cross_entropy(model(part.inputs), part.targets))
            ends.append(time.perf_counter())
    return ends[:steps]


def _by_ddp(model: nn.Module, optimizer: Any, images: Any, labels: Any, *, batch: int, steps: int) -> list[float]:
    """Equal batches, as its documentation teaches it."""
    dist.init_process_group("gloo")
    wrapped = DistributedDataParallel(model)
    ends = []
    for _ in range(steps):
        chosen = torch.randint(len(images), (batch // dist.get_world_size(),))
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(wrapped(images[chosen]), labels[chosen]).backward()
        optimizer.step()
        ends.append(time.perf_counter())
    dist.barrier()
    return ends
