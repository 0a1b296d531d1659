"""One rank of a group that trains a small network in float32; writes its parameters."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline.runtime import Settings, join


def parameters() -> list[float]:
    """After six epochs of five steps."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(120, 6, generator=generator)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with join(model, optimizer, data, global_batch=24, settings=Settings(balance=False)) as pace:
        for batch in pace.batches(epochs=6):
            pace.step((model(batch.inputs) - batch.targets).square().mean())
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


if __name__ == "__main__":
    torch.set_num_threads(1)
    Path(sys.argv[3]).write_text(json.dumps(parameters()), encoding="utf-8")
    os._exit(0)
