"""One rank that tries the parts for large batches; prints what it saw as JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from large_worker_facts import BIAS, DIMENSIONS, GRADIENTS, SIGMA, WEIGHTS
from torch import nn
from torch.utils.data import TensorDataset

from paceline.errors import InputError
from paceline.runtime import Settings, join
from paceline.runtime.large.optimizers import Lamb, Lars, LinearScaling


def two_steps(kind: type[torch.optim.Optimizer], scale: float = 1.0, **options: Any) -> list[list[float]]:
    """A matrix and a vector after two updates with known gradients."""
    weights = nn.Parameter(torch.tensor(WEIGHTS, dtype=torch.float64))
    bias = nn.Parameter(torch.tensor(BIAS, dtype=torch.float64))
    optimizer = kind([weights, bias], **options)
    for of_weights, of_bias in GRADIENTS:
        weights.grad = scale * torch.tensor(of_weights, dtype=torch.float64)
        bias.grad = scale * torch.tensor(of_bias, dtype=torch.float64)
        optimizer.step()
    return [weights.detach().flatten().tolist(), bias.detach().tolist()]


def rates() -> list[float]:
    """The rate of ten steps, of which five are warm-up, taken over by a late rank after the third."""
    found = []
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = LinearScaling(optimizer, global_batch=256, reference_batch=64, warmup=5)
    for step in range(10):
        if step == 3:
            late = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
            other = LinearScaling(late, global_batch=256, reference_batch=64, warmup=5)
            late.load_state_dict(optimizer.state_dict())
            other.load_state_dict(schedule.state_dict())
            optimizer, schedule = late, other
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def refused() -> str:
    """What a batch of nothing is told."""
    try:
        LinearScaling(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), global_batch=0, reference_batch=64)
    except InputError as error:
        return str(error)
    return ""


def noise() -> float | None:
    """The noise scale of samples around a mean: each one's gradient is the negative sample."""
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
        "lars": two_steps(Lars, lr=0.5, momentum=0.9, decay=0.1, trust=0.02),
        "lamb": two_steps(Lamb, lr=0.1, decay=0.1),
        "lars_of_larger": two_steps(Lars, 1000.0, lr=0.5, momentum=0.9, trust=0.02),
        "lars_of_smaller": two_steps(Lars, 1.0, lr=0.5, momentum=0.9, trust=0.02),
        "rates": rates(),
        "refused": refused(),
        "noise": noise(),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)
