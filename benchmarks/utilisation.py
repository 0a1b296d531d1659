"""How fully unequal devices are used: achieved throughput over the sum of what each does alone, in one run.

    .venv/bin/python benchmarks/utilisation.py --speeds 4,1

Devices are emulated by timed waits (see paceline.runtime.emulate), gradients are real and travel over Gloo. The
schemes run in turn, so that a drifting machine touches all alike: `paceline` (knows nothing of the speeds), `ddp`
(equal batches), `hand_tuned` (DDP with the right split written by hand and gradients weighted to match). With
`--framework keras` the ranks call `model.fit` with `paceline.keras.Join`, and `equal` is the same without balancing.
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor

from lib import ranks
from lib.result import median_figure, parser_of, publish

PER_SAMPLE = 0.002
"""Seconds per sample of the device with speed 1."""
SCHEMES = {"pytorch": ("paceline", "ddp", "hand_tuned"), "keras": ("paceline", "equal")}


def arguments() -> argparse.Namespace:
    """What is asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--speeds", default="4,1", help="relative speed of each rank's device")
    parser.add_argument("--step", type=float, default=0.2, help="seconds of a perfectly balanced step")
    parser.add_argument("--gradients", type=float, default=4e6, help="bytes of gradients")
    parser.add_argument("--steps", type=int, default=25, help="steps per scheme and turn")
    parser.add_argument("--warmup", type=int, default=12, help="first steps that are not counted")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--framework", choices=sorted(SCHEMES), default="pytorch")
    parser.add_argument("--schemes", help="default: all of the framework")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.schemes = args.schemes or ",".join(SCHEMES[args.framework])
    return args


def main() -> None:
    """Run every scheme in turn and print the utilisations."""
    args = arguments()
    if args.worker:
        worker(args)
        return
    speeds = [float(speed) for speed in args.speeds.split(",")]
    found: dict[str, list[float]] = {scheme: [] for scheme in args.schemes.split(",")}
    for _ in range(args.turns):
        with ThreadPoolExecutor() as pool:  # emulated devices leave the host idle, so they can be alone at once
            alone = sum(pool.map(lambda speed: launch(args, "solo", [speed]), speeds))
        for scheme in found:
            found[scheme].append(launch(args, scheme, speeds) / alone)
    figures = [median_figure(f"utilisation, {scheme}", values) for scheme, values in found.items()]
    publish(args, figures, turns=found)


def launch(args: argparse.Namespace, scheme: str, speeds: list[float]) -> float:
    """Samples per second of one scheme, as its first rank saw it."""
    given = ["--worker", scheme, "--speeds", ",".join(map(str, speeds)), "--step", str(args.step)]
    given += ["--gradients", str(args.gradients), "--steps", str(args.steps), "--warmup", str(args.warmup)]
    given += ["--framework", args.framework]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": os.environ.get("KERAS_BACKEND", "tensorflow")}
    return float(ranks.run(__file__, given, len(speeds), env=quiet, framework=args.framework)[0])


def worker(args: argparse.Namespace) -> None:
    """One rank of one scheme."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    speeds = [float(speed) for speed in args.speeds.split(",")]
    rank, size = int(os.environ["RANK"]), len(speeds)
    batch = round(args.step * sum(speeds) / PER_SAMPLE) if size > 1 else round(args.step * speeds[0] / PER_SAMPLE)
    ours = run_keras if args.framework == "keras" else run_paceline
    run = {"ddp": run_ddp, "hand_tuned": run_ddp}.get(args.worker, ours)
    shares = None
    if args.worker == "hand_tuned":
        shares = [round(batch * speed / sum(speeds)) for speed in speeds]
        shares[0] += batch - sum(shares)
    ends = run(args, batch, rank, speed=speeds[rank], shares=shares or [batch // size] * size)
    timed = ends[args.warmup :]
    used = batch // size * size if args.worker == "ddp" else batch
    ranks.finish(used * (len(timed) - 1) / (timed[-1] - timed[0]))


def run_paceline(args: argparse.Namespace, batch: int, rank: int, *, speed: float, shares: list[int]) -> list[float]:
    """Five lines of a user's loop, no number about the devices."""
    import torch
    from lib.layers import network
    from torch.utils.data import TensorDataset

    from paceline.runtime import join
    from paceline.runtime.emulate import Emulated

    model = network(args.gradients, Emulated(per_sample=PER_SAMPLE, speed=speed))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    dataset = TensorDataset(torch.randn(batch * 4, 1))
    ends = []
    with join(model, optimizer, dataset, global_batch=batch) as pace:
        for items in pace.batches(steps=args.steps + args.warmup):
            pace.step(model(items.inputs).square().mean())
            ends.append(time.perf_counter())
    return ends


def run_keras(args: argparse.Namespace, batch: int, rank: int, *, speed: float, shares: list[int]) -> list[float]:
    """One line of a user's `fit`."""
    import keras
    import numpy as np
    from lib.keras_layers import Clock, network

    import paceline

    model = network(args.gradients)
    join = paceline.keras.Join(batch, paceline.Settings(balance=args.worker != "equal"))
    clock = Clock(join, per_sample=PER_SAMPLE, speed=speed)
    epochs = -(-(args.steps + args.warmup) // 4)
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    data = np.random.default_rng(0).standard_normal((batch * 4, 1)).astype("float32")
    model.fit(data, data, epochs=epochs, verbose=0, callbacks=[join, clock])
    return clock.ends[: args.steps + args.warmup]


def run_ddp(args: argparse.Namespace, batch: int, rank: int, *, speed: float, shares: list[int]) -> list[float]:
    """DistributedDataParallel; unequal shares by hand need weighted losses."""
    import torch
    import torch.distributed as dist
    from lib.layers import network
    from torch.nn.parallel import DistributedDataParallel

    from paceline.runtime.emulate import Emulated

    dist.init_process_group("gloo")
    model = network(args.gradients, Emulated(per_sample=PER_SAMPLE, speed=speed))
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(batch * 4, 1)
    ends = []
    for _ in range(args.steps + args.warmup):
        chosen = torch.randint(len(data), (shares[rank],))
        loss = wrapped(data[chosen]).square().mean() * (shares[rank] * len(shares) / sum(shares))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        ends.append(time.perf_counter())
    dist.barrier()
    return ends


if __name__ == "__main__":
    main()
