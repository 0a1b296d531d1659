"""Runs a script with the samples of each rank fixed, alike for DDP and for Paceline; losses go to a file per rank."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from paceline.runtime.group.balance import Balance
from paceline.runtime.samples import epoch_order

BATCH = 32


def dealt(self: Any) -> Iterator[int]:
    """The samples that Paceline deals out to this rank with equal shares."""
    order = epoch_order(len(self.dataset), seed=0, epoch=self.epoch)
    steps = order.reshape(-1, self.num_replicas, BATCH // self.num_replicas)
    return iter(steps[:, self.rank].ravel().tolist())


if __name__ == "__main__":
    torch.set_num_threads(1)
    DistributedSampler.__iter__ = dealt  # type: ignore[method-assign]
    Balance.shares = lambda self, total: (total // 2, total // 2)  # type: ignore[method-assign]
    script, folder = sys.argv[1:]
    with open(f"{folder}/{os.environ['RANK']}.txt", "w", encoding="utf-8") as sys.stdout:
        runpy.run_path(script, run_name="__main__")
