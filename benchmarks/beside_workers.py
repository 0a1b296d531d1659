"""One rank of each peer: the loop that its own documentation shows, on the same emulated device."""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import ranks

PER_SAMPLE = 0.002
WARMUP = 5
QUICK_STEP = 0.06
"""Seconds of compute of a step while ranks are killed."""


def _speeds(args: argparse.Namespace) -> list[float]:
    return [float(speed) for speed in args.speeds.split(",")]


def _model(args: argparse.Namespace, speed: float) -> Any:
    import torch
    from layers import network

    from paceline.runtime.emulate import Emulated

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return network(args.gradients, Emulated(per_sample=PER_SAMPLE, speed=speed))


def _batch(args: argparse.Namespace) -> int:
    return round(args.step * sum(_speeds(args)) / PER_SAMPLE)


def _rate(ends: list[float], samples: int) -> None:
    timed = ends[WARMUP:]
    ranks.finish(samples * (len(timed) - 1) / (timed[-1] - timed[0]))


def paceline_rate(args: argparse.Namespace) -> None:
    """Paceline: the ranks find their shares by themselves."""
    import torch
    from torch.utils.data import TensorDataset

    from paceline.runtime import join

    batch = _batch(args)
    model = _model(args, _speeds(args)[int(os.environ["RANK"])])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ends = []
    with join(model, optimizer, TensorDataset(torch.randn(4 * batch, 1)), global_batch=batch) as pace:
        for items in pace.batches(steps=args.steps + WARMUP):
            pace.step(model(items.inputs).square().mean())
            ends.append(time.perf_counter())
    _rate(ends, batch)


def _torchft(model: Any) -> tuple[Any, Any, Any]:
    """Every rank is a replica group of its own, as torchft has it for plain data parallelism."""
    import torch
    import torch.distributed as dist
    from torchft import Manager, Optimizer, ProcessGroupGloo
    from torchft.ddp import DistributedDataParallel

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    plain = torch.optim.SGD(model.parameters(), lr=1e-3)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        min_replica_size=1,
        load_state_dict=lambda state: (model.load_state_dict(state["model"]), plain.load_state_dict(state["optim"])),
        state_dict=lambda: {"model": model.state_dict(), "optim": plain.state_dict()},
        timeout=timedelta(seconds=20),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=f"rank{os.environ['RANK']}",
        hostname="127.0.0.1",
    )
    manager.kept = store
    return manager, DistributedDataParallel(manager, model), Optimizer(manager, plain)


def _torchft_steps(manager: Any, wrapped: Any, optimizer: Any, inputs: Any) -> Iterator[int]:
    """The ranks that took part in each committed step."""
    while True:
        step = manager.current_step()
        optimizer.zero_grad()
        wrapped(inputs).square().mean().backward()
        optimizer.step()
        if manager.current_step() > step:
            yield manager.num_participants()


def torchft_rate(args: argparse.Namespace) -> None:
    """torchft: equal batches."""
    import torch

    logging.disable(logging.WARNING)
    speeds = _speeds(args)
    model = _model(args, speeds[int(os.environ["RANK"])])
    manager, wrapped, optimizer = _torchft(model)
    share = _batch(args) // len(speeds)
    steps, ends = _torchft_steps(manager, wrapped, optimizer, torch.randn(share, 1)), []
    for together in steps:
        if together == len(speeds):
            ends.append(time.perf_counter())
        if len(ends) == args.steps + WARMUP:
            break
    _rate(ends, share * len(speeds))


def hivemind_rate(args: argparse.Namespace) -> None:
    """hivemind: each peer adds small batches until all together have the global one."""
    import hivemind
    import torch

    speeds, batch, rank = _speeds(args), _batch(args), int(os.environ["RANK"])
    model = _model(args, speeds[rank])
    dht = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=_first_peer(args, rank))
    if rank == 0:
        (Path(args.folder) / "peer").write_text("\n".join(map(str, dht.get_visible_maddrs())))
    small = max(1, batch // 40)
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="beside",
        target_batch_size=batch,
        batch_size_per_step=small,
        params=list(model.parameters()),
        optimizer=lambda params: torch.optim.SGD(params, lr=1e-3),
        use_local_updates=False,
        matchmaking_time=max(0.2, args.step / 2),
        averaging_timeout=20.0,
        verbose=False,
    )
    optimizer.load_state_from_peers()
    ends, inputs, deadline = [], torch.randn(small, 1), time.monotonic() + 90
    while len(ends) < args.steps + WARMUP and time.monotonic() < deadline:
        epoch = optimizer.local_epoch
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if optimizer.local_epoch > epoch:
            ends.append(time.perf_counter())
    (Path(args.folder) / f"done-{rank}").touch()
    while time.monotonic() < deadline and not (Path(args.folder) / f"done-{1 - rank}").exists() and len(speeds) > 1:
        time.sleep(0.1)
    _rate(ends, batch)


def _first_peer(args: argparse.Namespace, rank: int) -> list[str]:
    path = Path(args.folder) / "peer"
    deadline = time.monotonic() + 60
    while rank and not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return path.read_text().split() if rank else []


def paceline_kill(args: argparse.Namespace) -> None:
    """One of two ranks that may be killed."""
    from fault_worker import worker

    worker(Path(args.folder))


def torchft_kill(args: argparse.Namespace) -> None:
    """The same model and step by torchft."""
    import torch
    from torch import nn

    from paceline.runtime.emulate import Emulated, emulate

    torch.set_num_threads(1)
    folder, name = Path(args.folder), os.environ["WORKER"]
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
    emulate(model, Emulated(per_sample=QUICK_STEP / 30))
    with (folder / f"{name}.steps").open("a") as lines:
        _write(lines, {"joins": time.monotonic()})
        manager, wrapped, optimizer = _torchft(model)
        for together in _torchft_steps(manager, wrapped, optimizer, torch.randn(30, 20)):
            _write(lines, {"step": manager.current_step(), "size": together, "at": time.monotonic()})


def _write(lines: Any, record: dict[str, Any]) -> None:
    lines.write(json.dumps(record) + "\n")
    lines.flush()


WORKERS: dict[str, Callable[[argparse.Namespace], None]] = {
    "paceline-rate": paceline_rate,
    "torchft-rate": torchft_rate,
    "hivemind-rate": hivemind_rate,
    "paceline-kill": paceline_kill,
    "torchft-kill": torchft_kill,
}
