"""What the syncer adds to a small step: two groups of one rank that exchange after every step, over one group of two.

    .venv/bin/python benchmarks/hybrid_step.py

LeNet, 8 samples per rank, real compute on loopback. `group` sums gradients; in `hybrid` each rank hands its progress to
a syncer, which has it on disk before it answers, and gets samples and parameters back. Also printed: what the disk
takes to synchronise a record of this size, for which every step of `hybrid` waits once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import secrets
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from lib import ranks
from lib.result import Figure, median_figure, parser_of, publish

PER_RANK, WARMUP = 8, 20


def main() -> int:
    """Both ways in turns."""
    parser = parser_of(__doc__)
    parser.add_argument("--turns", type=int, default=5, help="times that both run; the median counts")
    parser.add_argument("--steps", type=int, default=200, help="counted steps of a run")
    parser.add_argument("--quick", action="store_true", help="one turn, few steps")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.turns, args.steps = 1, 40
    if args.worker:
        worker(args.steps)
    steps: dict[str, list[float]] = {"group": [], "hybrid": []}
    for _ in range(args.turns):
        steps["group"].append(seconds(args.steps, {}))
        steps["hybrid"].append(hybrid(args.steps))
    ratios = [slow / quick for slow, quick in zip(steps["hybrid"], steps["group"], strict=True)]
    figures = [median_figure("step, hybrid over group", ratios)]
    figures += [median_figure(f"step, {way}", [1e3 * each for each in found], "ms") for way, found in steps.items()]
    figures.append(Figure("disk, one record", 1e3 * synchronising(), "ms"))
    return publish(args, figures, turns=steps)


def seconds(steps: int, env: dict[str, str]) -> float:
    """The typical step of the slower rank; each rank is a group of its own if there is a syncer."""

    def alone(rank: int, command: list[str]) -> list[str]:
        own = [f"PACELINE_GROUP=g{rank}", "PACELINE_GROUP_SHARE=0.5", "RANK=0", "WORLD_SIZE=1"] if env else []
        return ["env", *own, *command]

    return max(ranks.run(__file__, ["--worker", "--steps", str(steps)], 2, on=alone, env=env))


def hybrid(steps: int) -> float:
    """The same with a syncer."""
    with socket.socket() as probe, tempfile.TemporaryDirectory(dir=disk()) as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        about = {"index": 0, "folder": folder, "address": "127.0.0.1", "port": port, "groups": 2, "quorum": 1}
        settings = Path(folder, "shard.json")
        settings.write_text(json.dumps(about), encoding="utf-8")
        secret = secrets.token_hex(16)
        argv = [ranks.interpreter(), "-m", "paceline.runtime.syncer.shard", str(settings)]
        shard = subprocess.Popen(argv, env={**ranks.environment(1), "PACELINE_SECRET": secret})
        try:
            return seconds(steps, {"PACELINE_SYNCER": f"127.0.0.1:{port}", "PACELINE_SYNCER_SECRET": secret})
        finally:
            shard.kill()
            shard.wait()


def disk() -> Path:
    """A folder on the disk of the repository; others may be kept in memory."""
    folder = Path(__file__).parents[1] / "results" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def synchronising() -> float:
    """Seconds that a record of LeNet's parameters takes to be on disk, in place as in a journal."""
    found = []
    with tempfile.NamedTemporaryFile(dir=disk(), buffering=0) as file:
        for _ in range(21):
            file.seek(0)
            file.write(bytes(4 * 61_706))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            found.append(time.perf_counter() - began)
    return statistics.median(found[1:])


def worker(steps: int) -> None:
    """One rank."""
    import torch
    from torch.nn.functional import cross_entropy
    from torch.utils.data import TensorDataset

    from paceline.runtime import join

    torch.set_num_threads(1)
    model = lenet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    count = 2 * PER_RANK * (steps + WARMUP)
    torch.manual_seed(0)  # the same samples on all ranks
    data = TensorDataset(torch.randn(count, 1, 28, 28), torch.randint(10, (count,)))
    ends = []
    with join(model, optimizer, data, global_batch=2 * PER_RANK) as pace:
        for batch in pace.batches(epochs=1):
            pace.step(cross_entropy(model(batch.inputs), batch.targets))
            ends.append(time.perf_counter())
    timed = ends[WARMUP:]
    ranks.finish(statistics.median(later - sooner for sooner, later in itertools.pairwise(timed)))


def lenet() -> Any:
    """LeNet-5 with 61,706 parameters."""
    from torch import nn

    early = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    late = [nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*early, *late)


if __name__ == "__main__":
    raise SystemExit(main())
