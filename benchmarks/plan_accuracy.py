"""Predicted against reached: what the plan says of emulated clusters, and what the runtime then does on them.

python benchmarks/plan_accuracy.py --json

The devices are emulated on this machine, so the links of the planned clusters are its loopback: 1 GB/s and 0.2 ms,
about what Gloo reaches here between two processes. Only the one-group candidate is run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import ranks

CLUSTERS = ([4, 1], [1, 1], [3, 2], [4, 2, 1], [2, 2, 1], [4, 2, 1, 1], [8, 1], [3, 3, 1, 1])
GRADIENTS, STEP, PER_SAMPLE = 4e6, 0.2, 0.002
WARMUP, STEPS = 10, 12


def main() -> None:
    """Plan, run and compare every cluster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker([float(speed) for speed in args.worker.split(",")])
    rows = []
    for speeds in CLUSTERS:
        expected = predicted(speeds)
        reached = ranks.run(__file__, ["--worker", ",".join(map(str, speeds))], len(speeds))[0]
        rows.append({"speeds": speeds, "predicted": round(expected, 1), "measured": round(reached, 1)})
        rows[-1]["error"] = round(expected / reached - 1, 4)
    worst = max(abs(row["error"]) for row in rows)
    if args.json:
        print(json.dumps({"worst_error": worst, "clusters": rows}))
    else:
        for row in rows:
            print(row)
        print(f"worst error {worst:.1%}")


def batch_of(speeds: list[float]) -> int:
    """A global batch that makes the balanced step last as long as asked."""
    return round(STEP * sum(speeds) / PER_SAMPLE)


def predicted(speeds: list[float]) -> float:
    """The plan's throughput for one balanced group of all devices."""
    from paceline.model.plan.cost import Workload
    from paceline.model.plan.search import make_plan
    from paceline.spec.cluster import Cluster, Device, Emulation, Host, Link

    batch = batch_of(speeds)
    seconds = PER_SAMPLE * batch
    loopback = Link(name="loopback", bandwidth=1e9, latency=2e-4)
    devices = [
        Device(name=f"d{i}", emulation=Emulation(forward=seconds / 3, backward=seconds * 2 / 3, speed=float(speed)))
        for i, speed in enumerate(speeds)
    ]
    hosts = tuple(Host(name=f"h{i}", devices=(d,), inside=loopback, link=loopback) for i, d in enumerate(devices))
    work = Workload("emulated", macs=0, layers=8, gradient_bytes=GRADIENTS, activation_bytes=0)
    plan = make_plan(Cluster(name="emulated", hosts=hosts), work, global_batch=batch)
    chosen = [item for item in plan.ranked if item.kind == "synchronous" and len(item.groups[0]) == len(speeds)]
    return chosen[0].predicted_throughput


def worker(speeds: list[float]) -> None:
    """One rank of the real run."""
    import os

    import torch
    from layers import network
    from torch.utils.data import TensorDataset

    from paceline.runtime import join
    from paceline.runtime.emulate import Emulated

    torch.set_num_threads(1)
    batch = batch_of(speeds)
    model = network(GRADIENTS, Emulated(per_sample=PER_SAMPLE, speed=speeds[int(os.environ["RANK"])]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ends = []
    with join(model, optimizer, TensorDataset(torch.randn(4 * batch, 1)), global_batch=batch) as pace:
        for items in pace.batches(steps=WARMUP + STEPS):
            pace.step(model(items.inputs).square().mean())
            ends.append(time.perf_counter())
    times = [after - before for before, after in zip(ends[WARMUP:], ends[WARMUP + 1 :], strict=False)]
    ranks.finish(batch / statistics.mean(times))


if __name__ == "__main__":
    main()
