"""Three models as users write them, and networks of the catalog: captured by one process, trained by DDP on several.

Run by `oversubscribed.py` with the interpreter of the pytorch environment: own_models.py NAMES RANKS THREADS FOLDER;
rank, ranks and address come from the environment as torchrun sets them. The same processes train alone, by twos and all
together, because processes of the same program differ by a quarter in speed on a shared machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import paceline
from paceline.bench.frameworks.pytorch.layers import TorchNetwork

CAPTURED_S, TRAINED_S = 4.0, 1.5
"""Seconds of the steps that are captured, and of those that are timed in one of the two passes of a case."""
Step = Callable[[], None]


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


def build(name: str, folder: Path) -> tuple[nn.Module, Tensor, Tensor]:
    """A model with a batch: an own one, or a network of the catalog whose layers stand in the folder."""
    if name in MODELS:
        return MODELS[name]()
    plain = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    image, batch = plain["network"]["input"], plain["batch"]
    inputs = torch.randn(batch, image["channels"], image["height"], image["width"])
    return TorchNetwork(plain["network"]), inputs, torch.randint(10, (batch,))


def training(name: str, folder: Path) -> tuple[nn.Module, Any, Step]:
    """A new model, its optimizer, and a step of DDP or of one process."""
    model, inputs, targets = build(name, folder)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    wrapped = DistributedDataParallel(model) if dist.is_initialized() else model
    return model, optimizer, steps_of(wrapped, optimizer, inputs, targets)


def capture(name: str, folder: Path) -> None:
    """Write the profile of one model, of one process on all cores."""
    model, optimizer, step = training(name, folder)
    for _ in range(5):
        step()
    with paceline.capture(model, optimizer, path=folder / f"{name}.profile", name=f"own {name}", quiet=True):
        begin, count = time.perf_counter(), 0
        while count < 40 or time.perf_counter() < begin + CAPTURED_S:
            step()
            count += 1


def train(name: str, folder: Path) -> float:
    """Median seconds of a step."""
    *_, step = training(name, folder)
    step()
    begin = time.perf_counter()
    for _ in range(2):
        step()
    count = torch.tensor([max(3.0, TRAINED_S / (time.perf_counter() - begin) * 2)])
    if dist.is_initialized():
        dist.broadcast(count, 0)
    times = []
    for _ in range(int(count)):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


class Meeting:
    """All processes of the job, of which the first few form groups one after the other."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._store = dist.TCPStore(address, port, self.size, self.rank == 0, timeout=timedelta(seconds=1800))
        self._number = 0

    def wait(self) -> None:
        """Until all processes have come here; who waits leaves the cores to others."""
        self._number += 1
        if self._store.add(f"came {self._number}", 1) == self.size:
            self._store.set(f"all {self._number}", "1")
        self._store.wait([f"all {self._number}"])

    def leave(self) -> None:
        """The process that holds the store goes last: who still asks it would fail."""
        if self.rank and self._store.add("left", 1) == self.size - 1:
            self._store.set("all left", "1")
        elif self.rank == 0 and self.size > 1:
            self._store.wait(["all left"])

    @contextlib.contextmanager
    def group(self, ranks: int) -> Iterator[None]:
        """The first ranks as a process group, if there are several."""
        if ranks > 1:
            store = dist.PrefixStore(f"group {self._number}", self._store)
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=ranks)
        yield
        if ranks > 1:
            dist.destroy_process_group()


def passes(name: str, folder: Path, cases: list[tuple[int, int]], meeting: Meeting) -> None:
    """All cases, a capture in the middle, all cases again in the other order: what drifts touches all alike."""
    cores = max(threads for _, threads in cases)
    found: dict[tuple[int, int], list[float]] = {case: [] for case in cases}
    for order in (cases, cases[::-1]):
        for ranks, threads in order:
            torch.set_num_threads(threads)
            meeting.wait()
            if meeting.rank < ranks:
                with meeting.group(ranks):
                    found[ranks, threads].append(train(name, folder))
        meeting.wait()
        torch.set_num_threads(cores)
        if order is cases and meeting.rank == 0:
            capture(name, folder)
    if meeting.rank == 0:
        for (ranks, threads), seconds in found.items():
            row = {"model": name, "ranks": ranks, "threads": threads, "seconds": statistics.fmean(seconds)}
            print(json.dumps(row), flush=True)


def main() -> None:
    """Capture and train each model on the first ranks of the job; print the seconds of each case's step."""
    torch.manual_seed(0)
    names, counts, threads, folder = sys.argv[1:]
    meeting = Meeting()
    cases = [(int(count), int(thread)) for count in counts.split(",") for thread in threads.split(",")]
    for name in names.split(","):
        passes(name, Path(folder), cases, meeting)
    meeting.leave()


if __name__ == "__main__":
    main()
