"""The best settings of each side of a benchmark, found by a grid in virtual time, kept in benchmarks/lib/tuned."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lib.pythons import python_of
from paceline.bench.environments import worker_path

Grid = dict[str, list[Any]] | list[dict[str, Any]]
"""Values to combine, or settings one by one."""
Side = tuple[dict[str, Any], Grid]
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


def tune(name: str, sides: dict[str, Side]) -> None:
    """Try each side's grid on top of its fixed settings; print and write the best."""
    chosen = {}
    for side, rows in zip(sides, _tried(list(sides.values()), SEEDS), strict=True):
        chosen[side] = best = _best(rows)
        for row in sorted(rows, key=lambda row: row["seconds"])[:5]:
            print(f"{side:12} {row}", file=sys.stderr, flush=True)
        print(f"{side:12} chosen of {len(rows)}: {best}", file=sys.stderr, flush=True)
    path = HERE / "tuned" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(chosen, indent=2) + "\n")


def best_settings(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """The best settings of each grid on top of its fixed ones.

    One seed tries all of a grid, the others its better third; a grid of one is not tried.
    """
    grids = [_settings(grid) for _, grid in sides]
    if all(len(grid) == 1 for grid in grids):
        return [grid[0] for grid in grids]
    first = _tried(sides, SEEDS[:1])
    left = [(fixed, [row["settings"] for row in _better(rows)]) for (fixed, _), rows in zip(sides, first, strict=True)]
    return [_best(rows)["settings"] for rows in _tried(left, SEEDS[1:])]


def _better(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A third of the rows, the best first."""
    left, better = list(rows), []
    for _ in range(-(-len(rows) // 3)):
        better.append(_best(left))
        left.remove(better[-1])
    return better


def _best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The quickest of those whose final accuracy is as good as any; if none reached it, the most accurate."""
    reached = [row for row in rows if row["reached"]]
    if not reached:
        return max(rows, key=lambda row: row["final"])
    good = max(row["final"] for row in reached) - SLACK
    return min((row for row in reached if row["final"] >= good), key=lambda row: row["seconds"])


def _tried(sides: Sequence[Side], seeds: Sequence[int]) -> list[list[dict[str, Any]]]:
    """Each side's settings with what they come to over some seeds."""
    tried = [[{**fixed, **setting} for setting in _settings(grid)] for fixed, grid in sides]
    told = [{**one, "seed": seed} for side in tried for one in side for seed in seeds]
    found = iter(simulated(told))
    return [[_row(setting, [next(found) for _ in seeds]) for setting in _settings(grid)] for _, grid in sides]


def _settings(grid: Grid) -> list[dict[str, Any]]:
    """All settings of a grid, or those that are listed."""
    if isinstance(grid, list):
        return grid
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _row(setting: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    seconds = statistics.median(run["seconds"] for run in runs)
    final = statistics.fmean(run["final"] for run in runs)
    reached = all(run["reached"] for run in runs)
    return {"settings": setting, "seconds": round(seconds, 2), "final": round(final, 4), "reached": reached}


def simulated(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each of some settings comes to, in virtual time: two processes, as each takes seconds to start."""
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(_simulated, [told[index::2] for index in range(2)]))
    return [results[index % 2][index // 2] for index in range(len(told))]


def _simulated(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    env = {**os.environ, "PYTHONPATH": str(worker_path()), "OMP_NUM_THREADS": "1"}
    argv = [python_of("digits"), str(HERE / "virtual_time.py")]
    done = subprocess.run(argv, input=json.dumps(told), env=env, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
