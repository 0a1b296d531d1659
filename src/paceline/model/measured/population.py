"""The shipped prior: learnt once from the published campaigns, written as a file, read where it is needed."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from paceline.model.measured.prior import Population

__all__ = ["shipped_population", "write_population"]

FILE = Path(__file__).parent / "population.toml"


@cache
def shipped_population() -> Population:
    """What every published series says together."""
    with FILE.open("rb") as file:
        data = tomllib.load(file)
    return Population(
        weights=np.array(data["weights"]),
        covariance=np.array(data["covariance"]),
        offsets={name: np.array(entry["offset"]) for name, entry in data["link"].items()},
        counts={name: np.array(entry["count"]) for name, entry in data["link"].items()},
        scale_50=data["scale_50"],
        scale_90=data["scale_90"],
    )


def write_population(population: Population, path: Path = FILE) -> None:
    """Write a learnt prior; `paceline calibrate --population` does."""
    data: dict[str, Any] = {
        "source": "paceline calibrate --population, from catalog/published/throughput-*.toml",
        "scale_50": round(population.scale_50, 4),
        "scale_90": round(population.scale_90, 4),
        "weights": np.round(population.weights, 5).tolist(),
        "covariance": np.round(population.covariance, 6).tolist(),
        "link": {
            name: {
                "offset": np.round(population.offsets[name], 5).tolist(),
                "count": np.round(population.counts[name], 3).tolist(),
            }
            for name in sorted(population.offsets)
        },
    }
    path.write_text(tomli_w.dumps(data), encoding="utf-8")
