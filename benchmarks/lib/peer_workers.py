"""One rank of each peer: the loop that its own documentation shows, on the same emulated device.

python benchmarks/lib/peer_workers.py PEER-rate|PEER-kill SETTINGS, as benchmarks/peers.py starts it
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script
from lib import ranks

PER_SAMPLE = 0.002
WARMUP = 5
QUICK_BATCH = 60
"""Samples of a step of two ranks while they are killed, as in benchmarks/fault_worker.py."""
Told = dict[str, Any]


def _model(told: Told) -> Any:
    import torch

    from lib.layers import network
    from paceline.runtime.emulate import Emulated

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return network(told["gradients"], Emulated(per_sample=PER_SAMPLE, speed=told["speeds"][_rank()]))


def _quick_model() -> Any:
    import torch
    from torch import nn

    from paceline.runtime.emulate import Emulated, emulate

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
    emulate(model, Emulated(per_sample=PER_SAMPLE))
    return model


def _rank() -> int:
    return int(os.environ["RANK"])


def _batch(told: Told) -> int:
    return round(told["step"] * sum(told["speeds"]) / PER_SAMPLE)


def _rate(ends: list[float], samples: int) -> None:
    timed = ends[WARMUP:]
    ranks.finish(samples * (len(timed) - 1) / (timed[-1] - timed[0]))


def paceline_rate(told: Told) -> None:
    """Paceline: the ranks find their shares by themselves."""
    import torch
    from torch.utils.data import TensorDataset

    from paceline.runtime import join

    batch = _batch(told)
    model = _model(told)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ends = []
    with join(model, optimizer, TensorDataset(torch.randn(4 * batch, 1)), global_batch=batch) as pace:
        for items in pace.batches(steps=told["steps"] + WARMUP):
            pace.step(model(items.inputs).square().mean())
            ends.append(time.perf_counter())
    _rate(ends, batch)


def paceline_kill(told: Told) -> None:
    """One of two ranks that may be killed."""
    from lib.fault_worker import worker

    worker(Path(told["folder"]))


def _torchft(model: Any) -> tuple[Any, Any]:
    """Every rank is a replica group of its own, as torchft has it for plain data parallelism."""
    import torch
    import torch.distributed as dist
    from torchft import Manager, Optimizer, ProcessGroupGloo

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
        replica_id=f"rank{_rank()}",
        hostname="127.0.0.1",
    )
    manager.kept = store
    return manager, Optimizer(manager, plain)


def _torchft_steps(manager: Any, optimizer: Any, backward: Callable[[], None]) -> Iterator[int]:
    """The ranks that took part in each committed step."""
    while True:
        step = manager.current_step()
        optimizer.zero_grad()
        backward()
        optimizer.step()
        if manager.current_step() > step:
            yield manager.num_participants()


def torchft_rate(told: Told) -> None:
    """torchft: equal batches."""
    import torch
    from torchft.ddp import DistributedDataParallel

    logging.disable(logging.WARNING)
    size, model = len(told["speeds"]), _model(told)
    manager, optimizer = _torchft(model)
    share, wrapped = _batch(told) // size, DistributedDataParallel(manager, model)
    inputs, ends = torch.randn(share, 1), []
    for together in _torchft_steps(manager, optimizer, lambda: wrapped(inputs).square().mean().backward()):
        if together == size:
            ends.append(time.perf_counter())
        if len(ends) == told["steps"] + WARMUP:
            break
    _rate(ends, share * size)


def torchft_kill(told: Told) -> None:
    """The same model and step by torchft, without its DDP wrapper: that fails an assertion when a peer dies."""
    import torch
    import torchft  # noqa: F401 - loading it is no part of joining

    model, inputs = _quick_model(), torch.randn(QUICK_BATCH // 2, 20)
    with _lines(told) as lines:
        _write(lines, {"joins": time.monotonic()})
        manager, optimizer = _torchft(model)

        def backward() -> None:
            model(inputs).square().mean().backward()
            for work in [manager.allreduce(parameter.grad) for parameter in model.parameters()]:
                work.wait()

        for together in _torchft_steps(manager, optimizer, backward):
            _write(lines, {"step": manager.current_step(), "size": together, "at": time.monotonic()})


def _hivemind(told: Told, model: Any, *, batch: int, small: int, matchmaking: float, averaging: float = 20.0) -> Any:
    """A peer of the swarm that finds the others through whoever is there."""
    import hivemind
    import torch

    maddrs = ["/ip4/127.0.0.1/tcp/0"]
    dht = hivemind.DHT(start=True, host_maddrs=maddrs, initial_peers=_other_peer(Path(told["folder"])))
    (Path(told["folder"]) / f"peer-{_rank()}").write_text("\n".join(map(str, dht.get_visible_maddrs())))
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="beside",
        target_batch_size=batch,
        batch_size_per_step=small,
        params=list(model.parameters()),
        optimizer=lambda params: torch.optim.SGD(params, lr=1e-3),
        use_local_updates=False,
        matchmaking_time=matchmaking,
        averaging_timeout=averaging,
        verbose=False,
    )
    optimizer.load_state_from_peers()
    return optimizer


def _other_peer(folder: Path) -> list[str]:
    """Where another peer listens: the first one to start has none, one that comes back asks whoever stayed."""
    deadline = time.monotonic() + 60
    wait = _rank() != 0 or "PACELINE_LATE" in os.environ
    while wait and time.monotonic() < deadline:
        for path in folder.glob("peer-*"):
            if path.name != f"peer-{_rank()}" and path.read_text():
                return path.read_text().split()
        time.sleep(0.05)
    return []


def _hivemind_epochs(optimizer: Any, model: Any, inputs: Any, *, deadline: float = math.inf) -> Iterator[int]:
    """The peers that are known after each common update."""
    while time.monotonic() < deadline:
        epoch = optimizer.local_epoch
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if optimizer.local_epoch > epoch:
            yield optimizer.tracker.global_progress.num_peers


def hivemind_rate(told: Told) -> None:
    """hivemind: each peer adds small batches until all together have the global one."""
    import torch

    batch, folder = _batch(told), Path(told["folder"])
    model, small = _model(told), max(1, _batch(told) // 40)
    optimizer = _hivemind(told, model, batch=batch, small=small, matchmaking=max(0.2, told["step"] / 2))
    ends: list[float] = []
    deadline = time.monotonic() + 90
    # The last update of a peer whose partner has stopped may hang; what was timed before counts.
    late = threading.Timer(120, _rate, (ends, batch))
    late.daemon = True
    late.start()
    for _ in _hivemind_epochs(optimizer, model, torch.randn(small, 1), deadline=deadline):
        ends.append(time.perf_counter())
        if len(ends) == told["steps"] + WARMUP:
            break
    (folder / f"done-{_rank()}").touch()
    while len(list(folder.glob("done-*"))) < len(told["speeds"]) and time.monotonic() < deadline:
        time.sleep(0.1)
    _rate(ends, batch)


def hivemind_kill(told: Told) -> None:
    """The same model by hivemind; a step is a common update."""
    import hivemind  # noqa: F401 - loading it is no part of joining
    import torch

    model, small = _quick_model(), QUICK_BATCH // 6
    with _lines(told) as lines:
        _write(lines, {"joins": time.monotonic()})
        optimizer = _hivemind(told, model, batch=QUICK_BATCH, small=small, matchmaking=0.2, averaging=5.0)
        for together in _hivemind_epochs(optimizer, model, torch.randn(small, 20)):
            _write(lines, {"step": optimizer.local_epoch, "size": together, "at": time.monotonic()})


def _lines(told: Told) -> Any:
    return (Path(told["folder"]) / f"{os.environ['WORKER']}.steps").open("a")


def _write(lines: Any, record: dict[str, Any]) -> None:
    lines.write(json.dumps(record) + "\n")
    lines.flush()


WORKERS: dict[str, Callable[[Told], None]] = {
    "paceline-rate": paceline_rate,
    "paceline-kill": paceline_kill,
    "torchft-rate": torchft_rate,
    "torchft-kill": torchft_kill,
    "hivemind-rate": hivemind_rate,
    "hivemind-kill": hivemind_kill,
}

if __name__ == "__main__":
    WORKERS[sys.argv[1]](json.loads(sys.argv[2]))
