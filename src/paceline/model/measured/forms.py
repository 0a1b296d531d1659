"""Forms of a curve that a few points determine by themselves, and how far each form is trusted in which situation.

y = log of the seconds that one device spends on one sample. Through the last two points:

    power law      y = y0 + slope ln(P/P0)
    straight line  throughput is linear in P
    trend          y = y0 + slope ln(P/P0), the slope of all points: stands for both as far as the last point is faster
                   per device than the one before it, because the last two points then say nothing about what more
                   cost, and for the power law at the first crossing, which no two points inside a host know
    saturating     T^q = T0^q + (P/Ps)^q         a server, an input pipeline or a disk that is full at Ps devices

Batch-aware, through all points, non-negative least squares (b batch per device, one step of P devices):

    ring           step = t1 b + t0 + X 2(P-1)/P
    tree           step = t1 b + t0 + X log2(P)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from paceline.model.measured.points import Series

__all__ = ["BATCH", "BEYOND_A_HOST", "FEWER", "FIRST_CROSSING", "FORMS", "ONE_CROSSING", "SHARPNESS", "SITUATIONS",
           "UNSTATED", "WEIGHTS", "amdahl", "closed_forms", "fluke_of", "least_slope", "power_law", "situation_of",
           "slope_of", "step_parts", "straight_line"]  # fmt: skip

Floats = NDArray[np.float64]

SITUATIONS = (
    "inside a host", "first crossing", "one crossing known", "more crossings known", "batch changes", "fewer devices"
)  # fmt: skip
"""Situations: what is predicted from which measurements. Errors of each situation differ in kind and size."""
FIRST_CROSSING, ONE_CROSSING, BATCH, FEWER = 1, 2, 4, 5
BEYOND_A_HOST = (1, 2, 3)
FORMS = ("not overlapped", "overlapped", "straight line", "power law", "saturating", "ring", "tree")
WEIGHTS = np.array(
    [
        [0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0],
        [0.7, 0.7, 0.0, 0.3, 0.0, 0.0, 0.0],
        [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.75, 0.75, 0.1, 0.15, 0.1, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.2, 0.0, 0.5, 0.3],
        [0.7, 0.7, 0.0, 0.3, 0.0, 0.0, 0.0],
    ]
)
"""Prior weight of each form by situation; the first two share theirs by the evidence of the points for overlap."""
UNSTATED = np.array([0.5, 0.5, 0.0, 0.5, 0.0, 0.0, 0.0])
"""The same at the first crossing where labels do not state what the link costs: the curve then rests on words alone."""
SHARPNESS = 4
FLUKE = 0.02
"""If the last point is faster per device by this share, it is not used for the slope; by less, in proportion."""
RIDGE = 0.3
"""How strongly costs per step are drawn to none, as a share of the first point."""


def situation_of(series: Series, count: float, batch: float) -> int:
    """Index into SITUATIONS of a prediction from these points."""
    if abs(np.log(series.shrink_of(batch) / series.shrink_of(series.batches[-1]))) > 0.05 or (
        series.num_points == 1 and series.siblings
    ):
        return BATCH
    if count < series.devices[0]:
        return FEWER
    if series.hosts_at(count) == 1:
        return 0
    return min(1 + int((series.hosts > 1).sum()), 3)


def slope_of(series: Series) -> float:
    """The slope of all points in logarithms (least squares), never falling; above 1 they get slower in total."""
    return _slope(np.log(series.devices), series.log_seconds)


def _slope(ln: Floats, y: Floats) -> float:
    if len(y) < 2:
        return 0.0
    away = ln - ln.mean()
    return max(float(away @ y / (away @ away)), 0.0)


def least_slope(series: Series, count: float, situation: int) -> float:
    """The smallest slope that gains so far leave possible: 0 nothing is known, 1 the total does not rise again.

    Gains count inside one regime, with aggregation before and after the step: the second device or the second host
    has a one-time cost, and published series that stall there continue to scale. Inside a host, a second device
    without any gain implies none for a third; a partial gain implies much less. Both the last step and the trend of
    the last three points must be slow, so that one bad point is not enough. A stall on both sides of a crossing is
    caused by a resource that all hosts share.
    """
    several, outside = series.devices > 1, series.hosts > 1
    slow = _stall(series, several & ~outside)
    if series.hosts_at(count) == 1:
        slow = max(slow, _stall(series, ~outside) ** (SHARPNESS / 2))
    elif situation != FIRST_CROSSING:
        slow = _stall(series, outside) if outside.sum() > 1 else min(slow, _stall(series, several))
    return 1.0 if slow >= 1 else slow**2


def _stall(series: Series, alike: NDArray[np.bool_]) -> float:
    """The slope of the last three of some points, or of the last two if that is smaller; 0 if there is one.

    Less than a doubling tells as much less.
    """
    ln, y = np.log(series.devices)[alike], series.log_seconds[alike]
    ends = [(ln[-count:], y[-count:]) for count in (2, 3)]
    return min(_slope(*end) * min(float(np.ptp(end[0])) / np.log(2), 1.0) if len(y) > 1 else 0.0 for end in ends)


def fluke_of(series: Series) -> float:
    """Degree, from 0 to 1, to which the last of at least three points is a fluke: 0 if it is slower per device."""
    if series.num_points < 3:
        return 0.0
    return float(np.clip((series.log_seconds[-2] - series.log_seconds[-1]) / FLUKE, 0.0, 1.0))


def _trend(series: Series, count: float, start: int = -1) -> float:
    """y by the slope of all points, from the last or another one."""
    return float(series.log_seconds[start] + slope_of(series) * np.log(count / series.devices[start]))


def power_law(series: Series, count: float) -> float:
    """y by the slope of the last two points in logarithms."""
    y, ln = series.log_seconds, np.log(series.devices)
    slope = (y[-1] - y[-2]) / (ln[-1] - ln[-2]) if series.num_points > 1 else 0.0
    return float(y[-1] + slope * (np.log(count) - ln[-1]))


def straight_line(series: Series, count: float) -> float:
    """y if throughput continues as between the last two points; at least a twentieth of the last throughput stays."""
    devices, rate = series.devices, series.samples_per_s
    slope = (rate[-1] - rate[-2]) / (devices[-1] - devices[-2]) if series.num_points > 1 else rate[-1] / devices[-1]
    return float(np.log(count / max(rate[-1] + slope * (count - devices[-1]), 0.05 * rate[-1])))


def amdahl(series: Series, count: float) -> float:
    """y if a share of the work is serial (least squares over all points)."""
    design = np.stack([np.ones(series.num_points), 1 / series.devices], axis=1)
    serial, parallel = nnls(design * series.samples_per_s[:, None], np.ones(series.num_points))[0]
    return float(np.log(count * (serial + parallel / count)))


def _saturating(series: Series, count: float) -> float:
    y = series.log_seconds
    grown = max(1 - np.exp(SHARPNESS * (y.min() - y[-1])), 0.0)
    return float(y[-1] + np.log1p(grown * ((count / series.devices[-1]) ** SHARPNESS - 1)) / SHARPNESS)


def step_parts(series: Series, count: float, batch: float, *, tree: bool = False) -> Floats:
    """Seconds per sample and device of compute, of what a step costs once, and of aggregation."""
    points = (series, *series.siblings)
    devices = np.concatenate([one.devices for one in points])
    shrink = np.concatenate([series.shrink_of(one.batches) for one in points])
    y = np.concatenate([one.log_seconds for one in points])
    design = _columns(devices, shrink, tree) * np.exp(-y)[:, None]
    ridge = RIDGE * np.exp(-y[0]) * np.eye(3)[1:]
    cost = nnls(np.vstack([design, ridge]), np.append(np.ones(len(y)), [0.0, 0.0]))[0]
    at = _columns(np.array([float(count)]), series.shrink_of(np.array([batch])), tree)[0]
    return np.asarray(cost * at)


def _columns(devices: Floats, shrink: Floats, tree: bool) -> Floats:
    shape = np.log2(devices) if tree else 2 * (devices - 1) / devices
    return np.stack([np.ones_like(devices), shrink, shrink * shape], axis=1)


def closed_forms(series: Series, count: float, batch: float, situation: int) -> Floats:
    """y by the last five forms; those without weight in the situation are left at the last point."""
    y = np.full(5, series.log_seconds[-1])
    if situation == BATCH:
        y[1] = power_law(series, count)
        y[3:] = [np.log(max(step_parts(series, count, batch, tree=tree).sum(), 1e-300)) for tree in (False, True)]
    elif situation == FEWER:
        y[1] = _trend(series, count, 0)
    else:
        y[:3] = straight_line(series, count), power_law(series, count), _saturating(series, count)
        fluke = fluke_of(series)
        y[:2] += fluke * (_trend(series, count) - y[:2])
        if situation == FIRST_CROSSING:
            y[1] = _trend(series, count)
    return y
