"""Real compute on two ranks of which one is throttled: achieved throughput over the sum of both alone.

python benchmarks/throttled.py --json

The second rank is held to a quarter of a processor by a control group (as root; by stopping and continuing it where
there is none). Alone it is throttled in the same way, so the sum is what both can do on this machine. `paceline` knows
nothing of it; `ddp` is DistributedDataParallel with equal batches, for comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time

import ranks

BATCH, WARMUP = 320, 12


def main() -> None:
    """Each rank alone, then both together, in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.25, help="of a processor that the second rank has")
    parser.add_argument("--turns", type=int, default=2, help="times that everything runs")
    parser.add_argument("--steps", type=int, default=20, help="counted steps of a run")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--worker", choices=["paceline", "ddp"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.steps)
    found: dict[str, list[float]] = {"paceline": [], "ddp": []}
    for _ in range(args.turns):
        alone = sum(run("paceline", [share], args.steps) for share in (1.0, args.share))
        for way, values in found.items():
            values.append(run(way, [1.0, args.share], args.steps) / alone)
    result = {way: round(statistics.median(values), 4) for way, values in found.items()}
    if args.json:
        spread = {way: [round(min(values), 4), round(max(values), 4)] for way, values in found.items()}
        print(json.dumps({**result, "share": args.share, "turns": args.turns, "range": spread}))
    else:
        for way, value in result.items():
            print(f"{way:12} {value:.3f}")


def run(way: str, shares: list[float], steps: int) -> float:
    """Samples per second of all ranks, each held to its share of a processor."""
    from paceline.bench.virtual.hosts.throttle import group_for, join_group, remove_groups

    instance = f"throttled{os.getpid()}"

    def held(rank: int, command: list[str]) -> list[str]:
        if shares[rank] >= 1:
            return command
        group = group_for(instance, f"rank{rank}", share=shares[rank])
        if group is None:
            return [sys.executable, "-m", "paceline.bench.virtual.hosts.throttle", str(shares[rank]), *command]
        return join_group(group, command)

    try:
        return float(ranks.run(__file__, ["--worker", way, "--steps", str(steps)], len(shares), on=held)[0])
    finally:
        remove_groups(instance)


def worker(way: str, steps: int) -> None:
    """One rank."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.GroupNorm(8, outputs), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(4 * BATCH, 3, 32, 32), torch.randint(10, (4 * BATCH,))
    ends = (by_paceline if way == "paceline" else by_ddp)(model, optimizer, images, labels, steps + WARMUP)
    timed = ends[WARMUP:]
    ranks.finish(BATCH * (len(timed) - 1) / (timed[-1] - timed[0]))


def by_paceline(model, optimizer, images, labels, steps):
    """Five lines of a user's loop, no number about the devices."""
    from torch.nn.functional import cross_entropy
    from torch.utils.data import TensorDataset

    from paceline.runtime import join

    ends = []
    with join(model, optimizer, TensorDataset(images, labels), global_batch=BATCH) as pace:
        for batch in pace.batches(steps=steps):
            pace.step(cross_entropy(model(batch.inputs), batch.targets))
            ends.append(time.perf_counter())
    return ends


def by_ddp(model, optimizer, images, labels, steps):
    """Equal batches."""
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    wrapped = DistributedDataParallel(model)
    ends = []
    for _ in range(steps):
        chosen = torch.randint(len(images), (BATCH // dist.get_world_size(),))
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(wrapped(images[chosen]), labels[chosen]).backward()
        optimizer.step()
        ends.append(time.perf_counter())
    dist.barrier()
    return ends


if __name__ == "__main__":
    main()
