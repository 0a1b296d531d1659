"""Steps of one model, watched, resting (hooks are there, the step is not sampled) and bare, in turn.

Prints the median seconds of each, by turn: of the processor, and on the wall; and what the hooks cost,
by the same step of a network so small that they are a good part of it. Rank and ranks come from the environment.

python benchmarks/lib/watch_worker.py MODEL TURNS STEPS
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from bare_pytorch import network
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paceline.runtime.watch.hooks import Hooks
from paceline.runtime.watch.recorder import TRACED_STEPS, Recorder

VOCABULARY, LENGTH, WIDTH = 1000, 64, 128
MODES = ("watched", "resting", "bare")
SMALL_STEPS = 50
"""Steps of the small network with hooks, and as many without, in a turn."""
Times = dict[str, list[tuple[float, float]]]


class SmallGpt(nn.Module):
    """Four causal transformer layers of width 128."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layers(self.embed(tokens), mask=mask, is_causal=True)).flatten(0, 1)


class Bottleneck(nn.Module):
    """The block of ResNet-50."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(width_in, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        same = stride == 1 and width_in == 4 * width
        short = (nn.Conv2d(width_in, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        self.short = nn.Identity() if same else nn.Sequential(*short)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return F.relu(self.path(x) + self.short(x))


def resnet50() -> nn.Module:
    """ResNet-50, for any size of image."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
    width_in = 64
    for width, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for place in range(depth):
            layers.append(Bottleneck(width_in, width, 2 if place == 0 and width > 64 else 1))
            width_in = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 10))


def built(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Model, inputs and targets."""
    if name == "gpt":
        return SmallGpt(), torch.randint(VOCABULARY, (4, LENGTH)), torch.randint(VOCABULARY, (4 * LENGTH,))
    if name == "resnet50":
        return resnet50(), torch.randn(4, 3, 64, 64), torch.randint(10, (4,))
    return network(), torch.randn(16, 3, 32, 32), torch.randint(10, (16,))


def main() -> None:
    """Alternate watched, resting and bare steps."""
    name, turns, steps = sys.argv[1], *(int(word) for word in sys.argv[2:4])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, inputs, targets = built(name)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
    if world > 1:
        dist.init_process_group("gloo")
    step, *watched = trainer(model, inputs, targets)
    small = trainer(nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))), torch.randn(2, 4), torch.zeros(2).long())
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(folder)
        recorder.step = TRACED_STEPS[-1] + 1
        found = [{**_turn(step, recorder, *watched, steps), **_hooks_cost(recorder, *small)} for _ in range(turns)]
        if not recorder.alive:
            raise SystemExit(recorder.error)
    if rank == 0:
        print(json.dumps(found))
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


def trainer(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Callable[[], None], nn.Module, Any]:
    """A step of a model that is warm, the model as it is called, and its optimiser."""
    trained = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(trained(inputs), targets).backward()
        optimizer.step()

    for _ in range(10):
        step()
    return step, trained, optimizer


def _hooked(recorder: Recorder, model: nn.Module, optimizer: Any) -> Hooks:
    hooks = Hooks(recorder, model, optimizer)
    if dist.is_initialized():
        hooks.watch_last(list(model.parameters())[::-1])
    return hooks


def _hooks_cost(
    recorder: Recorder, step: Callable[[], None], model: nn.Module, optimizer: Any
) -> dict[str, tuple[float, float]]:
    """Seconds of a step with hooks, less those of one without: of the processor, and on the wall."""
    every, medians = recorder.every, {}
    for mode in ("bare", "resting", "watched"):
        hooks = _hooked(recorder, model, optimizer) if mode != "bare" else None
        recorder.every, recorder.watching = (1, True) if mode == "watched" else (1 << 40, False)
        times = [_seconds(step) for _ in range(SMALL_STEPS)]
        if hooks is not None:
            hooks.remove()
        medians[mode] = [statistics.median(column) for column in zip(*times, strict=True)]
    recorder.every = every
    bare = medians.pop("bare")
    return {f"hooks {mode}": (found[0] - bare[0], found[1] - bare[1]) for mode, found in medians.items()}


def _turn(
    step: Callable[[], None], recorder: Recorder, model: nn.Module, optimizer: Any, steps: int
) -> dict[str, tuple[float, float]]:
    times: Times = {mode: [] for mode in MODES}
    for number in range(steps):
        for place in range(len(MODES)):
            mode = MODES[(number + place) % len(MODES)]
            hooks = _hooked(recorder, model, optimizer) if mode != "bare" else None
            recorder.watching = mode == "watched"
            times[mode].append(_seconds(step))
            if hooks is not None:
                hooks.remove()
    medians = {
        mode: [statistics.median(column) for column in zip(*found, strict=True)] for mode, found in times.items()
    }
    return {mode: (seconds[0], seconds[1]) for mode, seconds in medians.items()}


def _seconds(step: Callable[[], None]) -> tuple[float, float]:
    """Seconds of the processor, and on the wall."""
    begin, of_processor = time.perf_counter(), time.process_time()
    step()
    return time.process_time() - of_processor, time.perf_counter() - begin


if __name__ == "__main__":
    main()
