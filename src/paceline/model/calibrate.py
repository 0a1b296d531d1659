"""Fit from measurements: collectives from stored sweeps, costs of being distributed from stored runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline import catalog
from paceline.cost.host import SharingProbe
from paceline.errors import Unsupported
from paceline.measurements.profile import Profile
from paceline.measurements.results import Launches, find_campaign, load_launches
from paceline.measurements.run import Run
from paceline.measurements.store import Store
from paceline.model.calibration import Calibration, Uncertain
from paceline.model.profiles import alone, profile_of
from paceline.model.question import question_of_run, ranks_of, works_of
from paceline.model.step import NOMINAL, step_terms
from paceline.model.sweep import CollectiveFit, SweepPoint, fit_sweep

__all__ = [
    "Calibrated",
    "Fitted",
    "calibrate_store",
    "fit_distributed",
    "label_of",
    "stored_sweeps",
    "swept_calibration",
]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Fitted:
    """One stored case and its prediction by the calibrated model."""

    label: str
    ranks: int
    measured_s: float
    predicted_s: float


@dataclass(frozen=True)
class Calibrated:
    """A calibration, the profiles of one-rank cases by label, and the errors on stored runs."""

    calibration: Calibration
    profiles: dict[str, Profile]
    fitted: tuple[Fitted, ...]


def stored_sweeps(store: Store, cluster: str | None = None) -> tuple[CollectiveFit, ...]:
    """Fits of all sweeps in the store, or of one cluster's."""
    points = [_point(item) for run in _sweep_runs(store, cluster) for item in run.facts.get("collectives", [])]
    return fit_sweep(points) if points else ()


def _profiles(store: Store, good: list[Launches]) -> dict[str, Profile]:
    """Profiles by label; a profile of concurrent ranks is preferred, because it includes the cost of neighbouring
    ranks."""
    ordered = sorted((item for item in good if alone(item.first)), key=lambda item: item.first.ranks)
    return {label_of(item): profile_of(store, item) for item in ordered}


def _sweep_runs(store: Store, cluster: str | None) -> list[Run]:
    runs = store.read_all(study="collectives")
    return [run for run in runs if run.outcome == "ok" and (cluster is None or run.cluster == cluster)]


def _point(item: dict[str, Any]) -> SweepPoint:
    return SweepPoint(item["collective"], int(item["ranks"]), float(item["size_bytes"]), float(item["seconds"]))


def swept_calibration(store: Store, cluster: str | None = None) -> Calibration:
    """Calibration from sweeps alone: collectives, the cost of a copy, and the mutual slowdown of exchange and
    compute."""
    sweeps, runs = stored_sweeps(store, cluster), _sweep_runs(store, cluster)
    usual = Calibration(f"{len(sweeps)} swept collectives of {store.root.name}", sweeps)
    copies = [run.facts["copy_bytes_per_s"] for run in runs if "copy_bytes_per_s" in run.facts]
    sharing = {(one["cores"], one["ranks"], one["threads"]): SharingProbe(**one) for run in runs
               for one in run.facts.get("sharing", [])}  # fmt: skip
    usual = replace(usual, sharing=tuple(sharing.values()))
    beside = [run.facts["overlap"] for run in runs if "overlap" in run.facts]
    if copies:
        usual = replace(usual, copy_per_byte=1 / float(np.median(copies)))
    if not beside:
        return usual
    rate = min(1.0, float(np.median([one["exchange"] for one in beside])))
    lost = max(0.0, 1 - float(np.median([one["compute"] for one in beside])))
    return replace(usual, overlap_rate=rate, slowdown=Uncertain(lost / rate, 0.3))


