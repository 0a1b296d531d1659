"""Real compute on two ranks of which one is throttled: achieved throughput over the sum of both alone.

    .venv/bin/python benchmarks/throttled.py

The second rank is held to a quarter of a processor by a control group (as root; by stopping and continuing it where
there is none). Alone it is throttled in the same way, so the sum is what both can do on this machine. `paceline` knows
nothing of it; `ddp` is DistributedDataParallel with equal batches, for comparison.
"""

from __future__ import annotations

import argparse
import os
import sys

from lib import ranks
from lib.result import median_figure, parser_of, publish

BATCH, WARMUP = 320, 12


def main() -> None:
    """Each rank alone, then both together, in turns."""
    parser = parser_of(__doc__)
    parser.add_argument("--share", type=float, default=0.25, help="of a processor that the second rank has")
    parser.add_argument("--turns", type=int, default=3, help="times that everything runs; the median counts")
    parser.add_argument("--steps", type=int, default=20, help="counted steps of a run")
    parser.add_argument("--worker", choices=["paceline", "ddp"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.steps)
    found: dict[str, list[float]] = {"paceline": [], "ddp": []}
    for _ in range(args.turns):
        alone = sum(run("paceline", [share], args.steps) for share in (1.0, args.share))
        for way, values in found.items():
            values.append(run(way, [1.0, args.share], args.steps) / alone)
    figures = [median_figure(f"utilisation, {way}", values) for way, values in found.items()]
    publish(args, figures, turns=found)


def run(way: str, shares: list[float], steps: int) -> float:
    """Samples per second of all ranks, each held to its share of a processor."""
    from paceline.bench.virtual.throttle import group_for, join_group, remove_groups

    instance = f"throttled{os.getpid()}"

    def held(rank: int, command: list[str]) -> list[str]:
        if shares[rank] >= 1:
            return command
        group = group_for(instance, f"rank{rank}", share=shares[rank])
        if group is None:
            return [sys.executable, "-m", "paceline.bench.virtual.throttle", str(shares[rank]), *command]
        return join_group(group, command)

    try:
        return float(ranks.run(__file__, ["--worker", way, "--steps", str(steps)], len(shares), on=held)[0])
    finally:
        remove_groups(instance)


def worker(way: str, steps: int) -> None:
    """One rank."""
    from lib.real_loops import trained

    timed = trained(way, batch=BATCH, steps=steps + WARMUP)[WARMUP:]
    ranks.finish(BATCH * (len(timed) - 1) / (timed[-1] - timed[0]))


if __name__ == "__main__":
    main()
