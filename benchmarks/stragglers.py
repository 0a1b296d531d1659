"""Steps that sometimes take ten times as long: time to a fixed accuracy, synchronous against groups that do not wait.

    .venv/bin/python benchmarks/stragglers.py
    .venv/bin/python benchmarks/stragglers.py --tune
    .venv/bin/python benchmarks/stragglers.py --rules --seeds 0,1,2,3,4 --plot rules.svg

Equal emulated devices, each of whose steps is tenfold with 5 % probability, learn scikit-learn's digits. `synchronous`
is one group, its batches split equally, which is the balanced split of equal devices; `groups` are as many groups of
one that exchange through the syncer after every step with a quorum of K, so that nobody waits for a straggler. Both
use the same samples, network, kind of optimiser and global batch. The time is from the first step to the first of three
looks in a row at which the common parameters reach the held-out accuracy; synchronous ranks look after every step, a
group when it has exchanged, and of the groups the median counts. `--tune` tries learning rates and momentum for both
sides, K, the staleness rule and momentum of the common parameters for the groups, on seeds that are not measured and in
virtual time, and writes the best to benchmarks/lib/tuned/stragglers.json.

`--rules` compares the staleness rules (`keep` is the plain asynchronous parameter server) and `Settings.large_batch`
with the synchronous group, all in virtual time, with stragglers and without: each rule has the best rate and common
momentum of its grid, found on other seeds; `large_batch` has no tuning but the rate of a synchronous batch of 32, and
is shown with other momenta of the common parameters too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from operator import truediv as div
from pathlib import Path
from typing import Any

from lib import tuned
from lib.accuracy_plot import accuracy_figure
from lib.digits_jobs import Place, learn
from lib.result import Figure, median_figure, parser_of, publish

from paceline.report.plots import write_plot
from paceline.runtime.large.recipe import LARGE_OUTER
from paceline.runtime.syncer.rounds import StalenessRule

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
RATES = [0.1, 0.2, 0.4, 0.8, 1.6]
OUTERS: list[dict[str, Any]] = [
    {},
    {"momentum": 0.5, "delay": 4},
    {"momentum": 0.9, "delay": 1},
    {"momentum": 0.9, "delay": 8},
]
RULES: dict[str, dict[str, float]] = {"keep": {}, "divide": {}, "gap": {}, "compensate": {}, "discard": {"limit": 8}}
MOMENTA = [0.0, 0.9]
REFERENCE, WARMUP = 32, 20
"""Batch that the rate of `large_batch` is tuned for, and its steps of warm-up: two epochs of these few samples."""
PLACES = {"stragglers": STRAGGLE, "steady": 0.0}
SHOWN = ("synchronous", "keep", "divide", "large_batch")
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
    parser.add_argument("--rules", action="store_true", help="compare staleness rules, in virtual time")
    parser.add_argument("--quick", action="store_true", help="with --rules: nothing is tuned")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="with --rules: accuracy over time, ranges as bands")
    args = parser.parse_args()
    fixed = {"accuracy": args.accuracy, "epochs": args.epochs, "hidden": HIDDEN, "looks": LOOKS, "batch": BATCH}
    fixed |= {"per_sample": PER_SAMPLE, "straggle": STRAGGLE, "devices": args.devices, "exchange": EXCHANGE}
    fixed |= {"grace": GRACE, "local_steps": 1, "ends": True}
    if args.quick:
        RATES[:], OUTERS[:], MOMENTA[:] = RATES[2:3], OUTERS[:1], MOMENTA[:1]
    if args.rules:
        compare(args, fixed)
        return
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


def sides_of(fixed: dict[str, Any]) -> dict[str, tuned.Side]:
    """What is tuned: each way, and the small batch whose rate `large_batch` takes."""
    together = {**fixed, "way": "group"}
    groups = {**fixed, "way": "groups", "groups": fixed["devices"], "quorum": 1, "grace": 0.0, "momentum": 0.0}
    small = {**together, "batch": REFERENCE, "devices": 1, "straggle": 0.0, "momentum": 0.0}
    rules = {rule: {**groups, "rule": rule, "with": more} for rule, more in RULES.items()}
    return {
        "synchronous": (together, {"rate": RATES, "momentum": MOMENTA}),
        **{rule: (own, {"rate": RATES, "outer": OUTERS}) for rule, own in rules.items()},
        "large_batch": (small, {"rate": RATES}),
    }


def ways_of(sides: dict[str, tuned.Side], best: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each way with its best settings."""
    ways = {name: {**sides[name][0], **best[name]} for name in sides}
    groups = sides[StalenessRule().name][0]
    large = {"reference": REFERENCE, "warmup": WARMUP, "outer": vars(LARGE_OUTER), **best["large_batch"]}
    ways["large_batch"] = {**groups, **large}
    for outer in OUTERS:
        if outer != {"momentum": LARGE_OUTER.momentum, "delay": LARGE_OUTER.delay}:
            said = f"momentum {outer['momentum']}, delay {outer['delay']}" if outer else "no momentum"
            ways[f"large_batch with {said}"] = {**ways["large_batch"], "outer": outer}
    return ways


def compare(args: argparse.Namespace, fixed: dict[str, Any]) -> None:
    """Time to accuracy and final accuracy of all ways."""
    seeds, figures, panels = [int(seed) for seed in args.seeds.split(",")], [], []
    turns: dict[str, dict[str, Any]] = {}
    places = {place: sides_of({**fixed, "straggle": share}) for place, share in PLACES.items()}
    best = iter(tuned.best_settings([side for sides in places.values() for side in sides.values()]))
    ways = {place: ways_of(sides, {name: next(best) for name in sides}) for place, sides in places.items()}
    told = [one for place in ways.values() for one in place.values()]
    found = iter(tuned.simulated([{**one, "seed": seed, "curve": True} for one in told for seed in seeds]))
    for place, known in ways.items():
        for way, one in known.items():
            runs = [next(found) for _ in seeds]
            turns[f"{place}, {way}"] = {"settings": one, "runs": runs}
            seconds, final = [run["seconds"] for run in runs], [run["final"] for run in runs]
            figures.append(median_figure(f"{place}, {way}: time to accuracy", seconds, "s", "seeds"))
            figures.append(median_figure(f"{place}, {way}: final accuracy", final, "", "seeds"))
        shown = {way: [run["curve"] for run in turns[f"{place}, {way}"]["runs"]] for way in SHOWN}
        panels.append((place, accuracy_figure(shown)))
    if args.plot:
        write_plot(args.plot, "Digits: accuracy over time, range of seeds", panels)
    for item in turns.values():
        for run in item["runs"]:
            run.pop("curve")
    publish(args, figures, turns=turns)


if __name__ == "__main__":
    main()
