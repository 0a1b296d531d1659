"""Collectives fitted from a measured sweep: seconds by bytes and ranks, with the form that the data choose.

additive     t = startup + N per_byte
largest      t = max(startup, N per_byte)
saturating   t = startup + N per_byte + root sqrt(N)      efficiency grows with size

The form is chosen by leave-one-size-out error; its residual is the fit's own uncertainty.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.cost.host import turns
from paceline.errors import Unsupported

__all__ = ["FORMS", "CollectiveFit", "SweepPoint", "fit_sweep", "seconds_at"]

Floats = NDArray[np.float64]

FORMS = ("additive", "largest", "saturating")


@dataclass(frozen=True)
class SweepPoint:
    """One measured collective."""

    operation: str
    ranks: int
    size_bytes: float
    seconds: float


@dataclass(frozen=True)
class CollectiveFit:
    """Cost of one operation at one number of ranks."""

    operation: str
    ranks: int
    form: str
    startup: float
    per_byte: float
    root: float
    spread: float
    """Standard deviation of the relative residual by leave-one-size-out."""
    smallest: float
    largest: float
    """Sizes of the sweep; outside, `uncertainty` grows."""

    def seconds(self, size: Floats) -> Floats:
        """Predicted seconds of each size."""
        n = np.asarray(size, dtype=np.float64)
        if self.form == "largest":
            return np.where(n > 0, np.maximum(self.startup, n * self.per_byte), 0.0)
        return np.where(n > 0, self.startup + n * self.per_byte + self.root * np.sqrt(n), 0.0)

    def uncertainty(self, size: float) -> float:
        """Relative standard deviation at a size; it doubles for every factor of four outside the sweep."""
        outside = max(np.log(self.smallest / max(size, 1.0)), np.log(max(size, 1.0) / self.largest), 0.0)
        return float(max(self.spread, 0.01) * 2.0 ** (outside / np.log(4.0)))


def fit_sweep(points: Iterable[SweepPoint]) -> tuple[CollectiveFit, ...]:
    """One fit per operation and number of ranks; a form needs at least three sizes."""
    groups: dict[tuple[str, int], dict[float, list[float]]] = {}
    for point in points:
        key, size = (point.operation, point.ranks), float(point.size_bytes)
        groups.setdefault(key, {}).setdefault(size, []).append(point.seconds)
    fits = [_fit(key, sizes) for key, sizes in sorted(groups.items())]
    if not fits:
        raise Unsupported("the sweep holds no collective", hint="run `paceline bench-collectives` first")
    return tuple(fits)


def _fit(key: tuple[str, int], sizes: dict[float, list[float]]) -> CollectiveFit:
    operation, ranks = key
    if len(sizes) < 3:
        raise Unsupported(
            f"{operation} over {ranks} ranks was measured at {len(sizes)} sizes, at least 3 are needed",
            hint="sweep from kilobytes to the size of the whole gradient",
        )
    n = np.array(sorted(sizes))
    t = np.array([float(np.median(sizes[size])) for size in n])
    errors = {form: _held_out(form, n, t) for form in FORMS}
    form = min(FORMS, key=lambda name: float(np.mean(np.abs(errors[name]))))
    startup, per_byte, root = _solve(form, n, t)
    # The median, because a scheduling delay of a small message is not representative of large messages.
    spread = 1.48 * float(np.median(np.abs(errors[form])))
    return CollectiveFit(operation, ranks, form, startup, per_byte, root, spread, float(n[0]), float(n[-1]))


def _held_out(form: str, n: Floats, t: Floats) -> Floats:
    """Relative error at each inner size when it is left out."""
    errors = []
    for index in range(1, len(n) - 1) if len(n) > 3 else range(len(n)):
        keep = np.arange(len(n)) != index
        startup, per_byte, root = _solve(form, n[keep], t[keep])
        fit = CollectiveFit("", 2, form, startup, per_byte, root, 0.0, n[0], n[-1])
        errors.append(float(fit.seconds(n[index : index + 1])[0] / t[index] - 1))
    return np.asarray(errors)


def _solve(form: str, n: Floats, t: Floats) -> tuple[float, float, float]:
    """Non-negative least squares on relative errors; `largest` takes the medians of either end of the sweep."""
    if form == "largest":
        rate = float(np.median((t / n)[-max(1, len(n) // 3) :]))
        return float(np.median(t[: max(1, len(n) // 3)])), rate, 0.0
    columns = [np.ones_like(n), n] + ([np.sqrt(n)] if form == "saturating" else [])
    scale = np.array([np.abs(column).max() for column in columns])
    matrix = np.stack([column / size for column, size in zip(columns, scale, strict=True)], axis=1) / t[:, None]
    from scipy.optimize import nnls

    solution, _ = nnls(matrix, np.ones_like(n))
    values = np.append(solution / scale, 0.0)
    return float(values[0]), float(values[1]), float(values[2])


def seconds_at(
    fits: tuple[CollectiveFit, ...], operation: str, ranks: int, size: Floats, *, cores: int | None = None
) -> tuple[Floats, float] | None:
    """Seconds and relative uncertainty at a number of ranks; not measured: from the two nearest counts, in log.

    None if the operation was not swept at all. One rank communicates nothing. Ranks of one host with these `cores`
    take turns on them.
    """
    known = sorted((fit for fit in fits if fit.operation == operation), key=lambda fit: fit.ranks)
    n = np.asarray(size, dtype=np.float64)
    if ranks == 1:
        return np.zeros_like(n), 0.0
    if not known:
        return None
    middle = float(np.median(n)) if n.size else 1.0
    exact = next((fit for fit in known if fit.ranks == ranks), None)
    if exact is not None:
        return exact.seconds(n), exact.uncertainty(middle)
    near = min(known, key=lambda fit: abs(np.log(fit.ranks / ranks)))
    doublings = abs(float(np.log2(ranks / near.ranks)))
    later = 1.0 if len(known) > 1 else turns(ranks, cores) / turns(near.ranks, cores)
    seconds = near.seconds(n) * _growth(known, near, ranks, n) * later
    return seconds, float(np.hypot(near.uncertainty(middle), 0.12 * doublings))


def _growth(known: list[CollectiveFit], near: CollectiveFit, ranks: int, n: Floats) -> Floats:
    """Factor from the nearest count: the measured trend over counts if there are two, else the ring's own."""
    ring = (1 - 1 / ranks) / (1 - 1 / near.ranks)
    others = [fit for fit in known if fit is not near]
    if not others:
        return np.full_like(n, ring)
    other = min(others, key=lambda fit: abs(np.log(fit.ranks / near.ranks)))
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.log(near.seconds(n) / other.seconds(n)) / np.log(near.ranks / other.ranks)
    slope = np.nan_to_num(np.clip(slope, 0.0, 1.0))
    growth: Floats = np.exp(slope * np.log(ranks / near.ranks))
    return growth
