"""Published figures as plain tables: throughputs, GPT iteration times, collective sweeps, parameters."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["campaign_names", "published", "published_parameters"]

FOLDER = Path(__file__).parent


@cache
def published(name: str) -> dict[str, Any]:
    """The plain data of one file of published figures."""
    with (FOLDER / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)


def campaign_names() -> tuple[str, ...]:
    """Files of throughputs, one per campaign of measurements."""
    return tuple(path.stem for path in sorted(FOLDER.glob("throughput-*.toml")))


@cache
def published_parameters() -> dict[str, float]:
    """Parameters of well-known networks by normalised name, beyond those the catalog defines."""
    return {name: float(entry["parameters"]) for name, entry in published("parameters")["network"].items()}
