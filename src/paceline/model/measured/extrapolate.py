"""Predictions of larger device counts from measured smaller ones, series by series, and where to measure next.

A next measurement is imagined to come out as predicted. What remains is then: a shorter distance, perhaps a situation
that is better known, the posterior given that point, and a hindcast error of the size that predictions of it have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError, Unsupported
from paceline.model.measured import curve
from paceline.model.measured.discrepancy import interval, scale_of
from paceline.model.measured.fit import NOISE
from paceline.model.measured.forecast import Forecast, Posterior, centre_of, forecast, posteriors
from paceline.model.measured.forms import BATCH, FEWER, FIRST_CROSSING, FORMS, step_parts
from paceline.model.measured.names import link_kind, normal, parameters_of, strategy_kind
from paceline.model.measured.points import Series
from paceline.model.measured.prior import Population, adapted
from paceline.model.prediction import TERMS, Curve, Estimate, Prediction, doublings, knee_of

__all__ = ["NextMeasurement", "extrapolate_series", "measure_next"]

Floats = NDArray[np.float64]

FORWARD_SHARE = 1 / 3
"""Forward's share of compute: backward takes about twice as long."""


def extrapolate_series(
    series: Sequence[Series],
    at: Sequence[int],
    *,
    population: Population,
    global_batch: float | None = None,
    force: bool = False,
    knee_gain: float = 0.5,
) -> tuple[Curve, ...]:
    """One curve per series at the asked device counts, at a fixed global batch if one is given.

    Counts beyond the distance at which intervals held are refused; with `force` they are marked unsupported.
    """
    if not at or min(at) < 1:
        raise InputError("numbers of devices must be at least 1", hint="for example 32,64")
    _check_points(series, global_batch)
    fits = _fits(series, population)
    shorter = posteriors([one.first(max(one.num_points - 1, 1)) for one in series], population)
    counts = tuple(sorted(set(at)))
    curves = []
    for now, before in zip(fits, shorter, strict=True):
        known = before if now.series.num_points > 2 else None
        first, last = (round(float(now.series.devices[place])) for place in (0, -1))
        now.ask([*counts, *doublings(first, max(last, counts[-1]))])
        made = [forecast(now, known, count, now.series.batch_at(count, global_batch)) for count in counts]
        one = _curve(now, made, population, force=force, knee_gain=knee_gain)
        grid = doublings(first, max(last, one.predictions[-1].devices))
        rates = [
            count / float(np.exp(centre_of(now, known, count, now.series.batch_at(count, global_batch))))
            for count in grid
        ]
        curves.append(replace(one, knee=knee_of(grid, rates, gain=knee_gain)))
    return tuple(curves)


def _fits(series: Sequence[Series], population: Population) -> list[Posterior]:
    """Fits of all series; a series with a single point borrows from other series over its link."""
    fits = posteriors(series, population)
    alike = [one for one in series if one.has_one_batch]
    if not alike or min(one.num_points for one in series) > 1:
        return fits
    borrowed = posteriors(series, adapted(population, alike))
    return [fit if fit.series.num_points > 1 else other for fit, other in zip(fits, borrowed, strict=True)]


def _check_points(series: Sequence[Series], global_batch: float | None) -> None:
    """Refuse what nothing supports: a series of one point that shares neither link nor network with another."""
    links = {normal(one.link) for one in series if one.num_points > 1}
    for one in series:
        if one.num_points == 1 and not one.siblings and normal(one.link) not in links:
            where = f"{one.devices[0]:g} device" + ("s" if one.devices[0] != 1 else "")
            raise Unsupported(
                f"nothing supports a curve through one point: {one.label} was measured at {where} only",
                hint=f"measure {2 * one.devices[0]:g} devices too, or add a series over the same link to the file",
            )
        if global_batch is not None and one.batch is None:
            raise InputError(
                f"a global batch needs the batches of the measured points: {one.label} has none",
                hint="add the column batch_per_device or global_batch",
            )


