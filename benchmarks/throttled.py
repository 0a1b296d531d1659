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

import ranks

BATCH, WARMUP = 320, 12


def main() -> None:
    """Each rank alone, then both together, in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.25, help="of a processor that the second rank has")
    parser.add_argument("--turns", type=int, default=3, help="times that everything runs; the median counts")
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
    from real_loops import trained

    timed = trained(way, batch=BATCH, steps=steps + WARMUP)[WARMUP:]
    ranks.finish(BATCH * (len(timed) - 1) / (timed[-1] - timed[0]))


if __name__ == "__main__":
    main()
