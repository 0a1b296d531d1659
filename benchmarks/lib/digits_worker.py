"""One rank that learns digits: by DistributedDataParallel, in one group of Paceline's, or in one of several groups.

python benchmarks/lib/digits_worker.py SETTINGS, as benchmarks/digits_jobs.py starts it
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script
from lib import ranks
from lib.digits import Digits, Watch
from lib.leases import syncer_of
from paceline.runtime import Settings, join
from paceline.runtime.emulate import Emulated, emulate

DDP_LOOKS = 2
"""Steps between two looks: a look takes time that the other ranks wait."""


def worker(told: dict[str, Any]) -> None:
    """Train; print when the accuracy was reached and what it was in the end."""
    torch.set_num_threads(1)
    _warm_up(told)
    digits, watch = Digits(told["seed"], told["hidden"]), Watch(told["accuracy"], told["looks"])
    place = int(os.environ["PLACE"])
    device = Emulated(per_sample=told["per_sample"], straggle=told["straggle"], seed=1000 * told["seed"] + place)
    emulate(digits.model, device)
    {"ddp": by_ddp, "group": by_paceline, "groups": by_paceline}[told["way"]](told, digits, watch)
    ranks.finish(watch.result(digits.accuracy()))


def _warm_up(told: dict[str, Any]) -> None:
    """What torch loads at the first step is no part of any way of training."""
    other = Digits(told["seed"], told["hidden"])
    optimizer = other.optimizer(told)
    other.loss(other.images[:4], other.labels[:4]).backward()
    optimizer.step()


def by_ddp(told: dict[str, Any], digits: Digits, watch: Watch) -> None:
    """Equal batches, one all-reduce per step over all ranks."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    wrapped, optimizer = DistributedDataParallel(digits.model), digits.optimizer(told)
    total, batch, steps = len(digits.labels), told["batch"], 0
    dist.barrier()
    watch.begin()
    for epoch in range(told["epochs"]):
        order = torch.randperm(total, generator=torch.Generator().manual_seed(1000 * told["seed"] + epoch))
        for begin in range(0, total - batch + 1, batch):
            mine = order[begin : begin + batch][rank::size]
            loss = torch.nn.functional.cross_entropy(wrapped(digits.images[mine]), digits.labels[mine])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            steps += 1
            if rank == 0 and steps % DDP_LOOKS == 0 and not watch.reached:
                watch.look(digits.accuracy())
    dist.barrier()


def by_paceline(told: dict[str, Any], digits: Digits, watch: Watch) -> None:
    """A group looks after every step, one of several when it has just received the common parameters."""
    settings = Settings(seed=told["seed"], balance=told["way"] != "group")
    data, optimizer, seen = TensorDataset(digits.images, digits.labels), digits.optimizer(told), 0
    with join(digits.model, optimizer, data, global_batch=told["batch"], settings=settings) as pace:
        _all_joined(told)
        watch.begin()
        for batch in pace.batches(epochs=told["epochs"]):
            syncer = syncer_of(pace)
            rounds = syncer.sequence if syncer else pace.position.step + 1
            if syncer and rounds > seen and not watch.reached:
                watch.look(digits.accuracy())
            seen = rounds
            pace.step(digits.loss(batch.inputs, batch.targets))
            if syncer is None and pace.rank == 0 and not watch.reached:
                watch.look(digits.accuracy())
            if told["ends"] and _all_reached(told, watch):
                break


def _all_reached(told: dict[str, Any], watch: Watch) -> bool:
    """Whether all who look have seen the accuracy, after which nothing is to be learnt any more."""
    folder = Path(told["folder"])
    if watch.reached:
        (folder / f"reached-{os.environ['PLACE']}").touch()
    return len(list(folder.glob("reached-*"))) >= (1 if told["way"] == "group" else told["devices"])


def _all_joined(told: dict[str, Any]) -> None:
    """All clocks start when the last rank is connected, as those of DistributedDataParallel do after its barrier."""
    folder = Path(told["folder"])
    (folder / f"ready-{os.environ['PLACE']}").touch()
    deadline = time.monotonic() + 120
    while len(list(folder.glob("ready-*"))) < told["devices"] and time.monotonic() < deadline:
        time.sleep(0.01)


if __name__ == "__main__":
    worker(json.loads(sys.argv[1]))
