"""A DDP training on two ranks under torch.profiler; then rank 1 leaves out a collective, and both dump recorders."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _dump_fr_trace
from torch.profiler import ProfilerActivity, profile, schedule

folder = Path(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))
model = nn.parallel.DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(128, 64), torch.randint(0, 8, (128,)))

with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=5, repeat=1),
    on_trace_ready=lambda prof: prof.export_chrome_trace(str(folder / f"trace-rank{rank}.json")),
) as prof:
    for inputs, targets in torch.utils.data.DataLoader(data, batch_size=16):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        prof.step()

work = dist.all_reduce(torch.ones(1000), async_op=True) if rank == 0 else None
(folder / f"dump_{rank}").write_bytes(_dump_fr_trace())
if rank == 1:
    dist.all_reduce(torch.ones(1000))
if work is not None:
    work.wait()
dist.destroy_process_group()
