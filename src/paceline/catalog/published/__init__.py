"""Published figures with their sources: totals of networks, throughputs, GPT iteration times, collective
sweeps. Tests compare the catalog's networks and the model's predictions with them.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from paceline.spec.fields import Count, Name, Share, SpecModel
from paceline.spec.load import load_spec

__all__ = ["PublishedNetwork", "campaign_names", "published", "published_networks", "published_parameters"]

FOLDER = Path(__file__).parent


class PublishedNetwork(SpecModel):
    """Totals of one network as a source states them."""

    name: Name
    parameters: Count
    parameters_source: Name
    parameters_within: Share = 0.0
    """Relative difference that the source's own rounding allows."""
    multiply_adds: Annotated[int, Field(ge=1)] | None = None
    """Multiply-adds of one forward pass of one sample."""
    multiply_adds_source: Name | None = None
    multiply_adds_within: Share = 0.0

    @model_validator(mode="after")
    def _sourced(self) -> PublishedNetwork:
        if (self.multiply_adds is None) != (self.multiply_adds_source is None):
            raise ValueError("multiply_adds and its source belong together")
        return self


class _Networks(SpecModel):
    network: tuple[PublishedNetwork, ...]


@cache
def published_networks() -> dict[str, PublishedNetwork]:
    """Published totals by the catalog's name of the network."""
    return {item.name: item for item in load_spec(FOLDER / "networks.toml", _Networks).network}


@cache
def published(name: str) -> dict[str, Any]:
    """The content of one file of published figures."""
    with (FOLDER / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)


def campaign_names() -> tuple[str, ...]:
    """Names of the throughput files, one per published campaign."""
    return tuple(path.stem for path in sorted(FOLDER.glob("throughput-*.toml")))


@cache
def published_parameters() -> dict[str, float]:
    """Parameters of well-known networks by normalized name, beyond those the catalog defines."""
    return {name: float(entry["parameters"]) for name, entry in published("parameters")["network"].items()}
