"""One rank's loader is slow, so that the rank is bound by its input: reached throughput over that of the best split.

    .venv/bin/python benchmarks/slow_loader.py

Two equal emulated devices, DataLoaders with two workers each; the second rank's samples take long to load, so that it
gets a quarter of what its device could take. The best split is what both ranks do alone, together: measured in the same
turn. `paceline` knows nothing of it; `ddp` is DistributedDataParallel with the same loaders and equal batches.
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lib import ranks
from lib.result import median_figure, parser_of, publish

PER_SAMPLE, BATCH, WORKERS = 0.002, 200, 2
LOADS = {"quick": 0.0002, "slow": 4 * WORKERS * PER_SAMPLE}
"""Seconds to load a sample, of the first rank and of the second."""


def main() -> int:
    """Each rank alone, then both together, in turns."""
    parser = parser_of(__doc__)
    parser.add_argument("--turns", type=int, default=3, help="times that everything runs; the median counts")
    parser.add_argument("--steps", type=int, default=30, help="counted steps of a run")
    parser.add_argument("--warmup", type=int, default=20, help="first steps that are not counted")
    parser.add_argument("--quick", action="store_true", help="one turn, few steps")
    parser.add_argument("--worker", choices=["paceline", "ddp"], help=argparse.SUPPRESS)
    parser.add_argument("--loads", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.turns, args.steps, args.warmup = 1, 12, 16
    if args.worker:
        worker(args)
    found: dict[str, list[float]] = {"paceline": [], "ddp": []}
    for _ in range(args.turns):
        with ThreadPoolExecutor() as pool:  # emulated devices leave the host idle, so they can be alone at once
            best = sum(pool.map(lambda load: run(args, "paceline", [load]), LOADS))
        for way, values in found.items():
            values.append(run(args, way, list(LOADS)) / best)
    figures = [median_figure(f"of the best split, {way}", values) for way, values in found.items()]
    return publish(args, figures, turns=found)


def run(args: argparse.Namespace, way: str, loads: list[str]) -> float:
    """Samples per second of all ranks."""
    given = ["--worker", way, "--loads", ",".join(loads), "--steps", str(args.steps), "--warmup", str(args.warmup)]
    return float(ranks.run(__file__, given, len(loads))[0])


def worker(args: argparse.Namespace) -> None:
    """One rank."""
    import torch
    from lib.layers import network

    from paceline.runtime.emulate import Emulated

    torch.set_num_threads(1)
    loads = args.loads.split(",")
    batch = BATCH if len(loads) > 1 else BATCH // 2 if loads == ["quick"] else BATCH // 8
    model = network(4e6, Emulated(per_sample=PER_SAMPLE))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    train = {"paceline": by_paceline, "ddp": by_ddp}[args.worker]
    dataset = slow_samples(LOADS[loads[int(os.environ["RANK"])]], batch * (args.steps + args.warmup))
    ends = train(model, optimizer, dataset, batch)[args.warmup :]
    ranks.finish(batch * (len(ends) - 1) / (ends[-1] - ends[0]))


def slow_samples(seconds: float, count: int) -> Any:
    """A dataset whose samples take so long to load."""
    import torch
    from torch.utils.data import Dataset

    class Slow(Dataset[Any]):
        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> Any:
            time.sleep(seconds)
            return torch.zeros(1)

    return Slow()


def by_paceline(model: Any, optimizer: Any, dataset: Any, batch: int) -> list[float]:
    """Moments at which steps ended."""
    from torch.utils.data import DataLoader

    from paceline.runtime import join

    def loaders(sampler: Any) -> Any:
        return DataLoader(dataset, batch_sampler=sampler, num_workers=WORKERS)

    ends = []
    with join(model, optimizer, loaders, global_batch=batch) as pace:
        for items in pace.batches(epochs=1):
            pace.step(model(items.inputs).square().mean())
            ends.append(time.perf_counter())
    return ends


def by_ddp(model: Any, optimizer: Any, dataset: Any, batch: int) -> list[float]:
    """The same with equal batches."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler

    dist.init_process_group("gloo")
    wrapped = DistributedDataParallel(model)
    sampler = DistributedSampler(dataset)
    ends = []
    for inputs in DataLoader(dataset, batch // dist.get_world_size(), sampler=sampler, num_workers=WORKERS):
        optimizer.zero_grad(set_to_none=True)
        wrapped(inputs).square().mean().backward()
        optimizer.step()
        ends.append(time.perf_counter())
    dist.barrier()
    return ends


if __name__ == "__main__":
    raise SystemExit(main())
