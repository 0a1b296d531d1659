"""The table that `paceline validate` prints: by situation, by distance and by campaign, with three simple laws as
baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline import catalog
from paceline.errors import InputError, UnknownName, Unsupported
from paceline.model.compute import roofline
from paceline.model.measured.forms import BATCH, SITUATIONS
from paceline.model.measured.names import link_kind, normal
from paceline.model.measured.points import Series
from paceline.model.measured.prior import shipped_population
from paceline.model.validation.campaigns import published_series, read_campaigns
from paceline.model.validation.gpt import (
    Judged,
    gpt_points,
    judge_command,
    judge_many_hosts,
    judge_one_host,
    judge_own_machine,
)
from paceline.model.validation.origins import LEAST_POINTS, Task, judge_origins, judge_stripped, tasks_of

__all__ = ["LAWS", "Row", "failures", "validate_file", "validate_shipped"]

TOGETHER = ("hkbu-ddl2020", "dlperf-v1")
"""The campaigns that are also judged together."""
KNOWN = (
    "cscs2017",
    "dlperf-v1",
    "hkbu-ddl2020",
    "lambda-pt",
    "lambda-tf",
    "mxnet-p2",
    "nv-dle",
    "pt-ddp-bench",
    "tf2017",
)
"""Campaigns that the first prior was learnt from and the forms were designed on."""
FRESH = ("csc-ml-benchmarks", "dlperf-gpt", "dlperf-insightface", "nv-dle-2")
"""Campaigns that came after the design: speech, translation, EfficientNet, face recognition, GPT, AMD devices."""
DEVICES = {"v100": "v100-sxm2", "p100": "p100-sxm2", "k80": "k80", "a100": "a100-40gb"}
"""How published hardware names map to the catalog, for the roofline's own check."""
LEAST_TASKS = 30
HELD = (0.85, 0.95)
"""Shares between which a 90 % interval must hold, in every situation with enough tasks."""
LAWS = ("power law", "straight line", "Amdahl")


@dataclass(frozen=True)
class Row:
    """One line of the table; errors are those of throughput."""

    group: str
    """Kind of the line: `situation`, `distance`, `largest point`, `stated less` or `other`."""
    name: str
    points: int
    mean_error: float
    median_error: float
    bias: float | None
    """Median signed error: above 0 where predictions were too fast."""
    covered_50: float | None
    covered_90: float | None
    score: float | None
    """Mean interval score of the 90 % interval in logarithms: smaller is better."""
    laws: dict[str, float]
    """Mean error of simple laws on the same points."""
    worst_error: float
    worst: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def failures(rows: Sequence[Row]) -> list[str]:
    """Situations in which the coverage of the 90 % interval is outside of its limits."""
    return [
        f"{row.name}: the 90 % interval held {row.covered_90:.1%} of {row.points} points, "
        f"expected {HELD[0]:.0%} to {HELD[1]:.0%}"
        for row in rows
        if row.group == "situation"
        and row.points >= LEAST_TASKS
        and row.covered_90 is not None
        and not HELD[0] <= row.covered_90 <= HELD[1]
    ]


def validate_file(path: Path) -> list[Row]:
    """The table of a file in the public column format; campaigns that ship are left out of what predicts them."""
    series = read_campaigns(path)
    if not any(one.num_points >= LEAST_POINTS for one in series):
        raise InputError(f"{path}: no series has three device counts", hint="two are fitted, the largest is predicted")
    shipped = {one.campaign for one in published_series()}
    if not shipped & {one.campaign for one in series}:
        return _rows(tasks_of(series, shipped_population()))
    known = {(one.campaign, one.label) for one in series}
    others = [one for one in published_series() if (one.campaign, one.label) not in known]
    judged = judge_origins([*series, *others])
    return _rows([task for task in judged if (task.series.campaign, task.series.label) in known])


def validate_shipped() -> list[Row]:
    """The table of everything that ships."""
    tasks, *less = judge_stripped(published_series(), list(STATED_LESS.values()))
    rows = _rows(tasks)
    for name, stripped in zip(STATED_LESS, less, strict=True):
        rows += [_row("stated less", f"{name}: {part}", some) for part, some in _by_truth(tasks, stripped)]
    one_host, many = gpt_points("gpt-a100-one-host"), gpt_points("gpt-a100-many-hosts")
    rows.append(_gpt_row("GPT, one host of A100", judge_one_host(one_host)))
    rows.append(_gpt_row("GPT, 64-512 A100", judge_many_hosts(one_host, many)))
    rows.append(_gpt_row("GPT, 64-512 A100, by the command, shape left out", judge_command()))
    rows.append(_gpt_row("Llama 3, 8 B200, from iterations of the other size", judge_own_machine()))
    rows.append(_roofline_row(published_series()))
    return rows


def _no_host_size(series: Series) -> Series:
    return series if link_kind(series.link).inside else replace(series, held=1.0)


