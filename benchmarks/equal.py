"""Equal devices with real compute: the throughput of Paceline's group over that of DistributedDataParallel.

    .venv/bin/python benchmarks/equal.py

Two ranks with one thread each train a small convolutional network; the two ways run in turn, several times. Printed
are samples per second of both (`paceline`, `ddp`; medians over the turns) and the median and range of their ratio.
"""

from __future__ import annotations

import argparse
import statistics

from lib import ranks
from lib.result import median_figure, parser_of, publish

BATCH, WARMUP = 64, 20


def main() -> None:
    """Run both in turn and print the ratio."""
    parser = parser_of(__doc__)
    parser.add_argument("--turns", type=int, default=5, help="times that both run")
    parser.add_argument("--steps", type=int, default=80, help="counted steps of a run")
    parser.add_argument("--worker", choices=["paceline", "ddp"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.steps)
    found: dict[str, list[float]] = {"paceline": [], "ddp": []}
    for _ in range(args.turns):
        for way, values in found.items():
            values.append(ranks.run(__file__, ["--worker", way, "--steps", str(args.steps)], 2)[0])
    ratios = [mine / theirs for mine, theirs in zip(found["paceline"], found["ddp"], strict=True)]
    figures = [median_figure(f"throughput, {way}", values, "samples/s") for way, values in found.items()]
    publish(args, [median_figure("throughput over DDP", ratios), *figures], turns=found)


def worker(way: str, steps: int) -> None:
    """One rank: the median step."""
    from lib.real_loops import trained

    ends = trained(way, batch=BATCH, steps=steps + WARMUP, hidden=(256,))
    times = [after - before for before, after in zip(ends[WARMUP:], ends[WARMUP + 1 :], strict=False)]
    ranks.finish(BATCH / statistics.median(times))


if __name__ == "__main__":
    main()
