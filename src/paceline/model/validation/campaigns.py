"""Published throughputs as series: those that ship with the product, or any file in the public column format."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np

from paceline.catalog.published import campaign_names, published
from paceline.errors import InputError, Problem
from paceline.model.measured.cells import Cells, read_table
from paceline.model.measured.points import Series, series_of_rows
from paceline.spec.load import refuse_rows

__all__ = ["published_series", "read_campaigns"]

COLUMNS = (
    "source_id",
    "framework",
    "comm",
    "model",
    "hardware",
    "interconnect",
    "devices",
    "batch_per_device",
    "value",
)
RATES = re.compile(r"^(img|images|samples|sentences|sequences|tokens)/s( total| per gpu)?$")
TIMES = re.compile(r"(?<![\w.])\d+\s?x\s?(?=[A-Z])")


@cache
def published_series() -> tuple[Series, ...]:
    """Every shipped series."""
    return tuple(
        _shipped(name.removeprefix("throughput-"), entry)
        for name in campaign_names()
        for entry in published(name)["series"]
    )


def _shipped(campaign: str, entry: dict[str, object]) -> Series:
    def numbers(name: str) -> list[float]:
        values = entry.get(name, [])
        assert isinstance(values, list)
        return [float(value) for value in values]

    rates = np.array(numbers("samples_per_s"))
    devices, hosts = np.array(numbers("devices")), np.array(numbers("hosts"))
    how = f"{entry['framework']} {entry.get('strategy', '')}".strip()
    batch = entry.get("batch")
    parts = (entry["network"], how, entry["device"], entry["link"], entry.get("precision"), entry.get("data"))
    return Series(
        label=", ".join(str(part) for part in parts if part) + (f", batch {batch}" if batch else ""),
        network=str(entry["network"]),
        how=how,
        device=str(entry["device"]),
        link=str(entry["link"]),
        per_host=float(str(entry.get("devices_per_host", np.max(devices / hosts)))),
        devices=devices,
        hosts=hosts,
        samples_per_s=rates,
        spread=np.array(numbers("spread") or [0.0] * len(rates)) / rates,
        batches=np.array(numbers("batches") or [float(str(batch)) if batch else np.nan] * len(rates)),
        campaign=str(entry.get("campaign", campaign)),
        precision=str(entry.get("precision", "")),
    )


def read_campaigns(path: Path) -> tuple[Series, ...]:
    """Series of a CSV file with the columns source_id, framework, comm, model, ..., nodes, devices, value, unit."""
    columns, lines = read_table(path)
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise InputError(f"{path}: column missing: {', '.join(missing)}", hint=f"columns: {', '.join(COLUMNS)}")
    problems: list[Problem] = []
    rows = [_row(Cells(str(path), number, row, problems)) for number, row in lines]
    refuse_rows(str(path), problems)
    return series_of_rows([row for row in rows if row is not None], str(path))


def _row(cells: Cells) -> dict[str, str | float | None] | None:
    """One throughput; other units (efficiencies, hours) are left out."""
    text = cells.row
    unit = text.get("unit", "img/s").lower() or "img/s"
    if not RATES.match(unit):
        return None
    devices, value = cells.number("devices", needed=True) or 1.0, cells.number("value", needed=True) or 1.0
    nodes = cells.number("nodes")
    return {
        "network": text["model"],
        "framework": text["framework"],
        "strategy": text["comm"],
        "device": TIMES.sub("", text["hardware"]),
        "link": text["interconnect"],
        "precision": text.get("precision", ""),
        "data": text.get("data", ""),
        "note": text.get("note", ""),
        "campaign": text["source_id"],
        "devices": devices,
        "devices_per_host": devices / nodes if nodes else None,
        "batch_per_device": cells.number("batch_per_device"),
        "samples_per_s": value * devices if unit.endswith("per gpu") else value,
        "spread": cells.number("spread"),
        "in_tokens": "tokens" if unit.startswith("tokens") else None,
    }
