"""Where to measure next: how much each measurement is expected to narrow the interval of a prediction.

A measurement is imagined to come out as predicted. What remains is then: a shorter distance, perhaps a situation that
is better known, the posterior given that point, and a hindcast error of the size that predictions of it have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.model.measured.discrepancy import interval, scale_of
from paceline.model.measured.fit import NOISE
from paceline.model.measured.forecast import Forecast, Posterior, forecast
from paceline.model.measured.forms import BATCH
from paceline.model.measured.prior import Population

__all__ = ["NextMeasurement", "measure_next"]

TYPICAL = 0.67
"""Median absolute error of a prediction over its scale."""
MOST = 3
"""Measurements that are named."""


@dataclass(frozen=True)
class NextMeasurement:
    """One measurement that would help, and how much."""

    kind: str
    """`devices`, `batch` or `spread`."""
    value: float
    what: str
    narrows: float
    """Expected share by which the 90 % interval becomes narrower."""

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.what} (narrows the 90 % interval by about {self.narrows:.0%})"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"kind": self.kind, "value": self.value, "measurement": self.what, "narrows": round(self.narrows, 3)}


def measure_next(posterior: Posterior, made: Forecast, population: Population) -> list[NextMeasurement]:
    """Measurements that would narrow this prediction, the best first."""
    series = posterior.series
    if made.count <= series.devices[-1]:
        return []
    ranked = [_count(posterior, made, population, count) for count in _candidates(posterior, made, population)]
    if made.doubt.situation == BATCH and np.ptp(np.nan_to_num(series.batches)) == 0:
        ranked.append(_batch(posterior, made, population))
    if not series.spread[-1]:
        what = f"repeat {series.devices[-1]:g} devices and give the spread"
        ranked.append(NextMeasurement("spread", float(series.devices[-1]), what, 0.0))
    return sorted((one for one in ranked if one.narrows > 0.005), key=lambda one: -one.narrows)[:MOST]


def _candidates(posterior: Posterior, made: Forecast, population: Population) -> list[float]:
    """Doublings of the last count within the supported distance, and the first count that crosses hosts."""
    series = posterior.series
    reach = int(population.supported[made.doubt.situation])
    counts = {series.devices[-1] * 2.0**k for k in range(1, reach + 1)}
    if not (series.hosts > 1).any() and series.hosts_at(made.count) > 1:
        counts.add(2 * series.per_host)
    return sorted(count for count in counts if series.devices[-1] < count < made.count)


def _width(population: Population, made: Forecast, **changes: Any) -> float:
    low, high = interval(population.discrepancy, replace(made.doubt, **changes), 0.9)
    return float(np.exp(high) - np.exp(low))


def _count(posterior: Posterior, made: Forecast, population: Population, count: float) -> NextMeasurement:
    series = posterior.series
    batch = made.batch if made.doubt.situation != BATCH else made.batch * made.count / count
    there = forecast(posterior, None, count, batch)
    left = np.log2(made.count / count)
    share = left / made.doubt.doublings
    crossed = int((series.hosts > 1).sum()) + int(series.hosts_at(count) > 1)
    situation = made.doubt.situation
    if situation != BATCH and series.hosts_at(made.count) > 1:
        situation = min(1 + crossed, 3)
    after = _width(
        population, made, situation=situation, doublings=float(left), posterior=_given(posterior, made, count),
        disagreement=made.doubt.disagreement * share, hindcast=TYPICAL * scale_of(population.discrepancy, there.doubt),
    )  # fmt: skip
    what = f"measure {count:g} devices" + (f" ({series.hosts_at(count):g} hosts)" if series.hosts_at(count) > 1 else "")
    return NextMeasurement("devices", count, what, 1 - after / _width(population, made))


def _given(posterior: Posterior, made: Forecast, count: float) -> float:
    """Posterior standard deviation of the target once the time at `count` is known."""
    if made.doubt.situation == BATCH:
        return 0.0
    flag = int(posterior.overlapped > 0.5)
    target, there = posterior.log_seconds(made.count)[flag], posterior.log_seconds(count)[flag]
    together = np.cov(target, there)
    rest = together[0, 0] - together[0, 1] ** 2 / (together[1, 1] + NOISE**2)
    return float(min(np.sqrt(max(rest, 0.0)), made.doubt.posterior))


def _batch(posterior: Posterior, made: Forecast, population: Population) -> NextMeasurement:
    """One point at the target's batch tells what a step costs once."""
    series = posterior.series
    count, batch = series.devices[0], made.batch
    what = f"measure {count:g} devices at a batch of {batch:g} per device"
    known = TYPICAL * scale_of(population.discrepancy, made.doubt) / 2
    after = _width(population, made, hindcast=known, disagreement=made.doubt.disagreement / 2)
    return NextMeasurement("batch", float(batch), what, 1 - after / _width(population, made))
