"""One rank that trains with scheme="auto" on an emulated device whose speed may change; writes what it saw."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline.runtime import Settings, Timeouts, join
from paceline.runtime.auto.choose import one_group
from paceline.runtime.auto.pilot import Pilot
from paceline.runtime.emulate import Emulated, emulate

RANK = int(os.environ["RANK"])


def merge_after(exchanges: int) -> None:
    """Make the first group want one group again after so many exchanges."""
    seen = iter(range(exchanges))

    def better_choice(self: Pilot, statuses: dict[str, Any]) -> Any:
        return one_group(2, 24) if next(seen, None) is None else None

    Pilot.better_choice = better_choice  # type: ignore[method-assign]


def train(options: dict[str, Any]) -> dict[str, Any]:
    """Every sample used, the groups over time and why."""
    torch.manual_seed(0)
    if "merge_after" in options:
        merge_after(options["merge_after"])
    samples, batch = options.get("samples", 240), options.get("batch", 24)
    width = options.get("width", 64)
    model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
    device = Emulated(
        per_sample=options.get("per_sample", 0.001),
        speed=options["speeds"][RANK],
        straggle=options.get("straggle", 0.0),
        seed=RANK,
    )
    emulate(model, device)
    data = TensorDataset(torch.randn(samples, 4), torch.randn(samples, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    settings = Settings(scheme="auto", timeouts=Timeouts(join=60.0, settle=0.05))
    used: list[tuple[int, int]] = []
    seen: list[tuple[int, int, int, float]] = []
    with join(model, optimizer, data, global_batch=batch, settings=settings) as pace:
        for items in pace.batches(epochs=options["epochs"]):
            begun = pace.position
            for change in options.get("changes", []):
                if change["step"] == begun.step and change["rank"] == RANK:
                    device.speed = change["speed"]
            Path(sys.argv[2]).with_suffix(".step").write_text(str(begun.step))
            pace.step((model(items.inputs) - items.targets).square().mean())
            if pace.position.step > begun.step:
                used.extend((begun.epoch, int(index)) for index in items.indices)
                seen.append((pace.position.step, pace.size, sum(pace.shares), time.monotonic()))
        facts = pace.syncer_facts()
    total = [float(parameter.detach().sum()) for parameter in model.parameters()]
    return {"used": used, "seen": seen, "reasons": pace.reasons, "facts": facts, "parameters": total}


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = train(json.loads(sys.argv[1]))
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")
    os._exit(0)