def _curve(
    posterior: Posterior, made: Sequence[Forecast], population: Population, *, force: bool, knee_gain: float
) -> Curve:
    series = posterior.series
    ranked = measure_next(posterior, made[-1], population)
    far = [one for one in made if one.doubt.doublings > population.supported[one.doubt.situation] + 0.01]
    kept = [one for one in made if force or one not in far]
    if not kept:
        raise _refusal(series, far[0], population, ranked)
    predictions = tuple(_prediction(posterior, one, population, supported=one not in far) for one in kept)
    return Curve(
        label=series.label,
        predictions=predictions,
        knee=None,
        knee_gain=knee_gain,
        advice="; ".join(one.text for one in ranked) or _nothing_helps(series, made),
        basis=_basis(posterior, kept[-1], [_distance(one, series, population, force=force) for one in far]),
        detail={"network": series.network, "strategy": series.how, "device": series.device, "link": series.link,
                "precision": f"that of the measured points, {series.precision or 'which do not state it'}",
                "measure_next": [one.as_dict() for one in ranked]},
        measured=tuple((round(p), float(rate)) for p, rate in zip(series.devices, series.samples_per_s, strict=True)),
    )  # fmt: skip


def _refusal(series: Series, far: Forecast, population: Population, ranked: Sequence[NextMeasurement]) -> Unsupported:
    closer = "a smaller" if far.doubt.situation == FEWER else "a larger"
    return Unsupported(
        f"{series.label}: {_distance(far, series, population, force=False)}",
        hint=f"{ranked[0].text if ranked else f'measure {closer} count'}; or force the prediction",
    )


def _nothing_helps(series: Series, made: Sequence[Forecast]) -> str:
    if all(one.count in series.devices and one.doubt.situation != BATCH for one in made):
        return "every asked count was measured"
    return "no smaller measurement narrows the interval: measure the asked count itself"


def _distance(far: Forecast, series: Series, population: Population, *, force: bool) -> str:
    times, away = far.count / series.devices[-1], 2**far.doubt.doublings
    held = 2 ** population.supported[far.doubt.situation]
    word = "unsupported" if force else "refused"
    what = f"{far.count:g} devices are {times:g} times the largest measured count"
    if far.doubt.situation == FEWER:
        what = f"the smallest measured count is {away:g} times {far.count:g} device{'s' if far.count > 1 else ''}"
    elif away > 1.001 * times:
        what = f"a batch of {far.batch:g} per device is {away:.3g} times away from the nearest measured one"
    return f"{word}: {what}, and intervals were seen to hold up to {held:g} times"


MOST_LOG = 60.0
"""A logarithm of seconds or of their doubt that no sound points lead to."""
MOST_RATIO = 1e26
"""Largest ratio between rates per device of one series; a larger one is an error of units or decimals."""


def _prediction(posterior: Posterior, made: Forecast, population: Population, *, supported: bool) -> Prediction:
    logs = [np.array(interval(population.discrepancy, made.doubt, share)) for share in (0.5, 0.9)]
    rates_each = posterior.series.samples_per_s / posterior.series.devices
    sound = rates_each.max() < MOST_RATIO * rates_each.min()
    if not (sound and abs(made.centre) < MOST_LOG and all(np.abs(bounds).max() < MOST_LOG for bounds in logs)):
        raise Unsupported(
            f"{posterior.series.label}: the points contradict each other", hint="check units and decimals"
        )
    step = float(np.exp(made.centre))
    batch = 1.0 if np.isnan(made.batch) or posterior.series.in_tokens else made.batch
    bounds = [np.exp(low_high) for low_high in logs]
    low_high = [(step * float(low), step * float(high)) for low, high in bounds]
    seconds = Estimate(step * batch, *((low * batch, high * batch) for low, high in low_high))
    rates = Estimate(made.count / step, *((made.count / high, made.count / low) for low, high in low_high))
    return Prediction(
        devices=int(made.count),
        batch_per_device=batch,
        step_s=seconds,
        samples_per_s=rates,
        efficiency=float(np.exp(posterior.series.log_seconds[0])) / step,
        terms=_terms(_parts(posterior, made), step, batch),
        supported=supported,
    )