def calibrate_store(store: Store, study: str | None = None) -> Calibrated:
    """Calibration from the sweeps of a store and one campaign of runs."""
    campaigns = [item for item in store.read_campaigns() if item["study"] != "collectives"]
    newest = str(campaigns[-1]["campaign"]) if campaigns else None
    launches = load_launches(store, find_campaign(store, study or newest)) if study or newest else []
    good = [item for item in launches if item.steps]
    profiles = _profiles(store, good)
    clusters = sorted({item.first.cluster for item in good})
    where = clusters[0] if len(clusters) == 1 else None
    sweeps = stored_sweeps(store, where)
    if not profiles and not sweeps:
        raise Unsupported(
            "the store holds neither a sweep nor a one-rank run to calibrate from",
            hint="`paceline bench-collectives --ranks 2`, then `paceline run` a study with devices = [1, 2]",
        )
    many = [item for item in good if not alone(item.first) and label_of(item) in profiles]
    start = replace(swept_calibration(store, where), source=_source(store, sweeps, many))
    return fit_distributed(start, many, profiles)


def fit_distributed(start: Calibration, many: list[Launches], profiles: dict[str, Profile]) -> Calibrated:
    """Fixed cost, slowdown and crowding that fit the runs on several ranks best."""
    if not many:
        return Calibrated(start, profiles, ())
    usual = np.array([start.fixed_per_gradient.value, start.slowdown.value, 0.05])
    start = _blank(start)
    rows = [_row(item, profiles[label_of(item)], start) for item in many]
    matrix = np.array([row[1] for row in rows])
    base, steps = np.array([row[0] for row in rows]), np.array([float(np.median(item.steps)) for item in many])
    costs = _solve(
        matrix / steps[:, None], (steps - base) / steps, scale=matrix.mean(axis=0) / steps.mean(), usual=usual
    )
    spread = 0.5 if len(many) < 3 else 0.25
    calibration = replace(
        start,
        fixed_per_gradient=Uncertain(float(costs[0]), spread),
        slowdown=Uncertain(float(costs[1]), spread),
        crowding=float(costs[2]),
    )
    fitted = tuple(
        Fitted(label_of(item), item.first.ranks, float(step), float(low + row @ costs))
        for item, step, low, row in zip(many, steps, base, matrix, strict=True)
    )
    return Calibrated(calibration, profiles, fitted)


def _row(item: Launches, profile: Profile, start: Calibration) -> tuple[float, Floats]:
    """Step without the sought costs, and what one unit of each of them adds."""
    run = item.first
    question = question_of_run(run, profile, threads=run.machine.threads)
    works = works_of(question)
    ranks = ranks_of(question, run.ranks, start, works)
    policy = catalog.resolve(run.framework, question.strategy)
    costs = [
        replace(start, fixed_per_gradient=Uncertain(1e-6, 0.0)),
        replace(start, slowdown=Uncertain(0.1, 0.0)),
        replace(start, crowding=0.1),
    ]
    base, *others = (
        float(sum(step_terms(ranks, policy, one, NOMINAL).values(), np.zeros(1))[0]) for one in (start, *costs)
    )
    units = (1e-6, 0.1, 0.1)
    return base, np.array([(other - base) / unit for other, unit in zip(others, units, strict=True)])


def _blank(start: Calibration) -> Calibration:
    """The calibration without the parameters to be fitted; costs of copies stay if a sweep measured them."""
    nothing = Uncertain(0.0, 0.0)
    copies = nothing if start.copy_per_byte is None else start.fixed_copies
    return replace(start, fixed_per_gradient=nothing, slowdown=nothing, fixed_copies=copies)


def _solve(matrix: Floats, wanted: Floats, *, scale: Floats, usual: Floats) -> Floats:
    """Least squares on relative errors with a weak pull to usual values, nothing negative, slowdown below one."""
    from scipy.optimize import lsq_linear  # imported here: the verbs that explain start faster

    pull = np.diag(0.02 * np.maximum(scale, 1e-9))
    solution = lsq_linear(
        np.vstack([matrix, pull]),
        np.concatenate([wanted, pull @ usual]),
        bounds=([0, 0, 0], [0.01, 0.9, 1.0]),
    )
    return np.where(solution.x < 1e-9, 0.0, solution.x)


def label_of(item: Launches) -> str:
    """The name under which `fit_distributed` looks for the profile of a case."""
    run = item.first
    return f"{run.network} {run.framework} batch {run.batch}"


def _source(store: Store, sweeps: tuple[CollectiveFit, ...], many: list[Launches]) -> str:
    return f"{len(sweeps)} swept collectives and {len(many)} cases on several ranks of {store.root.name}"
