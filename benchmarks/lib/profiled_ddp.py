"""A DDP training on two ranks under torch.profiler; argv is the folder of the traces."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

STEPS, BATCH = 12, 32


def main() -> None:
    """Train, and export the trace of this rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    channels = (3, 32, 64, 64, 128, 128)
    convolutions = [
        part for i, o in itertools.pairwise(channels) for part in (nn.Conv2d(i, o, 3, 2 - (i % 2), 1), nn.ReLU())
    ]
    net = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(512, 1024), nn.Linear(1024, 10))
    model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(16 * BATCH, 3, 32, 32), torch.randint(0, 10, (16 * BATCH,)))
    path = str(Path(sys.argv[1]) / f"rank{rank}.json")
    plan = schedule(wait=1, warmup=2, active=STEPS, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=lambda prof: prof.export_chrome_trace(path)
    ) as prof:
        for inputs, targets in torch.utils.data.DataLoader(data, batch_size=BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            prof.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