def _parts(posterior: Posterior, made: Forecast) -> dict[str, float]:
    """The parts of the seconds per sample, by the most probable curve."""
    if made.doubt.situation == BATCH:
        names = ("compute", "fixed", "aggregate")
        return dict(zip(names, step_parts(posterior.series, made.count, made.batch).tolist(), strict=True))
    flag = int(posterior.overlapped > 0.5)
    devices, hosts = np.array([made.count]), np.array([posterior.series.hosts_at(made.count)])
    parts = curve.terms(posterior.draws[flag], devices, hosts, np.array([float(flag)]))
    return {name: float(np.mean(values)) for name, values in parts.items()}


def _terms(parts: dict[str, float], step: float, batch: float) -> dict[str, float]:
    """The terms of the curve under the names of a step; terms other than compute are scaled to sum to the step."""
    compute = min(parts["compute"], step) * batch
    others = sum(value for name, value in parts.items() if name != "compute")
    scale = (step * batch - compute) / others if others > 0 else 0.0
    compute = compute if others > 0 else step * batch
    named = dict.fromkeys(TERMS, 0.0)
    named["forward"] = compute * FORWARD_SHARE
    named["backward"] = compute * (1 - FORWARD_SHARE)
    for name in ("fixed", "aggregate", "slowdown", "waiting"):
        named[name] = parts.get(name, 0.0) * scale
    return named


def _hosts(posterior: Posterior) -> str:
    """The size of a full host; if it is not stated, how probable each is."""
    if not posterior.among:
        return f"hosts of {posterior.series.per_host:g}"
    likely = sorted(posterior.among, key=lambda one: -one[0])
    return "hosts of " + " or ".join(f"{fit.series.per_host:g} ({part:.0%})" for part, fit in likely)


def _basis(posterior: Posterior, made: Forecast, notes: Sequence[str]) -> tuple[str, ...]:
    series = posterior.series
    counts = ", ".join(f"{count:g}" for count in series.devices)
    parameters = parameters_of(series.network)
    link, kind = link_kind(series.link), strategy_kind(series.how)
    known = f"{parameters / 1e6:.1f} M parameters" if parameters else "network not known: label only"
    rate = f"link of {link.bandwidth / 1e9:g} GB/s" if link.bandwidth else "rate of the link not known: label only"
    overlap = {True: "overlapped", False: "not overlapped", None: "overlap not known"}[kind.overlap]
    where = "parameter servers" if kind.servers else "collectives"
    forms = ", ".join(f"{name} {share:.0%}" for name, share in zip(FORMS, made.weights, strict=True) if share > 0.005)
    spread = () if series.spread.any() else ("no spread given: add the column `spread`, the interval then rests on it",)
    return (
        *notes,
        f"measured at {counts} devices, {_hosts(posterior)}",
        *(() if series.devices[0] == 1 else (f"efficiency is over that of {series.devices[0]:g} devices, per device",)),
        f"{known}, {rate}",
        f"{where}, {overlap}",
        f"forms: {forms}",
        *series.assumed,
        *spread,
        "prior of published campaigns",
    )


TYPICAL = 0.67
"""Median absolute error of a prediction over its scale."""
MOST = 3
"""Measurements that are named."""
NETWORK = [curve.PARAMETERS.index("network"), curve.PARAMETERS.index("network_growth")]
"""Places of the parameters that a sweep of the link between hosts tells."""


