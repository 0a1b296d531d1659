"""What measurements said about a cluster: collectives with uncertainty, fixed cost, slowdown, jitter."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.errors import InputError
from paceline.model.sweep import CollectiveFit

__all__ = ["AS_STATED", "CATALOG_ONLY", "Calibration", "Uncertain", "read_calibration", "write_calibration"]

SCHEMA = "paceline.calibration/1"


@dataclass(frozen=True)
class Uncertain:
    """A number and the standard deviation of its logarithm."""

    value: float
    spread: float


@dataclass(frozen=True)
class Calibration:
    """Everything the model takes from measurements beside per-layer times."""

    source: str
    collectives: tuple[CollectiveFit, ...] = ()
    fixed_per_gradient: Uncertain = Uncertain(15e-6, 0.7)
    """Seconds per gradient tensor of hooks and bucketing."""
    fixed_copies: Uncertain = Uncertain(2.0, 0.5)
    """How often gradients pass through memory once more."""
    copy_per_byte: float | None = None
    """Seconds per byte of such a copy as the sweep measured it; none means what the catalog says of the device."""
    slowdown: Uncertain = Uncertain(0.1, 0.6)
    """Share of overlapped communication time that compute loses."""
    overlap_rate: float = 1.0
    """How fast an exchange is while compute runs on the same cores, as a share of its speed without."""
    crowding: float = 0.0
    """Share by which compute slows for each further rank of the same host (memory, cores, clock)."""
    reach: Uncertain = Uncertain(0.6, 0.4)
    """Share of a link's stated bandwidth that collectives reach, where no sweep says it."""
    latency: Uncertain = Uncertain(3.0, 0.7)
    """Software latency as a multiple of the link's, where no sweep says it."""
    base_latency: float = 15e-6
    """Seconds of a hop's software path beside the link's own latency, where no sweep says it."""
    jitter: float | None = None
    """Standard deviation of a step as a share of it; none means what the profile says."""


CATALOG_ONLY = Calibration(source="catalog figures of links and start-up, none measured: wide interval")
"""What the model believes before anything was measured: medians of the published figures it was checked against."""
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
"""What holds on emulated devices and links."""


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write the calibration as JSON."""
    path.write_text(json.dumps({"schema": SCHEMA, **asdict(calibration)}, indent=1) + "\n", encoding="utf-8")


def read_calibration(path: Path) -> Calibration:
    """The calibration in a JSON file, or one clear error."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return _parse(data)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}", hint="`paceline calibrate` writes one") from None
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is no calibration: {error}", hint="`paceline calibrate` writes one") from None


def _parse(data: dict[str, Any]) -> Calibration:
    if data.get("schema") != SCHEMA:
        raise ValueError(f"schema is {data.get('schema')!r}, expected {SCHEMA!r}")
    fields = {key: value for key, value in data.items() if key != "schema"}
    fields["collectives"] = tuple(CollectiveFit(**fit) for fit in fields["collectives"])
    for name, value in fields.items():
        if isinstance(value, dict):
            fields[name] = Uncertain(**value)
    return Calibration(**fields)
