"""Two ranks that hold one model in shards (FSDP2), and a slower one that holds it whole: how fully all three are used.

    .venv/bin/python benchmarks/fsdp_group.py --speeds 4,4,1

Devices are emulated by timed waits, shards and gradients are real and travel over Gloo. Utilisation is the achieved
throughput over the sum of what each rank does alone with the whole model. `paceline` has the units [0, 1] and [2] and
knows nothing of the speeds; `fsdp` shards over all ranks, which take equal parts of a batch.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lib import ranks
from lib.result import median_figure, parser_of, publish

PER_SAMPLE = 0.004
"""Seconds per sample of the device with speed 1."""
UNITS = [[0, 1], [2]]
BLOCKS = 2
"""Parts of the model that FSDP2 gathers one at a time. Over Gloo it takes about 3 ms for each of its three exchanges
of a part and hides none of them: with eight parts, 77 ms of a step by itself."""
STEADY, UNCHANGED = 3, 6
"""First steps that are not counted where no balance has to settle, and steps that are: those of a rank alone and of
FSDP2 over unequal ranks do not change, and the latter take three times as long as balanced ones."""


def main() -> int:
    """Both ways in turns."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--speeds", default="4,4,1", help="relative speeds of the two ranks with shards and of the third"
    )
    parser.add_argument("--step", type=float, default=0.4, help="seconds of a perfectly balanced step")
    parser.add_argument("--gradients", type=float, default=4e6, help="bytes of gradients")
    parser.add_argument("--steps", type=int, default=25, help="steps per way and turn")
    parser.add_argument("--warmup", type=int, default=12, help="first steps that are not counted, of balanced ones")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one turn, few steps")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.turns, args.steps = 1, 10
    if args.worker:
        worker(args)
    speeds = [float(speed) for speed in args.speeds.split(",")]
    found: dict[str, list[float]] = {"paceline": [], "fsdp": []}
    for _ in range(args.turns):
        with ThreadPoolExecutor() as pool:  # emulated devices leave the host idle, so they can be alone at once
            alone = sum(pool.map(lambda speed: launch(args, "alone", [speed]), speeds))
        for way, values in found.items():
            values.append(launch(args, way, speeds) / alone)
    figures = [median_figure(f"utilisation, {way}", values) for way, values in found.items()]
    return publish(args, figures, turns=found, passed=min(found["paceline"]) >= 0.9)


def launch(args: argparse.Namespace, way: str, speeds: list[float]) -> float:
    """Samples per second, as the first rank saw it."""
    with tempfile.TemporaryDirectory() as folder:
        given = ["--worker", way, "--speeds", ",".join(map(str, speeds)), "--step", str(args.step)]
        steps = args.steps if way == "paceline" else min(args.steps, UNCHANGED)
        warmup = args.warmup if way == "paceline" else STEADY
        given += ["--gradients", str(args.gradients), "--steps", str(steps), "--warmup", str(warmup)]
        return float(ranks.run(__file__, [*given, "--store", str(Path(folder) / "store")], len(speeds))[0])


def worker(args: argparse.Namespace) -> None:
    """One rank of one way."""
    import torch
    import torch.distributed as dist
    from lib.layers import network
    from torch.distributed.fsdp import fully_shard

    from paceline import shard_mesh
    from paceline.runtime.emulate import Emulated

    torch.set_num_threads(1)
    torch.manual_seed(0)
    speeds = [float(speed) for speed in args.speeds.split(",")]
    rank, size = int(os.environ["RANK"]), len(speeds)
    batch = round(args.step * sum(speeds) / PER_SAMPLE) // size * size
    model = network(args.gradients, Emulated(per_sample=PER_SAMPLE, speed=speeds[rank]))
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{args.store}", rank=rank, world_size=size)
        mesh = shard_mesh(UNITS if args.worker == "paceline" else [list(range(size))])
        if mesh is not None:
            for begin in range(0, len(model), len(model) // BLOCKS):
                fully_shard(list(model[begin : begin + len(model) // BLOCKS]), mesh=mesh)
            fully_shard(model, mesh=mesh)
    run = plain_loop if args.worker == "fsdp" else our_loop
    ends = run(model, batch, size, steps=args.steps + args.warmup)[args.warmup :]
    ranks.finish(batch * (len(ends) - 1) / (ends[-1] - ends[0]))


def our_loop(model, batch: int, size: int, *, steps: int) -> list[float]:  # type: ignore[no-untyped-def]
    """Five lines of a user's loop."""
    import torch
    from torch.utils.data import TensorDataset

    from paceline import join

    optimizer, ends = torch.optim.SGD(model.parameters(), lr=1e-3), []
    with join(model, optimizer, TensorDataset(torch.randn(batch * 4, 1)), global_batch=batch) as pace:
        for items in pace.batches(steps=steps):
            pace.step(model(items.inputs).square().mean())
            ends.append(time.perf_counter())
    return ends


def plain_loop(model, batch: int, size: int, *, steps: int) -> list[float]:  # type: ignore[no-untyped-def]
    """FSDP2 without Paceline."""
    import torch

    optimizer, ends = torch.optim.SGD(model.parameters(), lr=1e-3), []
    for _ in range(steps):
        model(torch.randn(batch // size, 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        ends.append(time.perf_counter())
    return ends


if __name__ == "__main__":
    raise SystemExit(main())
