"""The table that `paceline validate` prints: per campaign points, mean and median error, coverage, worst case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline import catalog
from paceline.errors import InputError, Unsupported
from paceline.model.compute import roofline
from paceline.model.measured.names import normal
from paceline.model.measured.points import Series
from paceline.model.measured.population import shipped_population
from paceline.model.validation.campaigns import published_series, read_campaigns
from paceline.model.validation.gpt import Judged, gpt_points, judge_many_hosts, judge_one_host
from paceline.model.validation.largest import Held, by_campaign, by_series, judge_largest

__all__ = ["Row", "validate_file", "validate_shipped"]

TOGETHER = ("hkbu-ddl2020", "dlperf-v1")
"""The campaigns that are also judged together."""
DEVICES = {"v100": "v100-sxm2", "p100": "p100-sxm2", "k80": "k80", "a100": "a100-40gb"}
"""How published hardware names map to the catalog, for the roofline's own check."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    points: int
    mean_error: float
    median_error: float
    covered_50: float | None
    covered_90: float | None
    worst_error: float
    worst: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def validate_file(path: Path, *, whole_campaigns: bool = False) -> list[Row]:
    """The table of a file in the public column format."""
    series = read_campaigns(path)
    if not any(one.num_points >= 3 for one in series):
        raise InputError(f"{path}: no series has three device counts", hint="two are fitted, the largest is predicted")
    known = {(one.campaign, one.label) for one in series}
    others = [one for one in published_series() if (one.campaign, one.label) not in known]
    return _largest_rows(series, others, whole_campaigns=whole_campaigns)


def validate_shipped(*, whole_campaigns: bool = False) -> list[Row]:
    """The table of everything that ships."""
    rows = _largest_rows(published_series(), (), whole_campaigns=whole_campaigns)
    one_host, many = gpt_points("gpt-a100-one-host"), gpt_points("gpt-a100-many-hosts")
    rows.append(_gpt_row("GPT, one host of A100", judge_one_host(one_host)))
    rows.append(_gpt_row("GPT, 64-512 A100", judge_many_hosts(one_host, many)))
    rows.append(_roofline_row(published_series()))
    return rows


def _largest_rows(series: Sequence[Series], others: Sequence[Series], *, whole_campaigns: bool) -> list[Row]:
    shipped = shipped_population()
    held = judge_largest(
        series,
        others=others,
        fold=by_campaign if whole_campaigns else by_series,
        scales=(shipped.scale_50, shipped.scale_90),
    )
    names = sorted({one.campaign for one in held})
    rows = [_held_row(name, [one for one in held if one.campaign == name]) for name in names]
    both = [one for one in held if one.campaign in TOGETHER]
    if len({one.campaign for one in both}) == len(TOGETHER):
        rows.append(_held_row("HKBU and DLPerf together", both))
    return [*rows, _held_row("all campaigns", held)]


def _held_row(name: str, held: list[Held]) -> Row:
    errors = np.array([one.error for one in held])
    worst = held[int(np.argmax(errors))]
    return Row(
        name=name,
        points=len(held),
        mean_error=float(errors.mean()),
        median_error=float(np.median(errors)),
        covered_50=float(np.mean([one.in_50 for one in held])),
        covered_90=float(np.mean([one.in_90 for one in held])),
        worst_error=float(errors.max()),
        worst=f"{worst.label} at {worst.devices}",
    )


def _gpt_row(name: str, judged: Judged) -> Row:
    errors = np.abs(judged.ratio - 1)
    covered = float(judged.in_50.mean()), float(judged.in_90.mean())
    worst = float(errors.max())
    return Row(name, len(errors), float(errors.mean()), float(np.median(errors)), *covered, worst, "")


def _roofline_row(series: Sequence[Series]) -> Row:
    """One device in float32, from catalog figures alone, against the smallest point of every series."""
    ratios: dict[str, float] = {}
    for one in series:
        rate = _roofline_rate(one)
        if rate is not None:
            ratios[one.label] = rate / float(one.samples_per_s[0]) - 1
    errors = np.abs(np.array(list(ratios.values())))
    worst = list(ratios)[int(np.argmax(errors))]
    name = "roofline, one device, nothing measured"
    return Row(
        name, len(errors), float(errors.mean()), float(np.median(errors)), None, None, float(errors.max()), worst
    )


def _roofline_rate(series: Series) -> float | None:
    device = next((name for word, name in DEVICES.items() if word in normal(series.device)), None)
    network = next((n for n in catalog.network_names() if normal(n) == normal(series.network)), None)
    if (
        device is None
        or network is None
        or series.batch is None
        or series.devices[0] != 1
        or "fp32" not in series.label
    ):
        return None
    try:
        work = roofline(catalog.network(network), catalog.device(device), int(series.batch))
    except Unsupported:
        return None
    return series.batch / (work.compute + work.update)
