"""A rank slowed threefold in mid-run: how soon the group is back at the best that is now possible.

    .venv/bin/python benchmarks/drift.py

Two equal emulated devices; after 30 steps one becomes three times slower. For each step after the change the new
optimum's step time over the measured one is `reached`. A turn has recovered at the first step from which all but one
stay at 0.9 or above (a machine that does something else for a moment is no drift); printed is the slowest of the turns.
"""

from __future__ import annotations

import argparse
import os
import time

from lib import ranks
from lib.result import Figure, median_figure, parser_of, publish

PER_SAMPLE, BATCH, CHANGE, AFTER = 0.0005, 400, 30, 30


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--factor", type=float, default=3.0, help="how much slower the rank becomes")
    parser.add_argument("--turns", type=int, default=3, help="times that it happens")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.factor)
    optimum = PER_SAMPLE * BATCH / (1 + 1 / args.factor)
    turns = []
    for _ in range(args.turns):
        seconds = ranks.run(__file__, ["--worker", "--factor", str(args.factor)], 2)[0]
        turns.append([round(optimum / value, 3) for value in seconds])
    steps = [recovered_at(reached) for reached in turns]
    later = [value for at, reached in zip(steps, turns, strict=True) for value in reached[at:]]
    slowest = Figure("steps until 0.9 of the new optimum", max(steps), "", min(steps), max(steps), "range of turns")
    figures = [slowest, median_figure("of the new optimum afterwards", later or [0.0], of="steps")]
    publish(args, figures, turns={"reached": turns, "steps_to_recover": steps})


def recovered_at(reached: list[float]) -> int:
    """The first step from which all but one are good; the number of steps if it never comes to that."""
    good = (step for step in range(len(reached)) if min(sorted(reached[step:])[1:] or [0]) >= 0.9)
    return next(good, len(reached))


def worker(factor: float) -> None:
    """One rank; the second one slows down."""
    import torch
    from lib.layers import network
    from torch.utils.data import TensorDataset

    from paceline.runtime import join
    from paceline.runtime.emulate import Emulated

    torch.set_num_threads(1)
    device = Emulated(per_sample=PER_SAMPLE)
    model = network(4e6, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ends = []
    with join(model, optimizer, TensorDataset(torch.randn(4 * BATCH, 1)), global_batch=BATCH) as pace:
        for batch in pace.batches(steps=CHANGE + AFTER):
            if pace.position.step == CHANGE and os.environ["RANK"] == "1":
                device.speed = 1 / factor
            pace.step(model(batch.inputs).square().mean())
            ends.append(time.perf_counter())
    ranks.finish([after - before for before, after in zip(ends[CHANGE - 1 :], ends[CHANGE:], strict=False)])


if __name__ == "__main__":
    main()
