"""One rank of benchmarks/plan_accuracy.py: trains as planned; each group's first rank writes its samples per second.

Usage: plan_worker.py FOLDER BATCH GRADIENT_BYTES LAYERS LOCAL_STEPS STEPS
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline.runtime import join

WARMUP = 20


def main() -> None:
    """Train to the end, then count whole rounds."""
    sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script
    from lib.layers import Scale

    torch.set_num_threads(1)
    batch, gradients, layers, local_steps, steps = map(int, sys.argv[2:])
    model = nn.Sequential(*(Scale(max(1, round(gradients / 4 / layers))) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(batch * (steps + WARMUP), 1))
    ends: list[tuple[float, int]] = []
    with join(model, optimizer, data, global_batch=batch) as pace:
        for items in pace.batches(epochs=1):
            pace.step(model(items.inputs).square().mean())
            ends.append((time.perf_counter(), sum(pace.shares)))
        speaks = pace.rank == 0
    if speaks:
        group = os.environ.get("PACELINE_GROUP", "all")
        (Path(sys.argv[1]) / f"rate-{group}.json").write_text(json.dumps(rate(ends, local_steps)), encoding="utf-8")
    os._exit(0)


def rate(ends: list[tuple[float, int]], local_steps: int) -> float:
    """Samples per second of this group over whole rounds, without the first steps and the last round."""
    begin = -(-WARMUP // local_steps) * local_steps
    rounds = (len(ends) - begin) // local_steps - 1
    end = begin + rounds * local_steps
    # A round's first step ends after the exchange before it, so a round lasts from the end of its predecessor's first
    # step to the end of its own.
    return sum(samples for _, samples in ends[begin + 1 : end + 1]) / (ends[end][0] - ends[begin][0])


if __name__ == "__main__":
    main()
