"""A user's training script with a plant: argv is STEPS and what goes wrong. Knows nothing of Paceline."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Three layers, wide enough that a step takes some milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 512), nn.Linear(512, 512), nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.second(torch.relu(self.first(x)))))


def shard(model: nn.Module, plant: str, world: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world,))
    if plant == "tensor":
        parallelize_module(model, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    else:
        fully_shard(model, mesh=mesh)


def main() -> None:
    steps, plant = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    model: nn.Module = Net()
    if world > 1:
        dist.init_process_group("gloo")
    if plant in ("tensor", "fully"):
        shard(model, plant, world)
    elif world > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    data = TensorDataset(torch.randn(64 * steps, 64), torch.randint(10, (64 * steps,)))
    for step, (inputs, targets) in enumerate(DataLoader(data, batch_size=64)):
        if plant == "slow" and rank == 1 and step >= 60:
            time.sleep(0.1)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if plant == "fail" and step == 40:
            sys.exit(7)
    sys.stdout.write(f"rank {rank} trained {step + 1} steps\n")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
