"""One rank of a scenario; writes what it saw as JSON to the file it is told."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline.errors import InputError
from paceline.runtime import Settings, StalenessRule, Timeouts, join
from paceline.runtime.emulate import Emulated, emulate
from paceline.runtime.group.balance import Balance

RANK = int(os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
SIZE = int(os.environ.get("WORLD_SIZE", "1"))
QUICK = Timeouts(heartbeat_interval=0.1, heartbeat_timeout=1.0, join=60.0, settle=0.05)


def digest(model: nn.Module) -> str:
    """Equal for equal parameters, bit for bit."""
    hashed = hashlib.sha256()
    for parameter in model.parameters():
        hashed.update(parameter.detach().numpy().tobytes())
    return hashed.hexdigest()


def problem(dtype: torch.dtype, *, norm: bool = False, samples: int = 60) -> tuple[nn.Module, TensorDataset]:
    """A small convolutional network and fixed data; the start differs between ranks, as seeds do in practice."""
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(samples, 3, 6, 6, generator=generator, dtype=dtype),
        torch.randint(5, (samples,), generator=generator),
    )
    torch.manual_seed(RANK)
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3)]
    if norm:
        layers.append(nn.BatchNorm2d(8))
    model = nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.Linear(128, 32), nn.Tanh(), nn.Linear(32, 5))
    return model.to(dtype), data


def force(shares: list[int] | None) -> None:
    """Make every full step use these shares."""
    if shares is not None:
        Balance.shares = lambda self, total: tuple(shares)  # type: ignore[method-assign]


def gradients(options: dict[str, Any]) -> dict[str, Any]:
    """Gradients of one step, read off plain SGD with rate one; of several, with a rate that falls.

    With `weights` of classes, of which several ranks need the sum in their samples.
    """
    model, data = problem(torch.float64, norm=options.get("norm", False))
    force(options.get("shares"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    settings = Settings(
        chunk=options.get("chunk"),
        batchnorm="sync" if options.get("norm") else "warn",
        transport=options.get("transport", "auto"),
    )
    steps, weights = options.get("steps", 1), None
    if "weights" in options:
        weights = torch.tensor(options["weights"], dtype=torch.float64)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with join(model, optimizer, data, global_batch=30, settings=settings) as pace:
        for batch in pace.batches(steps=steps):
            loss = nn.functional.cross_entropy(model(batch.inputs), batch.targets, weight=weights)
            if pace.step(loss, weights[batch.targets].sum() if weights is not None and SIZE > 1 else None):
                schedule.step()
    buffers = [buffer.detach().flatten().double() for buffer in model.buffers()]
    return {
        "parameters": torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(),
        "buffers": torch.cat([torch.zeros(0), *buffers]).tolist(),
        "hash": digest(model),
    }


def against_ddp(options: dict[str, Any]) -> dict[str, Any]:
    """The same float32 steps by Paceline with equal shares and by DDP on the same samples."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    mine, data = problem(torch.float32)
    for parameter in mine.parameters():
        torch.nn.init.uniform_(parameter, -0.1, 0.1, generator=torch.Generator().manual_seed(7))
    theirs, _ = problem(torch.float32)
    theirs.load_state_dict(mine.state_dict())
    seen = []
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.1, momentum=0.9)
    with join(
        mine, optimizer, data, global_batch=12 * SIZE, settings=Settings(balance=False, bucket=25 * 2**20)
    ) as pace:
        for batch in pace.batches(steps=options["steps"]):
            seen.append((batch.inputs, batch.targets))
            pace.step(nn.functional.cross_entropy(mine(batch.inputs), batch.targets))
    dist.init_process_group("gloo", init_method=f"file://{options['store']}", rank=RANK, world_size=SIZE)
    wrapped = DistributedDataParallel(theirs)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    for inputs, targets in seen:
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(inputs), targets).backward()
        optimizer.step()
    dist.barrier()
    return {"paceline": digest(mine), "ddp": digest(theirs)}


