"""Flips bits of a checkpoint, one at a time, and prints what loading it did; runs where torch is.

flip_worker.py FOLDER FLIPS SEED
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.errors import PacelineError
from paceline.runtime import Settings
from paceline.runtime.checkpoint import load_checkpoint, pack_state
from paceline.runtime.training import Training


def plain(content: dict[str, Any] | None) -> Any:
    """A checkpoint as data that can be compared bit for bit."""
    tensors: list[torch.Tensor] = []
    packed = pack_state(content, tensors)
    return packed, [bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()) for tensor in tensors]


def main(folder: Path, flips: int, seed: int) -> list[dict[str, Any]]:
    """Outcome of each flip."""
    chance, path = random.Random(seed), folder / "state.safetensors"
    model = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 5))
    optimizer = torch.optim.AdamW(model.parameters())
    training = Training(model, optimizer, Settings(checkpoint=path), num_samples=10, global_batch=2)
    model(torch.randn(4, 20)).sum().backward()
    training.update()
    training.save_last(0)
    sound, data, turns = plain(load_checkpoint(path)), path.read_bytes(), []
    for _ in range(flips):
        bit = chance.randrange(8 * len(data))
        path.write_bytes(data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :])
        try:
            outcome = "harmless" if plain(load_checkpoint(path)) == sound else "missed"
        except PacelineError:
            outcome = "detected"
        turns.append({"file": path.name, "bit": bit, "outcome": outcome})
    return turns


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
