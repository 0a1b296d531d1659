"""A user's training script, plain PyTorch with DistributedDataParallel, with one plant: argv is PLANT and STEPS.

Knows nothing of Paceline. TraceML needs its two calls in the script: they are made where TraceML started it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import time
import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

SIDE, CLASSES, ONSET = 16, 10, 100


class Images(Dataset[tuple[Tensor, int]]):
    """Random images; plants of the input read them from packed bytes, or pause."""

    def __init__(self, count: int, plant: str, batch: int) -> None:
        self.count, self.plant, self.batch = count, plant, batch
        self.images = torch.randn(256, 3, SIDE, SIDE)
        self.packed = zlib.compress(os.urandom(40_000) * 6, 1)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.plant == "slow input":
            pixels = torch.frombuffer(bytearray(zlib.decompress(self.packed)), dtype=torch.uint8)
            pixels.view(3, 200, 400).float().div_(255).mean()
        if self.plant == "input stall every tenth step" and index % (10 * self.batch) == 0:
            time.sleep(0.15)
        return self.images[index % 256], index % CLASSES


class Net(nn.Module):
    """A small convolutional network; `depth` narrow layers more make many small gradients."""

    def __init__(self, depth: int = 0) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.middle = nn.Sequential(*(part for _ in range(3) for part in (nn.Conv2d(32, 32, 3, padding=1), nn.ReLU())))
        self.narrow = nn.ModuleList(nn.Linear(16, 16) for _ in range(depth))
        self.wide = nn.Linear(32 * 16, 1536)
        self.last = nn.Linear(1536, CLASSES)
        self.late: nn.Module = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        x = self.middle(torch.relu(self.first(x)))
        x = nn.functional.adaptive_avg_pool2d(x, 4).flatten(1)
        for layer in self.narrow:
            x = torch.cat([torch.relu(layer(x[:, :16])), x[:, 16:]], dim=1)
        return self.last(self.late(torch.relu(self.wide(x))))


class Late(torch.autograd.Function):
    """Works in backward only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Nothing."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Compute something that nobody needs."""
        burn(0.02)
        return gradient


class LateLayer(nn.Module):
    """A layer with an expensive backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        """The same values."""
        out: Tensor = Late.apply(x)
        return out


class SlowSgd(torch.optim.SGD):
    """An optimiser that looks at every weight in Python."""

    def step(self, closure: Any = None) -> Any:
        """A step, and inspections."""
        burn(0.02)
        return super().step(closure)


def burn(seconds: float) -> None:
    """Compute for a while."""
    square, until = torch.ones(64, 64), time.perf_counter() + seconds
    while time.perf_counter() < until:
        square = (square @ square).clamp_(0, 1)


def average(model: nn.Module, plant: str) -> None:
    """Gradients averaged by the user's own code: by all-reduce after backward, or by a server, rank 0."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        if plant == "no overlap":
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        elif dist.get_rank() == 0:
            other = torch.empty_like(parameter.grad)
            dist.recv(other, 1)
            parameter.grad.add_(other).div_(2)
            dist.send(parameter.grad, 1)
        else:
            dist.send(parameter.grad, 0)
            dist.recv(parameter.grad, 0)


def wrapped(model: nn.Module, plant: str) -> nn.Module:
    """The model as the ranks train it."""
    if plant in ("no overlap", "server hot spot"):
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        return model
    if plant == "tiny buckets":
        return DistributedDataParallel(model, bucket_cap_mb=1e-5)
    return DistributedDataParallel(model, find_unused_parameters=plant == "find_unused_parameters")


def before_step(plant: str, step: int, rank: int, model: nn.Module, kept: list[Any]) -> None:
    """What the plants do in the loop itself."""
    if plant == "large fixed overhead":
        weights = [value for p in model.parameters() for value in p.detach().flatten().tolist()]
        if any(value != value for value in weights):
            raise ValueError("a weight is not a number")
    if plant == "garbage collection":
        kept or kept.extend([[]] for _ in range(1_500_000))
        if step % 5 == 0:
            gc.collect()
    if plant == "slow from step 100" and rank == 1 and step >= ONSET:
        burn(0.025)


def main() -> None:
    """Train."""
    plant, steps = sys.argv[1], int(sys.argv[2])
    traced: Any = contextlib.nullcontext
    if "TRACEML_RUN_NAME" in os.environ or "TRACEML_SESSION_ID" in os.environ:
        import traceml_ai

        traceml_ai.init(mode="auto")
        traced = traceml_ai.trace_step
    torch.manual_seed(0)
    torch.set_num_threads(16 if plant == "oversubscribed threads" else 1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.sched_setaffinity(0, os.sched_getaffinity(0) if plant == "oversubscribed threads" else {rank})
    rival = plant == "one slow rank" and rank == 1
    busy = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) if rival else None  # same core
    deep = plant in ("tiny buckets", "find_unused_parameters")
    model = Net(depth=120 if deep else 0)
    if plant == "backward straggler" and rank == 1:
        model.late = LateLayer()
    batch = 1 if plant == "too small batch" else 32
    ranks_model = wrapped(model, plant)
    slow = SlowSgd if plant == "slow optimiser on one rank" and rank == 1 else torch.optim.SGD
    optimizer = slow(model.parameters(), lr=0.01, momentum=0.9)
    kept: list[Any] = []
    for step, (inputs, targets) in enumerate(DataLoader(Images(steps * batch, plant, batch), batch_size=batch)):
        with traced(ranks_model):
            before_step(plant, step, rank, model, kept)
            optimizer.zero_grad()
            nn.functional.cross_entropy(ranks_model(inputs), targets).backward()
            if not isinstance(ranks_model, DistributedDataParallel):
                average(model, plant)
            optimizer.step()
    if busy is not None:
        busy.kill()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
