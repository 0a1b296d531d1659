"""A rank slowed threefold in mid-run: how soon the group is back at the best that is now possible.

python benchmarks/drift.py --json

Two equal emulated devices; after 30 steps one becomes three times slower. Printed is, for each step after the change,
the new optimum's step time over the measured one, and the first step from which all but one stay at 0.9 or above.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import ranks

PER_SAMPLE, BATCH, CHANGE, AFTER = 0.0005, 400, 30, 30


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--factor", type=float, default=3.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.factor)
    seconds = ranks.run(__file__, ["--worker", "--factor", str(args.factor)], 2)[0]
    optimum = PER_SAMPLE * BATCH / (1 + 1 / args.factor)
    reached = [round(optimum / value, 3) for value in seconds]
    back = next(step for step in range(len(reached)) if min(sorted(reached[step:])[1:] or [0]) >= 0.9)
    if args.json:
        print(json.dumps({"steps_to_recover": back, "reached": reached}))
    else:
        print(f"back at 0.9 of the new optimum after {back} steps; {reached}")


def worker(factor: float) -> None:
    """One rank; the second one slows down."""
    import torch
    from layers import network
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
