"""Equal devices with real compute: the throughput of Paceline's group over that of DistributedDataParallel.

python benchmarks/equal.py --json

Two ranks with one thread each train a small convolutional network; the two ways run in turn, several times. Printed
are samples per second of both (`paceline`, `ddp`; medians over the turns) and the median and range of their ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

import ranks

BATCH, WARMUP = 64, 20


def main() -> None:
    """Run both in turn and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="times that both run")
    parser.add_argument("--steps", type=int, default=80, help="counted steps of a run")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--worker", choices=["paceline", "ddp"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.steps)
    found: dict[str, list[float]] = {"paceline": [], "ddp": []}
    result: dict[str, Any]
    for _ in range(args.turns):
        for way, values in found.items():
            values.append(ranks.run(__file__, ["--worker", way, "--steps", str(args.steps)], 2)[0])
    ratios = [mine / theirs for mine, theirs in zip(found["paceline"], found["ddp"], strict=True)]
    result = {way: round(statistics.median(values), 1) for way, values in found.items()}
    result |= {"ratio": round(statistics.median(ratios), 4), "range": [round(min(ratios), 4), round(max(ratios), 4)]}
    print(json.dumps(result) if args.json else f"Paceline reaches {result['ratio']:.3f} of DDP's throughput")


def worker(way: str, steps: int) -> None:
    """One rank: the median step."""
    from real_loops import trained

    ends = trained(way, batch=BATCH, steps=steps + WARMUP, hidden=(256,))
    times = [after - before for before, after in zip(ends[WARMUP:], ends[WARMUP + 1 :], strict=False)]
    ranks.finish(BATCH / statistics.median(times))


if __name__ == "__main__":
    main()
