"""Trainings as strangers write them: argv is the kind and the number of steps. Knows nothing of Paceline."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

F = nn.functional
X, Y = torch.randn(64, 32), torch.randint(10, (64,))
GRAPHS = "aot_eager"


class Net(nn.Module):
    """Three layers; `again` computes the middle one again in backward."""

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.again = again
        self.first, self.middle, self.last = nn.Linear(32, 256), nn.Linear(256, 256), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = checkpoint(self.middle, x, use_reentrant=False) if self.again else self.middle(x)
        return self.last(torch.relu(x))


def sgd(model: nn.Module, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, **more)


def train(model: Callable[..., Tensor], optimizer: torch.optim.Optimizer, steps: int, parts: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        for part in range(parts):
            silent = model.no_sync() if hasattr(model, "no_sync") and part < parts - 1 else contextlib.nullcontext()
            with silent:
                F.cross_entropy(model(X), Y).backward()
        optimizer.step()


def compiled(steps: int) -> None:
    model = Net()
    train(torch.compile(model, backend=GRAPHS), sgd(model), steps)


def compiled_in_place(steps: int) -> None:
    model = Net()
    model.compile(backend=GRAPHS)
    train(model, sgd(model), steps)


def compiled_step(steps: int) -> None:
    model = Net()
    optimizer = sgd(model)
    loss_of = torch.compile(lambda x, y: F.cross_entropy(model(x), y), backend=GRAPHS)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(X, Y).backward()
        optimizer.step()


def compiled_part(steps: int) -> None:
    model = Net()
    model.middle = torch.compile(model.middle, backend=GRAPHS)  # type: ignore[assignment]
    train(model, sgd(model), steps)


def again(steps: int) -> None:
    model = Net(again=True)
    train(model, sgd(model), steps)


def whole_again(steps: int) -> None:
    model = Net()
    x = X.clone().requires_grad_()
    optimizer = sgd(model)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(checkpoint(model, x, use_reentrant=True), Y).backward()
        optimizer.step()


def accumulated(steps: int) -> None:
    model = Net()
    train(model, sgd(model), steps, parts=3)


def mixed(steps: int) -> None:
    model = Net()
    optimizer = sgd(model)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(X), Y)
        loss.backward()
        optimizer.step()


def tied(steps: int) -> None:
    model = Net()
    model.middle.weight = nn.Parameter(torch.randn(256, 256) / 16)
    model.spare = nn.Linear(7, 7)
    model.twin = model.middle
    train(model, sgd(model), steps)


def data_parallel(steps: int) -> None:
    model = Net()
    train(nn.DataParallel(model), sgd(model), steps)


def leaves(steps: int) -> None:
    again(steps)
    sys.exit(7)


def raises(steps: int) -> None:
    again(steps)
    raise ValueError("the user's own error")


def interrupted(steps: int) -> None:
    again(steps)
    os.kill(os.getpid(), signal.SIGINT)


def killed(steps: int) -> None:
    again(steps)
    os.kill(os.getpid(), signal.SIGKILL)


def rank_of_two(rank: int, place: str, kind: str, steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    model = Net()
    if kind == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp

        shards = Fsdp(model, device_id=torch.device("cpu"))
        train(shards, sgd(shards), steps)
    else:
        trained = nn.parallel.DistributedDataParallel(model)
        train(torch.compile(trained, backend=GRAPHS) if kind == "compiled" else trained, sgd(model), steps, parts=2)
    dist.destroy_process_group()


def spawned(steps: int, kind: str = "", start: str = "spawn") -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(rank_of_two, (f"{folder}/meet", kind, steps), nprocs=2, start_method=start)


def forked(steps: int) -> None:
    spawned(steps, start="fork")


def spawned_compiled(steps: int) -> None:
    spawned(steps, "compiled")


def fsdp1(steps: int) -> None:
    spawned(steps, "fsdp1")


def gan(steps: int, often: int = 1) -> None:
    made, judge = nn.Linear(16, 32), nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
    of_judge, of_made = torch.optim.Adam(judge.parameters()), torch.optim.Adam(made.parameters())
    for _ in range(steps):
        for _ in range(often):
            with torch.no_grad():
                false = made(torch.randn(64, 16))
            of_judge.zero_grad()
            (judge(false).mean() - judge(X).mean()).backward()
            of_judge.step()
        of_made.zero_grad()
        (-judge(made(torch.randn(64, 16))).mean()).backward()
        of_made.step()


def gan_of_five(steps: int) -> None:
    gan(steps, often=5)


def closures(steps: int) -> None:
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


def folds(steps: int) -> None:
    for _ in range(3):
        model = Net()
        train(model, sgd(model), steps)


def by_hand(steps: int) -> None:
    model = Net()
    for _ in range(steps):
        F.cross_entropy(model(X), Y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None


def functional(steps: int) -> None:
    weight = torch.randn(32, 10, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(X @ weight, Y).backward()
        optimizer.step()


def elsewhere(steps: int) -> None:
    """On a device that is not the host: copies to it are a phase."""
    model = Net().to("meta")
    optimizer = sgd(model)
    for _ in range(steps):
        optimizer.zero_grad()
        x, y = X.to("meta"), Y.to(device="meta")
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def each(kinds: str, steps: int, place: str) -> None:
    """Watch kinds one after the other in this process, each in a folder of its own, with what compiling it took."""
    from torch._dynamo.utils import counters

    from paceline.runtime.watch.hooks import Hooks
    from paceline.runtime.watch.recorder import Recorder

    for kind in kinds.split(","):
        counters.clear()
        os.mkdir(f"{place}/{kind}")
        recorder = Recorder(f"{place}/{kind}")
        hooks = Hooks(recorder)
        globals()[kind](steps)
        hooks.remove()
        made, broken = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
        recorder.facts.update(graph_count=made, graph_breaks=broken)
        recorder.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "each":
        each(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        globals()[sys.argv[1]](int(sys.argv[2]))
