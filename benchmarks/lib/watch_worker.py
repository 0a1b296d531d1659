"""Steps of one model, watched and bare in turn; prints the median seconds of both, by turn.

Seconds of the processor come first, those on the wall second.

python benchmarks/lib/watch_worker.py MODEL EVERY TURNS STEPS
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from bare_pytorch import network
from torch import nn

from paceline.runtime.watch.hooks import Hooks
from paceline.runtime.watch.recorder import TRACED_STEPS, Recorder

VOCABULARY, LENGTH, WIDTH = 1000, 64, 128


class SmallGpt(nn.Module):
    """Four causal transformer layers of width 128."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next token."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layers(self.embed(tokens), mask=mask, is_causal=True)).flatten(0, 1)


def main() -> None:
    """Alternate watched and bare steps."""
    name, every, turns, steps = sys.argv[1], *(int(word) for word in sys.argv[2:5])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = network() if name == "resnet20" else SmallGpt()
    inputs = torch.randn(16, 3, 32, 32) if name == "resnet20" else torch.randint(VOCABULARY, (4, LENGTH))
    targets = torch.randint(10, (16,)) if name == "resnet20" else torch.randint(VOCABULARY, (4 * LENGTH,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(10):
        step()
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(folder, every)
        recorder.step = TRACED_STEPS[-1] + 1
        print(json.dumps([_turn(step, recorder, model, optimizer, steps) for _ in range(turns)]))
        if not recorder.alive:
            raise SystemExit(recorder.error)


def _turn(step: Callable[[], None], recorder: Recorder, model: nn.Module, optimizer: object, steps: int) -> list[float]:
    watched, bare = [], []
    for _ in range(steps):
        hooks = Hooks(recorder, model, optimizer)
        watched.append(_seconds(step))
        hooks.remove()
        bare.append(_seconds(step))
    pairs = zip(_medians(watched), _medians(bare), strict=True)
    return [seconds for pair in pairs for seconds in pair]


def _medians(times: list[tuple[float, float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*times, strict=True)]


def _seconds(step: Callable[[], None]) -> tuple[float, float]:
    """Seconds of the processor, and on the wall."""
    begin, of_processor = time.perf_counter(), time.process_time()
    step()
    return time.process_time() - of_processor, time.perf_counter() - begin


if __name__ == "__main__":
    main()
