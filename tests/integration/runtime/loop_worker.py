"""One rank of a loop with its own backward and update; or the same loop in plain torch, in one process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from paceline.runtime import Settings, join
from paceline.runtime.group.balance import Balance
from paceline.runtime.samples import epoch_order

SAMPLES, BATCH = 60, 30


class Net(nn.Module):
    """Its first layer is frozen, and `spare` takes part in every other step only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 16), nn.Linear(16, 8), nn.Linear(8, 5)
        self.spare, self.never = nn.Linear(8, 5), nn.Linear(3, 3)
        self.first.requires_grad_(False)

    def forward(self, inputs: Tensor, step: int) -> Tensor:
        """Logits."""
        hidden = torch.tanh(self.second(torch.tanh(self.first(inputs))))
        return self.last(hidden) + self.spare(hidden) if step % 2 else self.last(hidden)


class Loop:
    """Clipping, a scaled loss, a schedule and two optimizers."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
        self.data = TensorDataset(inputs, torch.randint(5, (SAMPLES,), generator=generator))
        torch.manual_seed(0)
        self.net = Net().double()
        rest = [*self.net.second.parameters(), *self.net.spare.parameters(), *self.net.never.parameters()]
        self.optimizers = [
            torch.optim.AdamW(rest, lr=0.01, weight_decay=0.1),
            torch.optim.SGD(self.net.last.parameters(), lr=0.5, momentum=0.9, weight_decay=0.1),
        ]
        self.schedules = [torch.optim.lr_scheduler.StepLR(each, 2, gamma=0.5) for each in self.optimizers]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        self.norms: list[float] = []

    def loss(self, inputs: Tensor, targets: Tensor, step: int) -> Tensor:
        """Scaled."""
        return self.scaler.scale(nn.functional.cross_entropy(self.net(inputs, step), targets))

    def clip(self) -> None:
        """Between backward and update."""
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        self.norms.append(float(nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)))

    def follow(self) -> None:
        """After an update."""
        for schedule in self.schedules:
            schedule.step()


def plain(loop: Loop, steps: int) -> None:
    """In plain torch, on the samples that all ranks share."""
    for step in range(steps):
        epoch, number = divmod(step, SAMPLES // BATCH)
        chosen = epoch_order(SAMPLES, seed=0, epoch=epoch)[number * BATCH : (number + 1) * BATCH]
        inputs, targets = (tensor[torch.from_numpy(chosen)] for tensor in loop.data.tensors)
        loop.loss(inputs, targets, step).backward()
        loop.clip()
        for optimizer in loop.optimizers:
            loop.scaler.step(optimizer)
            optimizer.zero_grad()
        loop.scaler.update()
        loop.follow()


def shared(loop: Loop, options: dict[str, Any]) -> Iterator[bool]:
    """By Paceline."""
    shares = options["shares"]
    Balance.shares = lambda self, total: tuple(shares)  # type: ignore[method-assign]
    settings = Settings(chunk=options["chunk"], also=(loop.scaler, *loop.schedules))
    with join(loop.net, loop.optimizers, loop.data, global_batch=BATCH, settings=settings) as pace:
        for batch in pace.batches(steps=options["steps"]):
            pace.backward(loop.loss(batch.inputs, batch.targets, pace.position.step))
            loop.clip()
            committed = pace.update(scaler=loop.scaler)
            if committed:
                loop.follow()
            yield committed


def main() -> None:
    options = json.loads(sys.argv[2])
    loop, committed = Loop(), []
    if options["plain"]:
        plain(loop, options["steps"])
    else:
        list(shared(Loop(), {**options, "steps": 1}))  # the ranks meet again after it, for another training
        committed = list(shared(loop, options))
    found = {
        "parameters": torch.cat([each.detach().flatten() for each in loop.net.parameters()]).tolist(),
        "norms": loop.norms,
        "rates": [optimizer.param_groups[0]["lr"] for optimizer in loop.optimizers],
        "scale": loop.scaler.get_scale(),
        "committed": committed,
    }
    Path(sys.argv[3]).write_text(json.dumps(found), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
