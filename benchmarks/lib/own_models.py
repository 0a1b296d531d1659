"""Three models that are not in the catalog, as users write them: captured by one process, or trained by DDP on several.

Run by `oversubscribed.py` with the interpreter of the pytorch environment: own_models.py capture NAMES FOLDER, or
own_models.py train NAMES; rank, ranks and address come from the environment as torchrun sets them.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import paceline

SECONDS = 2.0
"""Of the timed steps of a model."""


class TinyTransformer(nn.Module):
    """Three encoder layers over tokens, whose output layer shares the weights of the embedding."""

    def __init__(self, vocabulary: int = 2000, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of every position."""
        return self.head(self.body(self.embedding(tokens))).flatten(0, 1)


def _mlp() -> tuple[nn.Module, Tensor, Tensor]:
    wide = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    return wide, torch.randn(128, 784), torch.randint(10, (128,))


def _cnn() -> tuple[nn.Module, Tensor, Tensor]:
    layers = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, stride=2), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    return layers, torch.randn(32, 3, 32, 32), torch.randint(10, (32,))


def _transformer() -> tuple[nn.Module, Tensor, Tensor]:
    return TinyTransformer(), torch.randint(2000, (8, 64)), torch.randint(2000, (512,))


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor, Tensor]]] = {
    "own-mlp": _mlp, "own-cnn": _cnn, "own-transformer": _transformer,
}  # fmt: skip


def steps_of(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> Callable[[], None]:
    """One step of training, as a function."""

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def capture(folder: Path, name: str) -> None:
    """Write the profile of one model."""
    model, inputs, targets = MODELS[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = steps_of(model, optimizer, inputs, targets)
    for _ in range(5):
        step()
    with paceline.capture(model, optimizer, path=folder / f"{name}.profile", name=name, quiet=True):
        for _ in range(40):
            step()


def train(name: str) -> float:
    """Median seconds of a step of DDP, or of one process."""
    model, inputs, targets = MODELS[name]()
    wrapped = DistributedDataParallel(model) if dist.is_initialized() else model
    step = steps_of(wrapped, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), inputs, targets)
    for _ in range(5):
        step()
    begin = time.perf_counter()
    for _ in range(3):
        step()
    count = torch.tensor([max(8.0, SECONDS / (time.perf_counter() - begin) * 3)])
    if dist.is_initialized():
        dist.broadcast(count, 0)
    times = []
    for _ in range(int(count)):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    """Capture, or train and print the seconds of each model's step."""
    torch.manual_seed(0)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    action, names, *folder = sys.argv[1:]
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    for name in names.split(","):
        if action == "capture":
            capture(Path(folder[0]), name)
        elif (seconds := train(name)) and int(os.environ.get("RANK", "0")) == 0:
            print(json.dumps({"model": name, "seconds": seconds}), flush=True)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
