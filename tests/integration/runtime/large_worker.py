"""One rank that tries the parts for large batches; prints what it saw as JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from large_worker_facts import BIAS, DIMENSIONS, GRADIENTS, SIGMA, WEIGHTS
from torch import nn
from torch.optim import SGD, AdamW
from torch.utils.data import TensorDataset

from paceline.errors import InputError
from paceline.runtime import Settings, join
from paceline.runtime.group.balance import Balance
from paceline.runtime.large.recipe import LargeBatch


def two_steps(kind: type[torch.optim.Optimizer], layerwise: Any, scale: float = 1.0, **options: Any) -> Any:
    """A matrix and a vector after two updates with known gradients."""
    weights = nn.Parameter(torch.tensor(WEIGHTS, dtype=torch.float64))
    bias = nn.Parameter(torch.tensor(BIAS, dtype=torch.float64))
    optimizer = kind([weights, bias], **options)
    recipe = LargeBatch(1, 0, layerwise, trust=0.02)
    for of_weights, of_bias in GRADIENTS:
        weights.grad = scale * torch.tensor(of_weights, dtype=torch.float64)
        bias.grad = scale * torch.tensor(of_bias, dtype=torch.float64)
        with recipe.applied([optimizer], 0.5):
            optimizer.step()
    return [weights.detach().flatten().tolist(), bias.detach().tolist()]


def steps() -> list[float]:
    """How far a parameter whose gradient is one moves in each step, and the rate that is left."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer, moved = torch.optim.SGD(model.parameters(), lr=0.1), []
    settings = Settings.large_batch(16, warmup=4, noise=False)  # these gradients have none
    with join(model, optimizer, TensorDataset(torch.ones(640, 1)), global_batch=64, settings=settings) as pace:
        for batch in pace.batches(steps=6):
            before = model.weight.item()
            pace.step(model(batch.inputs).mean())
            moved.append(before - model.weight.item())
    return [*moved, optimizer.param_groups[0]["lr"]]


def refused() -> str:
    """What LAMB on SGD is told."""
    model = nn.Linear(1, 1)
    settings = Settings.large_batch(16, layerwise="lamb")
    try:
        join(model, torch.optim.SGD(model.parameters(), lr=0.1), [1, 2], global_batch=2, settings=settings)
    except InputError as error:
        return str(error)
    return ""


def noise(shares: tuple[int, int]) -> float | None:
    """The noise scale of samples around a mean: each one's gradient is the negative sample."""
    Balance.shares = lambda self, total: shares  # type: ignore[method-assign]
    torch.manual_seed(3)
    data = torch.full((DIMENSIONS,), 0.5) + SIGMA * torch.randn(6400, DIMENSIONS)
    model = nn.Linear(1, DIMENSIONS, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    settings = Settings(noise=True, balance=False)
    with join(model, optimizer, TensorDataset(data), global_batch=64, settings=settings) as pace:
        for batch in pace.batches(epochs=3):
            ones = torch.ones(len(batch.inputs), 1)
            pace.step((0.5 * (model(ones) - batch.inputs).square().sum(1)).mean())
        return pace.noise_scale


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {
        "lars": two_steps(SGD, "lars", lr=1.0, momentum=0.9, weight_decay=0.1),
        "lamb": two_steps(AdamW, "lamb", lr=0.2, weight_decay=0.1, eps=1e-6),
        "lars_of_larger": two_steps(SGD, "lars", 1000.0, lr=1.0, momentum=0.9),
        "lars_of_smaller": two_steps(SGD, "lars", 1.0, lr=1.0, momentum=0.9),
        "steps": steps(),
        "refused": refused(),
        "noise": noise((56, 8)),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)
