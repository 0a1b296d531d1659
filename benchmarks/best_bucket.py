"""Equal devices on a slow link: Paceline's own buckets against the best of DistributedDataParallel's bucket sizes.

    .venv/bin/python benchmarks/best_bucket.py          (as root: the hosts are network namespaces with a shaped link)

Devices are emulated, gradients are real and cross the link. DDP is given every bucket size of the sweep; Paceline is
given none. All run in turn, so that a drifting machine touches all alike. Printed are samples per second of Paceline
and of DDP with its best bucket size, the median and range of their ratio, and all of the sweep.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

from lib import ranks
from lib.result import median_figure, parser_of, publish

GRADIENTS, LAYERS, PER_SAMPLE, BATCH = 8e6, 16, 0.002, 100
SWEEP = (0.5, 1, 2, 4, 8, 25)
"""Bucket sizes of DDP in MiB."""
WARMUP = 24
"""Paceline arranges its buckets for the last time after 16 steps."""


def main() -> None:
    """Every way in turn, and the ratio."""
    parser = parser_of(__doc__)
    parser.add_argument("--bandwidth", type=float, default=1.25e8, help="bytes per second of the link")
    parser.add_argument("--turns", type=int, default=2, help="times that each runs")
    parser.add_argument("--steps", type=int, default=16, help="counted steps of a run")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.steps)
    found = measure(args.bandwidth, args.turns, args.steps)
    best = max((way for way in found if way != "paceline"), key=lambda way: statistics.median(found[way]))
    ratios = [mine / theirs for mine, theirs in zip(found["paceline"], found[best], strict=True)]
    names = {way: way if way == "paceline" else f"DDP, buckets of {way} MiB" for way in found}
    figures = [median_figure(f"throughput, {names[way]}", values, "samples/s") for way, values in found.items()]
    publish(args, [median_figure("throughput over DDP's best bucket", ratios), *figures], turns=found)


def measure(bandwidth: float, turns: int, steps: int) -> dict[str, list[float]]:
    """Samples per second of each way in every turn."""
    from paceline.bench.virtual.layout import INTERFACE
    from paceline.bench.virtual.lifecycle import bring_up, take_down
    from paceline.bench.virtual.namespaces import on_network
    from paceline.spec.cluster import Cluster, Device, Host, Link

    link, bus = Link(name="way", bandwidth=bandwidth), Link(name="bus", bandwidth=1e11)
    device = (Device(name="cpu", kind="cpu"),)
    hosts = tuple(Host(name=f"s{n}", devices=device, inside=bus, link=link) for n in range(2))
    up = bring_up(Cluster(name="slow", hosts=hosts), owner=os.getpid())
    try:
        seats = up.layout.seats
        env = {"MASTER_ADDR": seats[0].address, "GLOO_SOCKET_IFNAME": INTERFACE}
        found: dict[str, list[float]] = {}
        for number, way in enumerate(("paceline", *map(str, SWEEP)) * turns):
            given = ["--worker", way, "--steps", str(steps)]
            placed = {**env, "MASTER_PORT": str(21500 + number)}
            on = lambda rank, command: on_network(up.pid_of(seats[rank].name), command)  # noqa: E731
            found.setdefault(way, []).append(ranks.run(__file__, given, 2, on=on, env=placed)[0])
        return found
    finally:
        take_down(up.home)


def worker(way: str, steps: int) -> None:
    """One rank: samples per second of both."""
    import torch
    from lib.layers import network

    from paceline.runtime.emulate import Emulated

    torch.set_num_threads(1)
    model = network(GRADIENTS, Emulated(per_sample=PER_SAMPLE), layers=LAYERS)
    ends = by_paceline(model, steps + WARMUP) if way == "paceline" else by_ddp(model, steps + WARMUP, float(way))
    timed = ends[WARMUP:]
    ranks.finish(2 * BATCH * (len(timed) - 1) / (timed[-1] - timed[0]))


def by_paceline(model, steps):
    """No number about the link."""
    import torch
    from torch.utils.data import TensorDataset

    from paceline.runtime import join

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ends = []
    with join(model, optimizer, TensorDataset(torch.randn(8 * BATCH, 1)), global_batch=2 * BATCH) as pace:
        for batch in pace.batches(steps=steps):
            pace.step(model(batch.inputs).square().mean())
            ends.append(time.perf_counter())
    return ends


def by_ddp(model, steps, bucket):
    """One bucket size of the sweep."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    wrapped = DistributedDataParallel(model, bucket_cap_mb=bucket)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(8 * BATCH, 1)
    ends = []
    for _ in range(steps):
        wrapped(data[torch.randint(len(data), (BATCH,))]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        ends.append(time.perf_counter())
    dist.barrier()
    return ends


if __name__ == "__main__":
    main()
