"""Steps that sometimes take ten times as long: time to a fixed accuracy, synchronous against groups that do not wait.

    .venv/bin/python benchmarks/stragglers.py
    .venv/bin/python benchmarks/stragglers.py --tune

Equal emulated devices, each of whose steps is tenfold with 5 % probability, learn scikit-learn's digits. `synchronous`
is one group, its batches split equally, which is the balanced split of equal devices; `groups` are as many groups of
one that exchange through the syncer after every step with a quorum of K, so that nobody waits for a straggler. Both
use the same samples, network, kind of optimiser and global batch. The time is from the first step to the first of three
looks in a row at which the common parameters reach the held-out accuracy; synchronous ranks look after every step, a
group when it has exchanged, and of the groups the median counts. `--tune` tries learning rates and momentum for both
sides, K, the staleness rule and momentum of the common parameters for the groups, on seeds that are not measured and in
virtual time, and writes the best to benchmarks/lib/tuned/stragglers.json.
"""

from __future__ import annotations

import statistics
import sys
from operator import truediv as div
from typing import Any

from lib import tuned
from lib.digits_jobs import Place, learn
from lib.result import Figure, median_figure, parser_of, publish

BATCH, PER_SAMPLE, HIDDEN, LOOKS, STRAGGLE, GRACE = 128, 0.006, (64,), 3, 0.05, 0.02
SYNCHRONOUS: dict[str, list[Any]] = {"rate": [0.1, 0.2, 0.4, 0.8], "momentum": [0.0, 0.5, 0.9]}
GROUPS: dict[str, list[Any]] = {
    "rate": [0.2, 0.4, 0.8],
    "momentum": [0.0, 0.9],
    "outer": [{}, {"momentum": 0.9, "delay": 1}, {"momentum": 0.9, "delay": 8}],
    "quorum": [1, 4],
    "rule": ["keep", "divide"],
}
"""What is tried."""
EXCHANGE = 0.01
"""Seconds of an exchange on one machine: what tuning assumes."""


def main() -> None:
    """Run both ways for each seed and print the ratio of times."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--accuracy", type=float, default=0.94)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--tune", action="store_true", help="find the best settings first")
    args = parser.parse_args()
    fixed = {"accuracy": args.accuracy, "epochs": args.epochs, "hidden": HIDDEN, "looks": LOOKS, "batch": BATCH}
    fixed |= {"per_sample": PER_SAMPLE, "straggle": STRAGGLE, "devices": args.devices, "exchange": EXCHANGE}
    fixed |= {"grace": GRACE, "local_steps": 1, "ends": True}
    if args.tune or not tuned.known("stragglers"):
        tune(fixed)
    chosen = tuned.read("stragglers")
    found: dict[str, list[float]] = {way: [] for way in chosen}
    for seed in args.seeds.split(","):
        for way, times in found.items():
            times.append(run({**fixed, **chosen[way]["settings"], "seed": int(seed)}, way))
            print(f"{way} {seed}: {times[-1]:.2f} s", file=sys.stderr, flush=True)
    medians = {way: statistics.median(times) for way, times in found.items()}
    ratio, ratios = medians["groups"] / medians["synchronous"], list(map(div, found["groups"], found["synchronous"]))
    figures = [
        Figure(
            "time to accuracy over synchronous", ratio, "", min(ratios), max(ratios), f"range of {len(ratios)} seeds"
        ),
        *(median_figure(f"time to accuracy, {way}", times, "s", "seeds") for way, times in found.items()),
    ]
    settings = {way: item["settings"] for way, item in chosen.items()}
    publish(args, figures, turns={"seconds": found, "settings": settings})


def tune(fixed: dict[str, Any]) -> None:
    """Both sides, in virtual time."""
    groups = {**fixed, "way": "groups", "groups": fixed["devices"]}
    sides: dict[str, tuned.Side] = {"synchronous": ({**fixed, "way": "group"}, SYNCHRONOUS), "groups": (groups, GROUPS)}
    tuned.tune("stragglers", sides)


def run(told: dict[str, Any], way: str) -> float:
    """Seconds to the accuracy; the whole time and more if it was not reached."""
    if way == "synchronous":
        seen = learn(Place(), {**told, "way": "group"}, each=told["devices"])
        return float(seen[0]["seconds"])
    seen = learn(Place(), {**told, "way": "groups"}, each=1)
    return statistics.median(float(group["seconds"]) for group in seen)


if __name__ == "__main__":
    main()
