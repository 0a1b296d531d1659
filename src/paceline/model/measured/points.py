"""Throughputs from a CSV file as series: one series is one way to run one network, at several device counts."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.spec.load import read_text

__all__ = ["Series", "read_points", "series_of_rows"]

Floats = NDArray[np.float64]

REQUIRED = ("network", "device", "link", "devices_per_host", "devices", "batch_per_device", "samples_per_s")
LABELS = ("network", "framework", "strategy", "device", "link", "precision", "data", "note")


@dataclass(frozen=True)
class Series:
    """Throughputs of one way to run one network, by number of devices, smallest first."""

    label: str
    network: str
    how: str
    """Framework and strategy, as written."""
    device: str
    link: str
    batch: float | None
    per_host: float
    """Devices of a full host."""
    devices: Floats
    hosts: Floats
    samples_per_s: Floats
    spread: Floats
    """Relative standard deviation of each point; 0 where none is given."""
    campaign: str = ""

    @property
    def num_points(self) -> int:
        """Different numbers of devices."""
        return len(self.devices)

    def hosts_at(self, count: float) -> float:
        """Hosts that this many devices need."""
        return max(1.0, math.ceil(count / self.per_host - 1e-9))

    def without_largest(self) -> Series:
        """The series as it was before its largest count was measured."""
        return self.first(self.num_points - 1)

    def first(self, count: int) -> Series:
        """The series with its smallest counts alone."""
        cut = slice(0, count)
        return Series(
            self.label, self.network, self.how, self.device, self.link, self.batch, self.per_host,
            self.devices[cut], self.hosts[cut], self.samples_per_s[cut], self.spread[cut], self.campaign,
        )  # fmt: skip


def read_points(path: Path) -> tuple[Series, ...]:
    """The series of a CSV file; every wrong cell is reported with its line."""
    reader = csv.DictReader(io.StringIO(read_text(path).lstrip("\ufeff")))
    columns = [str(name).strip().lower() for name in reader.fieldnames or ()]
    missing = [name for name in REQUIRED if name not in columns]
    if "framework" not in columns and "strategy" not in columns:
        missing.append("framework or strategy")
    if missing:
        expected = ", ".join((*REQUIRED[:1], "framework or strategy", *REQUIRED[1:]))
        raise InputError(f"{path}: column missing: {', '.join(missing)}", hint=f"columns: {expected}; spread if known")
    rows = [
        (
            number,
            {str(key).strip().lower(): (value or "").strip() for key, value in row.items() if isinstance(key, str)},
        )
        for number, row in enumerate(reader, start=2)
    ]
    return series_of_rows([_parsed(str(path), number, row) for number, row in rows if any(row.values())], str(path))


def _parsed(file: str, line: int, row: dict[str, str]) -> dict[str, str | float | None]:
    found: dict[str, str | float | None] = {name: row.get(name, "") for name in LABELS}
    for name in ("devices", "samples_per_s"):
        found[name] = _number(file, line, name, row.get(name, ""))
        if found[name] is None:
            raise InputError(f"{file}:{line}: {name}: got nothing, expected a number above 0")
    for name in ("devices_per_host", "batch_per_device", "spread"):
        found[name] = _number(file, line, name, row.get(name, ""))
    return found


def _number(file: str, line: int, name: str, text: str) -> float | None:
    if not text or text.lower() in ("nan", "none", "na", "-"):
        return None
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = math.nan
    least = 0.0 if name == "spread" else 1e-12
    if not math.isfinite(value) or value < least:
        raise InputError(f"{file}:{line}: {name}: got {text!r}, expected a number above 0")
    if name == "devices" and value != round(value):
        raise InputError(f"{file}:{line}: devices: got {text!r}, expected a whole number")
    return value


def series_of_rows(rows: list[dict[str, str | float | None]], file: str) -> tuple[Series, ...]:
    """Rows grouped into series; repeated counts are medians, order does not matter."""
    groups: dict[tuple[str | float | None, ...], list[dict[str, str | float | None]]] = {}
    for row in rows:
        key = (*(row.get(name) for name in LABELS), row["batch_per_device"], row.get("campaign"))
        groups.setdefault(key, []).append(row)
    if not groups:
        raise InputError(f"{file} holds no points", hint="one row per measured number of devices")
    return tuple(_series(group) for group in groups.values())


def _series(rows: list[dict[str, str | float | None]]) -> Series:
    first = rows[0]
    text = {name: str(first.get(name) or "") for name in LABELS}
    batch = first["batch_per_device"]
    counts = np.array(sorted({float(row["devices"] or 0) for row in rows}))
    local = [float(row["devices_per_host"] or 0) for row in rows]
    per_host = max(local) or max(1.0, min(8.0, counts[-1]))
    groups = [[row for row in rows if row["devices"] == count] for count in counts]
    rates = np.array([float(np.median([float(row["samples_per_s"] or 0) for row in group])) for group in groups])
    spread = np.array([max(float(row.get("spread") or 0) for row in group) for group in groups])
    how = " ".join(part for part in (text["framework"], text["strategy"]) if part)
    parts = (text["network"], how, text["device"], text["link"], text["precision"], text["data"])
    label = ", ".join(part for part in parts if part) + (f", batch {batch:g}" if isinstance(batch, float) else "")
    return Series(
        label=label,
        network=text["network"],
        how=how,
        device=text["device"],
        link=text["link"],
        batch=batch if isinstance(batch, float) else None,
        per_host=per_host,
        devices=counts,
        hosts=np.maximum(1.0, np.ceil(counts / per_host - 1e-9)),
        samples_per_s=rates,
        spread=spread / rates,
        campaign=str(first.get("campaign") or ""),
    )
