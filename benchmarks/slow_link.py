"""Two groups with a slow link between them: time to a fixed accuracy and final accuracy, against synchronous DDP.

    .venv/bin/python benchmarks/slow_link.py --seeds 0,1,2,3,4
    .venv/bin/python benchmarks/slow_link.py --tune

Two hosts of a virtual cluster, two ranks on each, 100 Mbit/s between them (root). Devices are emulated, the network
(0.5 million parameters), its gradients and scikit-learn's digits are real. `ddp` all-reduces every step over both
hosts; `groups` are one group for each host that takes H local steps between exchanges through the syncer, one shard on
each host, all groups in every round. Same samples, network, epochs and kind of optimiser. `--tune` tries batch sizes
and learning rates for both sides, and H for the groups, on seeds that are not measured, and writes the best to
benchmarks/lib/tuned/slow_link.json; it runs in virtual time, where an exchange takes its bytes over the bandwidth.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
from typing import Any

from lib import tuned
from lib.digits_jobs import Place, learn
from lib.result import Figure, median_figure, parser_of, publish

from paceline.bench.virtual.lifecycle import bring_up, take_down
from paceline.spec.cluster import Cluster, Device, Host, Link

GROUPS, EACH, BANDWIDTH, HIDDEN = 2, 2, 1e8 / 8, (680, 680)
PER_SAMPLE = 0.0006
BYTES = 4 * (64 * 680 + 680 + 680 * 680 + 680 + 680 * 10 + 10)
ALL_REDUCE = 2 * (GROUPS * EACH - 1) / (GROUPS * EACH) * BYTES / BANDWIDTH
"""Seconds that a ring needs for all gradients: what tuning assumes."""
EXCHANGE = 2 * BYTES / GROUPS / BANDWIDTH
"""Seconds for a group's progress to the other host's shard and its parameters back."""
BATCHES, RATES, LOCAL_STEPS = [64, 128, 256, 512], [0.05, 0.1, 0.2, 0.4], [4, 8, 16]


def main() -> None:
    """Both ways for each seed."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--accuracy", type=float, default=0.95)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--tune", action="store_true", help="find the best settings first")
    args = parser.parse_args()
    fixed = {"accuracy": args.accuracy, "epochs": args.epochs, "hidden": HIDDEN, "looks": 1, "devices": GROUPS * EACH}
    fixed |= {
        "outer": {},
        "ends": False,
        "per_sample": PER_SAMPLE,
        "straggle": 0.0,
        "momentum": 0.9,
        "rule": "divide",
        "quorum": GROUPS,
        "grace": 0.0,
    }
    if args.tune or not tuned.known("slow_link"):
        tune(fixed)
    seeds = [int(seed) for seed in args.seeds.split(",")]
    runs = measured(fixed, seeds)
    result = {way: summary([run for run in runs if run["way"] == way]) for way in ("ddp", "groups")}
    times = {way: [run["seconds"] for run in runs if run["way"] == way] for way in result}
    ratios = [ours / theirs for ours, theirs in zip(times["groups"], times["ddp"], strict=True)]
    points = 100 * (result["groups"]["final"] - result["ddp"]["final"])
    ratio = result["groups"]["seconds"] / result["ddp"]["seconds"]
    figures = [
        Figure("time to accuracy over DDP's", ratio, "", min(ratios), max(ratios), f"range of {len(seeds)} seeds"),
        *(median_figure(f"time to accuracy, {way}", values, "s", "seeds") for way, values in times.items()),
        Figure("final accuracy against DDP", points, "points"),
    ]
    settings = {way: chosen["settings"] for way, chosen in tuned.read("slow_link").items()}
    publish(args, figures, turns={"runs": runs, "summary": result, "settings": settings})


def tune(fixed: dict[str, Any]) -> None:
    """Both sides, in virtual time."""
    grid: dict[str, list[Any]] = {"batch": BATCHES, "rate": RATES}
    groups = {**fixed, "way": "groups", "groups": GROUPS, "exchange": EXCHANGE}
    sides = {
        "ddp": ({**fixed, "way": "ddp", "exchange": ALL_REDUCE}, grid),
        "groups": (groups, {**grid, "local_steps": LOCAL_STEPS}),
    }
    tuned.tune("slow_link", sides)


def measured(fixed: dict[str, Any], seeds: list[int]) -> list[dict[str, Any]]:
    """What the first rank of every run saw; both ways take turns."""
    chosen, runs = tuned.read("slow_link"), []
    with contextlib.ExitStack() as stack:
        up = bring_up(_cluster(), owner=os.getpid())
        stack.callback(take_down, up.home)
        for seed in seeds:
            for way in ("ddp", "groups"):
                told = {**fixed, **chosen[way]["settings"], "way": way, "seed": seed}
                first = learn(Place(up), told, each=EACH, shards=GROUPS)[0]
                runs.append({**first, "way": way, "seed": seed})
                print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    return runs


def summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Median time, mean final accuracy."""
    return {
        "seconds": round(statistics.median(run["seconds"] for run in runs), 2),
        "final": round(statistics.fmean(run["final"] for run in runs), 4),
        "reached": sum(run["reached"] for run in runs),
    }


def _cluster() -> Cluster:
    way, inside = Link(name="way", bandwidth=BANDWIDTH), Link(name="bus", bandwidth=1e11)
    devices = tuple(Device(name="cpu") for _ in range(EACH))
    hosts = [Host(name=f"h{index}", devices=devices, inside=inside, link=way) for index in range(GROUPS)]
    return Cluster(name="slow", hosts=tuple(hosts))


if __name__ == "__main__":
    main()