@dataclass(frozen=True)
class NextMeasurement:
    """A measurement that would narrow the interval, and by how much."""

    kind: str
    """`devices`, `batch`, `spread`, `sweep`, or `devices_per_host` where the file lacks it."""
    value: float
    what: str
    narrows: float
    """Expected share by which the 90 % interval becomes narrower."""

    @property
    def text(self) -> str:
        """The recommendation as text."""
        return f"{self.what} (narrows the 90 % interval by about {self.narrows:.0%})"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"kind": self.kind, "value": self.value, "measurement": self.what, "narrows": round(self.narrows, 3)}


def measure_next(posterior: Posterior, made: Forecast, population: Population) -> list[NextMeasurement]:
    """Measurements that would narrow this prediction, the best first."""
    series = posterior.series
    if made.count <= series.devices[-1] and made.doubt.situation != BATCH:
        return []
    unknown, made = made, replace(made, doubt=replace(made.doubt, among=()))
    ranked = [_host_size(unknown, made, population)] if unknown.doubt.among else []
    ranked += [_count(posterior, made, population, count) for count in _candidates(posterior, made, population)]
    measured = {round(float(batch), 6) for one in (series, *series.siblings) for batch in one.batches}
    if made.doubt.situation == BATCH and series.has_one_batch and round(made.batch, 6) not in measured:
        ranked.append(_batch(posterior, made, population))
    if series.spread[-1] > 0:
        ranked.append(_spread(series, made, population))
    if made.doubt.situation == FIRST_CROSSING:
        ranked.append(_sweep(posterior, made, population))
    return sorted((one for one in ranked if one.narrows > 0.005), key=lambda one: -one.narrows)[:MOST]


def _host_size(made: Forecast, likeliest: Forecast, population: Population) -> NextMeasurement:
    """The size of a full host, if no column states it: nothing needs to be measured for it."""
    after = _width(population, likeliest) / _width(population, made)
    return NextMeasurement("devices_per_host", 0.0, "state devices_per_host, the devices of a full host", 1 - after)


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
    return float(np.exp(min(high, MOST_LOG)) - np.exp(min(low, MOST_LOG)))


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
        inside=None,
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


def _spread(series: Series, made: Forecast, population: Population) -> NextMeasurement:
    """Four times as many launches of the last count halve its spread."""
    what = f"repeat {series.devices[-1]:g} devices four times as often"
    after = _width(population, made, spread=made.doubt.spread / 2)
    return NextMeasurement("spread", float(series.devices[-1]), what, 1 - after / _width(population, made))


def _sweep(posterior: Posterior, made: Forecast, population: Population) -> NextMeasurement:
    """A sweep of the all-reduce between two hosts tells what aggregation between hosts costs, before a step needs it.

    What remains of the posterior is its variance about the linear regression on that cost and on its congestion.
    """
    flag = int(posterior.overlapped > 0.5)
    target, costs = posterior.log_seconds(made.count)[flag], posterior.draws[flag][:, NETWORK]
    design = np.column_stack([np.ones(len(costs)), costs])
    rest = target - design @ np.linalg.lstsq(design, target, rcond=None)[0]
    after = _width(population, made, posterior=min(float(rest.std()), made.doubt.posterior))
    what = "sweep the all-reduce between two hosts, and predict from a profile with that calibration"
    return NextMeasurement("sweep", 2.0, what, 1 - after / _width(population, made))


def _batch(posterior: Posterior, made: Forecast, population: Population) -> NextMeasurement:
    """A point at the batch of the target, which determines the cost per step."""
    series = posterior.series
    count, batch = series.devices[0], made.batch
    what = f"measure {count:g} device{'s' if count > 1 else ''} at a batch of {batch:g} per device"
    known = TYPICAL * scale_of(population.discrepancy, made.doubt) / 2
    left = float(np.log2(max(made.count / series.devices[-1], 1.0)))
    after = _width(population, made, doublings=left, hindcast=known, disagreement=made.doubt.disagreement / 2)
    return NextMeasurement("batch", float(batch), what, 1 - after / _width(population, made))
