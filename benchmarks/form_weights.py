"""What the weights of the model forms cost: chosen by the other campaigns alone, against the shipped ones.

    .venv/bin/python benchmarks/form_weights.py        2 min

For every situation a few plain candidates compete. For each campaign the candidate with the smallest mean error over
the other campaigns, each worth the same, predicts that campaign. The shipped weights were chosen while looking at all
of them (docs/decisions/0026, 0073); the difference is what that choice may flatter.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
from lib.result import Figure, parser_of, publish
from numpy.typing import NDArray

from paceline.model.measured.forms import BATCH, FIRST_CROSSING, SITUATIONS, UNSTATED, WEIGHTS
from paceline.model.validation.campaigns import published_series
from paceline.model.validation.origins import Task, judge_origins

Floats = NDArray[np.float64]

CANDIDATES = {
    "physical": [1.0, 1.0, 0.0, 0.0, 0.0],
    "physical and line": [0.5, 0.5, 0.5, 0.0, 0.0],
    "physical and power law": [0.7, 0.7, 0.0, 0.3, 0.0],
    "physical, line, power law": [0.5, 0.5, 0.25, 0.25, 0.0],
    "physical and saturating": [0.7, 0.7, 0.0, 0.0, 0.3],
    "all equal": [0.25, 0.25, 0.25, 0.25, 0.25],
}
"""Weights of the first five forms."""


def error(task: Task, weights: Floats) -> float:
    """Relative error with these weights; evidence for overlap and misses of the last point count as shipped."""
    doubt = task.forecast.doubt
    shipped = UNSTATED if doubt.situation == FIRST_CROSSING and not doubt.stated else WEIGHTS[doubt.situation]
    used = shipped > 0
    factor = np.full(len(shipped), np.max(task.forecast.weights[used] / shipped[used]))
    factor[used] = task.forecast.weights[used] / shipped[used]
    shares = weights * factor
    return float(abs(np.expm1(task.truth - shares @ task.forecast.forms / shares.sum())))


def judge(tasks: list[Task]) -> tuple[float, float, Counter[str]]:
    """Mean error as shipped and chosen blind, and how many campaigns chose what."""
    campaigns = np.array([task.series.campaign for task in tasks])
    names = sorted(set(campaigns.tolist()))
    errors = {name: np.array([error(task, np.array([*row, 0.0, 0.0])) for task in tasks])
              for name, row in CANDIDATES.items()}  # fmt: skip
    means = {name: np.array([each[campaigns == one].mean() for one in names]) for name, each in errors.items()}
    blind, chosen = np.zeros(len(tasks)), Counter[str]()
    for place, campaign in enumerate(names):
        best = min(means, key=lambda name: float(np.delete(means[name], place).mean()))
        chosen[best] += 1
        blind[campaigns == campaign] = errors[best][campaigns == campaign]
    return float(np.mean([abs(task.error()) for task in tasks])), float(blind.mean()), chosen


def main() -> int:
    """Every situation in which the batch per device does not change."""
    args = parser_of(__doc__).parse_args()
    tasks = judge_origins(published_series())
    figures, turns = [], {}
    for place, name in enumerate(SITUATIONS):
        mine = [task for task in tasks if task.forecast.doubt.situation == place]
        if mine and place != BATCH:
            shipped, blind, chosen = judge(mine)
            figures += [Figure(f"{name}: mean error, shipped weights", 100 * shipped, "%"),
                        Figure(f"{name}: mean error, chosen by other campaigns", 100 * blind, "%")]  # fmt: skip
            turns[name] = dict(chosen)
    return publish(args, figures, turns=turns)


if __name__ == "__main__":
    sys.exit(main())