def refused(options: dict[str, Any]) -> dict[str, Any]:
    """What each rank says of a job that cannot begin: one of them differs, or join() is called within join()."""
    model, data = problem(torch.float32)
    if options["why"] == "frozen" and RANK == 1:
        model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"global_batch": 30, "settings": Settings(seed=RANK if options["why"] == "seed" else 0, timeouts=QUICK)}
    try:
        with join(model, optimizer, data, **given), join(model, optimizer, data, **given):
            pass
    except InputError as error:
        return {"error": error.message}
    raise AssertionError("the job began")


def apart(options: dict[str, Any]) -> dict[str, Any]:
    """What each rank says of a loop in which they would come apart, or in which a loss is a mean over other things."""
    model, data = problem(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight = torch.tensor([1.0, 5.0, 0.2, 1.0, 1.0]) if options["why"] == "weighted" else None
    beside = nn.Linear(5, 5)
    nn.init.eye_(beside.weight)
    nn.init.zeros_(beside.bias)
    own = torch.optim.SGD(beside.parameters(), lr=5.0)
    try:
        with join(model, optimizer, data, global_batch=30, settings=Settings(timeouts=QUICK)) as pace:
            for batch in pace.batches(steps=3):
                outputs = model(batch.inputs)
                if options["why"] == "beside":
                    outputs = beside(outputs)
                pace.step(nn.functional.cross_entropy(outputs, batch.targets, weight=weight))
                own.step()
                if options["why"] == "rate":
                    optimizer.param_groups[0]["lr"] = 0.1 / (1 + pace.rank)
                elif options["why"] == "weights" and pace.rank == 1:
                    model[0].weight.data.clamp_(-0.1, 0.1)
    except InputError as error:
        return {"error": error.message, "steps": pace.position.step}
    raise AssertionError("training went on")


def epochs(options: dict[str, Any]) -> dict[str, Any]:
    """Training with emulated speeds; the samples of every committed step, and a hash after each."""
    model, data = problem(torch.float32, samples=options.get("samples", 90))
    speeds = options.get("speeds", [1.0] * SIZE)
    device = Emulated(per_sample=options.get("per_sample", 0.0005), speed=speeds[RANK])
    emulate(model, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    checkpoint = Path(options["checkpoint"]) if "checkpoint" in options else None
    settings = Settings(
        timeouts=QUICK,
        checkpoint=checkpoint,
        checkpoint_every=options.get("every", 5),
        compress=options.get("compress", "none"),
        staleness=StalenessRule(**options["staleness"]) if "staleness" in options else None,
    )
    used: list[dict[str, Any]] = []
    progress = Path(sys.argv[3]).with_suffix(".steps").open("a")
    with join(model, optimizer, data, global_batch=options.get("batch", 30), settings=settings) as pace:
        pending: list[int] = []
        step = pace.position.step
        for batch in pace.batches(epochs=options["epochs"]):
            if pace.position.step != step or not pending:
                step, pending = pace.position.step, []
            begun = (pace.position.step, pace.position.epoch)
            pending = [int(index) for index in batch.indices]
            pace.step(nn.functional.cross_entropy(model(batch.inputs), batch.targets))
            if pace.position.step == begun[0] + 1:
                record = {"step": pace.position.step, "epoch": begun[1], "samples": pending, "hash": digest(model)}
                used.append(record)
                progress.write(json.dumps({**record, "at": time.monotonic(), "size": pace.size}) + "\n")
                progress.flush()
        shares, views, facts = pace.shares, pace.views, pace.syncer_facts()
    seen = {"shares": shares, "views": views, "steps": pace.position.step, **facts}
    return {"used": used, "hash": digest(model), **seen}


if __name__ == "__main__":
    torch.set_num_threads(1)
    scenario = {
        "gradients": gradients,
        "against_ddp": against_ddp,
        "epochs": epochs,
        "refused": refused,
        "apart": apart,
    }[sys.argv[1]]
    found = scenario(json.loads(sys.argv[2]))
    Path(sys.argv[3].format(rank=RANK)).write_text(json.dumps(found), encoding="utf-8")
    sys.stdout.flush()
    if "OMPI_COMM_WORLD_RANK" not in os.environ:
        os._exit(0)