def _two_columns(series: Series) -> Series:
    """The series as a file with devices and throughput alone has it."""
    nothing = np.full(series.num_points, np.nan)
    return replace(
        series, held=1.0, network="", how="", device="", link="", precision="", batches=nothing,
        spread=np.zeros(series.num_points),
    )  # fmt: skip


STATED_LESS = {"no host size": _no_host_size, "devices and throughput alone": _two_columns}
"""Files that state less than the published series: what is left out, and how."""


def _by_truth(tasks: Sequence[Task], stripped: Sequence[Task]) -> list[tuple[str, list[Task]]]:
    """Tasks of one batch of files that state less, by the situation that the whole file would have shown."""
    places = [task.forecast.doubt.situation for task in tasks]
    kept = [(place, task) for place, task in zip(places, stripped, strict=True) if place != BATCH]
    groups = [(name, [task for at, task in kept if at == place]) for place, name in enumerate(SITUATIONS)]
    groups += [("all origins", [task for _, task in kept]), ("largest point", [t for _, t in kept if t.largest])]
    return [(name, some) for name, some in groups if some]


def _rows(tasks: Sequence[Task]) -> list[Row]:
    groups = [
        ("situation", name, [task for task in tasks if task.forecast.doubt.situation == place])
        for place, name in enumerate(SITUATIONS)
    ]
    groups += [("distance", f"x{factor}", [task for task in tasks if task.factor == factor]) for factor in (2, 4, 8)]
    groups.append(("distance", "more than x8", [task for task in tasks if task.factor > 8]))
    groups.append(("other", "all origins", list(tasks)))
    largest = [task for task in tasks if task.largest]
    names = sorted({task.series.campaign for task in largest})
    chosen = {name: [task for task in largest if task.series.campaign == name] for name in names}
    if set(TOGETHER) <= set(names):
        chosen["HKBU and DLPerf together"] = [task for name in TOGETHER for task in chosen[name]]
    constant = [task for task in largest if not _changes(task)]
    chosen["known campaigns"] = [task for task in constant if task.series.campaign in KNOWN]
    chosen["fresh campaigns"] = [task for task in constant if task.series.campaign in FRESH]
    chosen["all campaigns, batch constant"] = constant
    chosen["all campaigns, batch changes"] = [task for task in largest if _changes(task)]
    groups += [("largest point", name, mine) for name, mine in chosen.items()]
    return [_row(group, name, mine) for group, name, mine in groups if mine]


def _changes(task: Task) -> bool:
    return task.forecast.doubt.situation == BATCH


def _row(group: str, name: str, tasks: Sequence[Task]) -> Row:
    signed = np.array([task.error() for task in tasks])
    errors = np.abs(signed)
    worst = tasks[int(np.argmax(errors))]
    return Row(
        group=group,
        name=name,
        points=len(tasks),
        mean_error=float(errors.mean()),
        median_error=float(np.median(errors)),
        bias=float(np.median(signed)),
        covered_50=float(np.mean([task.held(0.5) for task in tasks])),
        covered_90=float(np.mean([task.held(0.9) for task in tasks])),
        score=float(np.mean([task.score() for task in tasks])),
        laws={law: float(np.mean([abs(task.error(law)) for task in tasks])) for law in LAWS},
        worst_error=float(errors.max()),
        worst=f"{worst.series.label} at {worst.series.devices[worst.target]:g}",
    )


def _gpt_row(name: str, judged: Judged) -> Row:
    signed = judged.ratio - 1
    errors = np.abs(signed)
    return Row(
        "other", name, len(errors), float(errors.mean()), float(np.median(errors)), float(np.median(signed)),
        float(judged.in_50.mean()), float(judged.in_90.mean()), None, {}, float(errors.max()), "",
    )  # fmt: skip


def _roofline_row(series: Sequence[Series]) -> Row:
    """One device without mixed precision, from catalog figures alone, against the smallest point of every series."""
    ratios: dict[str, float] = {}
    for one in series:
        rate = _roofline_rate(one)
        if rate is not None:
            ratios[one.label] = rate / float(one.samples_per_s[0]) - 1
    errors = np.abs(np.array(list(ratios.values())))
    worst = list(ratios)[int(np.argmax(errors))]
    return Row(
        "other", "roofline, one device, nothing measured", len(errors), float(errors.mean()),
        float(np.median(errors)), float(np.median(list(ratios.values()))), None, None, None, {},
        float(errors.max()), worst,
    )  # fmt: skip


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
        work = roofline(
            catalog.network(network), catalog.device(device), int(series.batch), precision=_default_precision(series)
        )
    except Unsupported:
        return None
    return series.batch / (work.compute + work.update)


def _default_precision(series: Series) -> str:
    """The default precision of the framework of a series: "fp32" on A100 is TF32 in most frameworks."""
    try:
        return catalog.policy(catalog.framework(series.how.split()[0].lower())).precision
    except UnknownName:
        return "float32"
