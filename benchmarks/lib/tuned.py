"""The best settings of each side of a benchmark, found by a grid in virtual time, kept in benchmarks/lib/tuned."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lib.pythons import python_of
from paceline.bench.environments import worker_path

HERE = Path(__file__).parent
SEEDS = (100, 101, 102)
"""None of them is measured."""
SLACK = 0.005
"""Final accuracy that a quicker setting may cost: half a point, within which final accuracies count as equal."""


def known(name: str) -> bool:
    """Whether there is anything chosen."""
    return (HERE / "tuned" / f"{name}.json").exists()


def read(name: str) -> dict[str, dict[str, Any]]:
    """What was chosen."""
    found: dict[str, dict[str, Any]] = json.loads((HERE / "tuned" / f"{name}.json").read_text())
    return found


def tune(name: str, sides: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]]) -> None:
    """Try each side's grid on top of its fixed settings; print and write the best."""
    chosen = {}
    for side, (fixed, grid) in sides.items():
        rows = _tried(fixed, grid)
        chosen[side] = best = _best(rows)
        for row in sorted(rows, key=lambda row: row["seconds"])[:5]:
            print(f"{side:12} {row}", file=sys.stderr, flush=True)
        print(f"{side:12} chosen of {len(rows)}: {best}", file=sys.stderr, flush=True)
    path = HERE / "tuned" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(chosen, indent=2) + "\n")


def best_settings(fixed: dict[str, Any], grid: dict[str, list[Any]]) -> dict[str, Any]:
    """The best settings of a grid on top of fixed ones."""
    if all(len(values) == 1 for values in grid.values()):
        return {name: values[0] for name, values in grid.items()}
    found: dict[str, Any] = _best(_tried(fixed, grid))["settings"]
    return found


def _best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The quickest of those whose final accuracy is as good as any; if none reached it, the most accurate."""
    reached = [row for row in rows if row["reached"]]
    if not reached:
        return max(rows, key=lambda row: row["final"])
    good = max(row["final"] for row in reached) - SLACK
    return min((row for row in reached if row["final"] >= good), key=lambda row: row["seconds"])


def _tried(fixed: dict[str, Any], grid: dict[str, list[Any]]) -> list[dict[str, Any]]:
    settings = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    told = [{**fixed, **setting, "seed": seed} for setting in settings for seed in SEEDS]
    halves = [told[index::2] for index in range(2)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(simulated, halves))
    found = [results[index % 2][index // 2] for index in range(len(told))]
    rows = []
    for number, setting in enumerate(settings):
        runs = found[number * len(SEEDS) : (number + 1) * len(SEEDS)]
        seconds = statistics.median(run["seconds"] for run in runs)
        final = statistics.fmean(run["final"] for run in runs)
        reached = all(run["reached"] for run in runs)
        rows.append({"settings": setting, "seconds": round(seconds, 2), "final": round(final, 4), "reached": reached})
    return rows


def simulated(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each of some settings comes to, in virtual time."""
    env = {**os.environ, "PYTHONPATH": str(worker_path()), "OMP_NUM_THREADS": "1"}
    argv = [python_of("digits"), str(HERE / "digits_tuning.py")]
    done = subprocess.run(argv, input=json.dumps(told), env=env, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
