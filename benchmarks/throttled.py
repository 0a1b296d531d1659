"""Real compute on two ranks of which one is throttled: achieved throughput over the sum of both alone.

python benchmarks/throttled.py --json

The second rank is held to a quarter of a processor by a control group (as root; by stopping and continuing it where
there is none). Alone it is throttled in the same way, so the sum is what both can do on this machine.
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
    parser.add_argument("--share", type=float, default=0.25, help="of the time that the second rank runs")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.steps)
    found = []
    for _ in range(args.turns):
        alone = run([1.0], args.steps)[0] + run([args.share], args.steps)[0]
        found.append(run([1.0, args.share], args.steps)[0] / alone)
    value = round(statistics.median(found), 4)
    print(json.dumps({"utilisation": value, "turns": found}) if args.json else f"utilisation {value:.3f}")


def run(shares: list[float], steps: int) -> list[float]:
    """Samples per second as each rank saw it, with every rank held to its share of a processor."""
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
        return [
            float(value) for value in ranks.run(__file__, ["--worker", "--steps", str(steps)], len(shares), on=held)
        ]
    finally:
        remove_groups(instance)


def worker(steps: int) -> None:
    """One rank."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy
    from torch.utils.data import TensorDataset

    from paceline.runtime import join

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.GroupNorm(8, outputs), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    dataset = TensorDataset(torch.randn(4 * BATCH, 3, 32, 32), torch.randint(10, (4 * BATCH,)))
    ends = []
    with join(model, optimizer, dataset, global_batch=BATCH) as pace:
        for batch in pace.batches(steps=steps + WARMUP):
            pace.step(cross_entropy(model(batch.inputs), batch.targets))
            ends.append(time.perf_counter())
    timed = ends[WARMUP:]
    ranks.finish(BATCH * (len(timed) - 1) / (timed[-1] - timed[0]))


if __name__ == "__main__":
    main()
