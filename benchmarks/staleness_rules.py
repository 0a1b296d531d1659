"""How stale progress should count: each rule of the syncer, large batches and synchronous steps, on three problems.

    .venv/bin/python benchmarks/staleness_rules.py --seeds 0,1,2,3,4 --plot rules.svg

The problems are real training of small networks: scikit-learn's digits, pictures of CIFAR's shape, a small GPT on text
(lib/problems.py). Eight equal devices, once with steps that are tenfold with 5 % probability (`stragglers`), once
without (`steady`). `synchronous` is one group; the others are eight groups of one that exchange through the syncer's
own rules after every step, without waiting for each other: `keep` is the plain asynchronous parameter server. Seconds
are virtual, so other load of the machine does not count. Each has the best rate and momentum of its grid, found on
seeds that are not measured; `large_batch` (`Settings.large_batch`) has no tuning but the rate of a synchronous batch of
32. The time is that of the first of three looks in a row at which the common parameters reach the held-out accuracy;
a run that never does counts with twice its whole time.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lib import tuned
from lib.accuracy_plot import accuracy_figure
from lib.result import median_figure, parser_of, publish

from paceline.report.plots import write_plot
from paceline.runtime.large.recipe import LARGE_OUTER
from paceline.runtime.syncer.rounds import RULES

WANTED = {"digits": (0.94, 6), "pictures": (0.94, 8), "text": (0.42, 8)}
"""Accuracy whose time counts, and epochs."""
PLACES = {"stragglers": 0.05, "steady": 0.0}
"""Probability of a step of ten times its length."""
FIXED: dict[str, Any] = {
    "batch": 128, "per_sample": 0.006, "devices": 8, "exchange": 0.01, "grace": 0.0, "looks": 3, "hidden": (64,),
    "local_steps": 1, "curve": True,
}  # fmt: skip
RATES, MOMENTA = [0.1, 0.2, 0.4, 0.8, 1.6], [0.0, 0.9]
OUTERS: list[dict[str, Any]] = [{}, {"momentum": 0.5, "delay": 4}, {"momentum": 0.9, "delay": 8}]
"""Momentum of the common parameters."""
REFERENCE, WARMUP = 32, 20
"""Batch that the rate of `large_batch` is tuned for, and its steps of warm-up: two epochs of these few samples."""
SHOWN = ("synchronous", "keep", "divide", "large_batch")


def main() -> int:
    """Tune and run every way on every problem."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--problems", nargs="+", choices=list(WANTED), default=list(WANTED))
    parser.add_argument("--quick", action="store_true", help="nothing is tuned")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="accuracy over time, ranges as bands")
    args = parser.parse_args()
    if args.quick:
        RATES[:], OUTERS[:], MOMENTA[:] = RATES[2:3], OUTERS[:1], MOMENTA[:1]
    turns: dict[str, dict[str, Any]] = {}
    for problem in args.problems:
        for place in PLACES:
            turns |= {f"{problem}, {place}, {way}": found for way, found in compared(args, problem, place).items()}
            print(f"{problem}, {place}: done", flush=True)
    return published(args, turns)


def compared(args: argparse.Namespace, problem: str, place: str) -> dict[str, dict[str, Any]]:
    """Every way with its best settings, and what it came to on the seeds that are measured."""
    sides = sides_of(problem, PLACES[place])
    ways = ways_of(sides, dict(zip(sides, tuned.best_settings(list(sides.values())), strict=True)))
    seeds = [int(seed) for seed in args.seeds.split(",")]
    runs = iter(tuned.simulated([{**way, "seed": seed} for way in ways.values() for seed in seeds]))
    return {name: {"settings": way, "runs": [next(runs) for _ in seeds]} for name, way in ways.items()}


def sides_of(problem: str, straggle: float) -> dict[str, tuned.Side]:
    """What is tuned: each way, and the small batch whose rate `large_batch` takes."""
    accuracy, epochs = WANTED[problem]
    fixed = {**FIXED, "problem": problem, "accuracy": accuracy, "epochs": epochs, "straggle": straggle}
    together = {**fixed, "way": "group"}
    groups = {**fixed, "way": "groups", "groups": fixed["devices"], "quorum": 1, "momentum": 0.0}
    small = {**together, "batch": REFERENCE, "devices": 1, "straggle": 0.0, "momentum": 0.0}
    return {
        "synchronous": (together, {"rate": RATES, "momentum": MOMENTA}),
        **{rule: ({**groups, "rule": rule}, {"rate": RATES, "outer": OUTERS}) for rule in RULES},
        "large_batch": (small, {"rate": RATES}),
    }


def ways_of(sides: dict[str, tuned.Side], best: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each way with its best settings."""
    ways = {name: {**sides[name][0], **best[name]} for name in sides}
    large = {"reference": REFERENCE, "warmup": WARMUP, "outer": vars(LARGE_OUTER), **best["large_batch"]}
    return {**ways, "large_batch": {**sides["divide"][0], **large}}


def published(args: argparse.Namespace, turns: dict[str, dict[str, Any]]) -> int:
    """Figures of every way, and the plot."""
    curves = {name: [run.pop("curve") for run in turn["runs"]] for name, turn in turns.items()}
    if args.plot:
        places = sorted({name.rpartition(", ")[0] for name in turns})
        panels = [(place, accuracy_figure({way: curves[f"{place}, {way}"] for way in SHOWN})) for place in places]
        write_plot(args.plot, "Accuracy over time, range of seeds", panels)
    figures = []
    for name, turn in turns.items():
        for what, unit in {"seconds": "s", "final": ""}.items():
            said = "time to accuracy" if unit else "final accuracy"
            figures.append(median_figure(f"{name}: {said}", [run[what] for run in turn["runs"]], unit, "seeds"))
    return publish(args, figures, turns=turns)


if __name__ == "__main__":
    raise SystemExit(main())
