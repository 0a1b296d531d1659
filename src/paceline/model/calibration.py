"""Parameters fitted to measurements of a cluster: collectives with uncertainty, fixed cost, slowdown, jitter."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from paceline.cost.host import SharingProbe
from paceline.files import write_output
from paceline.model.sweep import CollectiveFit
from paceline.spec.fields import Bytes, Count, Name, Seconds, SpecModel
from paceline.spec.load import load_json

__all__ = [
    "ASSUMED_SLOWDOWN",
    "AS_STATED",
    "CATALOG_ONLY",
    "Calibration",
    "Uncertain",
    "read_calibration",
    "write_calibration",
]

SCHEMA = "paceline.calibration/1"


@dataclass(frozen=True)
class Uncertain:
    """A number and the standard deviation of its logarithm."""

    value: float
    spread: float


ASSUMED_SLOWDOWN = Uncertain(0.1, 0.6)
"""Share of overlapped communication time that compute loses, where nothing was measured."""


@dataclass(frozen=True)
class Calibration:
    """All measured inputs of the model except per-layer times."""

    source: str
    collectives: tuple[CollectiveFit, ...] = ()
    fixed_per_gradient: Uncertain = Uncertain(15e-6, 0.7)
    """Seconds per gradient tensor of hooks and bucketing."""
    fixed_copies: Uncertain = Uncertain(2.0, 0.5)
    """Number of additional copies of the gradients."""
    copy_per_byte: float | None = None
    """Seconds per byte of such a copy, measured by a sweep; None means the catalog's figure of the device."""
    slowdown: Uncertain = ASSUMED_SLOWDOWN
    """Share of overlapped communication time that compute loses."""
    overlap_rate: float = 1.0
    """How fast an exchange is while compute runs on the same cores, as a share of its speed without."""
    crowding: float = 0.0
    """Share by which compute slows for each further rank of the same host (memory, cores, clock)."""
    reach: Uncertain = Uncertain(0.6, 0.4)
    """Share of a link's stated bandwidth that collectives reach, if no sweep measured it."""
    latency: Uncertain = Uncertain(3.0, 0.7)
    """Software latency as a multiple of the link's, if no sweep measured it."""
    base_latency: float = 15e-6
    """Seconds of a hop's software path in addition to the link's latency, if no sweep measured it."""
    sharing: tuple[SharingProbe, ...] = ()
    """Probes of ranks that share the cores of a host."""
    jitter: float | None = None
    """Relative standard deviation of a step; None means that of the profile."""


CATALOG_ONLY = Calibration(source="catalog figures of links and start-up, none measured: wide interval")
"""Default parameters without measurements: medians of the published figures of the validation."""
_NOTHING = Uncertain(0.0, 0.0)
AS_STATED = Calibration(
    source="links exactly as stated, no cost of software",
    fixed_per_gradient=_NOTHING,
    fixed_copies=_NOTHING,
    slowdown=_NOTHING,
    reach=Uncertain(1.0, 0.0),
    latency=Uncertain(1.0, 0.0),
    base_latency=0.0,
)
"""Calibration of emulated devices and links."""


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write the calibration as JSON."""
    write_output(path, json.dumps({"schema": SCHEMA, **asdict(calibration)}, indent=1) + "\n")


def read_calibration(path: Path) -> Calibration:
    """The calibration in a JSON file; all problems of an invalid file are one InputError."""
    return load_json(path, CalibrationFile, hint="`paceline calibrate` writes calibrations").calibration


Factor = Annotated[float, Field(ge=0, le=1e6)]
Positive = Annotated[float, Field(ge=1e-9, le=1e6)]
Spread = Annotated[float, Field(ge=0, le=10)]


class UncertainEntry(SpecModel):
    """A number that may be zero, and its spread."""

    value: Factor
    spread: Spread


class PositiveEntry(SpecModel):
    """A number that something is divided by, and its spread."""

    value: Positive
    spread: Spread


class FitEntry(SpecModel):
    """The fit of one collective."""

    operation: Name
    ranks: Count
    form: Literal["additive", "largest", "saturating"]
    startup: Seconds
    per_byte: Annotated[float, Field(ge=0, le=1)]
    root: Annotated[float, Field(ge=0, le=1e3)]
    spread: Spread
    smallest: Annotated[Bytes, Field(ge=1e-3)]
    largest: Bytes

    @model_validator(mode="after")
    def _ordered(self) -> FitEntry:
        if self.largest < self.smallest:
            raise ValueError("largest must be at least smallest")
        return self


class SharingEntry(SpecModel):
    """Measurement of a probe of ranks that share the cores of a host."""

    cores: Count
    ranks: Count
    threads: Count
    excess: Positive
    spread: Spread = 0.0
    wait: Seconds | None = None


class CalibrationFile(SpecModel):
    """A calibration from its file; absent fields have the values of the catalog."""

    schema_: Annotated[Literal["paceline.calibration/1"], Field(alias="schema")]
    source: Annotated[str, Field(max_length=10_000)]
    collectives: tuple[FitEntry, ...] = ()
    fixed_per_gradient: UncertainEntry | None = None
    fixed_copies: UncertainEntry | None = None
    copy_per_byte: Annotated[float, Field(ge=0, le=1)] | None = None
    slowdown: UncertainEntry | None = None
    overlap_rate: Positive | None = None
    crowding: Factor | None = None
    reach: PositiveEntry | None = None
    latency: PositiveEntry | None = None
    base_latency: Seconds | None = None
    sharing: tuple[SharingEntry, ...] = ()
    jitter: Factor | None = None

    @property
    def calibration(self) -> Calibration:
        """The calibration as the model takes it."""
        given: dict[str, Any] = {name: value for name, value in self if value is not None and name != "schema_"}
        for name, value in given.items():
            if isinstance(value, UncertainEntry | PositiveEntry):
                given[name] = Uncertain(value.value, value.spread)
        given["collectives"] = tuple(CollectiveFit(**dict(fit)) for fit in self.collectives)
        given["sharing"] = tuple(SharingProbe(**dict(probe)) for probe in self.sharing)
        return Calibration(**given)
