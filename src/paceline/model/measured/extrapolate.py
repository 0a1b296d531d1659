"""Predictions of larger device counts from measured smaller ones, series by series, sharing what they can."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError, Unsupported
from paceline.model.measured import curve
from paceline.model.measured.fit import NOISE, draw, maximise, pack
from paceline.model.measured.names import link_kind, normal, parameters_of, strategy_kind
from paceline.model.measured.points import Series
from paceline.model.measured.prior import Population, adapted, overlap_of, prior_of
from paceline.model.prediction import TERMS, Curve, Estimate, Prediction, knee_of

__all__ = ["extrapolate_series"]

Floats = NDArray[np.float64]

FORWARD_SHARE = 1 / 3
"""Forward's share of compute: backward takes about twice as long."""


def extrapolate_series(
    series: Sequence[Series],
    at: Sequence[int],
    *,
    population: Population,
    adapt: bool = True,
    knee_gain: float = 0.5,
    seed: int = 0,
) -> tuple[Curve, ...]:
    """One curve per series at the asked device counts."""
    if not at or min(at) < 1:
        raise InputError("numbers of devices must be at least 1", hint="for example --at 32,64")
    _check_support(series)
    packed = pack(series, [overlap_of(one) for one in series])
    if adapt:
        population = adapted(population, series, packed)
    prior = prior_of(population, series)
    found = maximise(packed, *prior)
    counts = tuple(sorted(set(at)))
    return tuple(
        _curve(one, counts, draw(packed, row, prior, found, seed=seed), population, knee_gain=knee_gain)
        for row, one in enumerate(series)
    )


def _check_support(series: Sequence[Series]) -> None:
    """A curve of one point is refused, unless another series of the file knows the same link at several counts."""
    links = {normal(one.link) for one in series if one.num_points > 1}
    alone = [one for one in series if one.num_points == 1 and normal(one.link) not in links]
    if alone:
        one = alone[0]
        where = f"{one.devices[0]:g} device" + ("s" if one.devices[0] != 1 else "")
        raise Unsupported(
            f"nothing supports a curve through one point: {one.label} was measured at {where} only",
            hint=f"measure it at {2 * one.devices[0]:g} devices too, or add a series over the same link to the file",
        )


def _curve(series: Series, at: tuple[int, ...], draws: Floats, population: Population, *, knee_gain: float) -> Curve:
    predictions = tuple(_prediction(series, count, draws, population) for count in at)
    counts = np.append(series.devices, [float(p.devices) for p in predictions])
    rates = np.append(series.samples_per_s, [p.samples_per_s.value for p in predictions])
    return Curve(
        label=series.label,
        predictions=predictions,
        knee=knee_of(counts, rates, gain=knee_gain),
        knee_gain=knee_gain,
        advice=_advice(series, at[-1]),
        basis=_basis(series),
        detail={"network": series.network, "strategy": series.how, "device": series.device, "link": series.link},
    )


def _prediction(series: Series, count: int, draws: Floats, population: Population) -> Prediction:
    devices, hosts = np.array([float(count)]), np.array([series.hosts_at(count)])
    overlap = np.array([overlap_of(series)])
    batch = series.batch or 1.0
    times = curve.seconds(draws, devices, hosts, overlap)[:, 0]
    step = float(np.median(times))
    parts = {name: float(np.mean(values)) for name, values in curve.terms(draws, devices, hosts, overlap).items()}
    single = float(np.median(curve.seconds(draws, np.ones(1), np.ones(1), overlap)))
    seconds = _spread(times, step, population)
    rates = Estimate(
        count / step,
        (count / seconds.interval_50[1], count / seconds.interval_50[0]),
        (count / seconds.interval_90[1], count / seconds.interval_90[0]),
    )
    return Prediction(
        devices=count,
        batch_per_device=batch,
        step_s=Estimate(step * batch, _times(seconds.interval_50, batch), _times(seconds.interval_90, batch)),
        samples_per_s=rates,
        efficiency=single / step,
        terms=_terms(parts, step, batch),
    )


def _spread(times: Floats, step: float, population: Population) -> Estimate:
    """Intervals of the step: quantiles of the draws with a point's own noise, widened as held-out series ask."""
    noise = np.random.default_rng(1).standard_normal(times.size) * NOISE
    logs = np.log(times) + noise
    middle = float(np.median(logs))
    low90, low50, high50, high90 = (float(q) - middle for q in np.quantile(logs, [0.05, 0.25, 0.75, 0.95]))

    def bounds(low: float, high: float, scale: float) -> tuple[float, float]:
        return min(np.exp(middle + low * scale), step), max(np.exp(middle + high * scale), step)

    fifty, ninety = bounds(low50, high50, population.scale_50), bounds(low90, high90, population.scale_90)
    return Estimate(step, fifty, ninety)


def _times(interval: tuple[float, float], factor: float) -> tuple[float, float]:
    return interval[0] * factor, interval[1] * factor


def _terms(parts: dict[str, float], step: float, batch: float) -> dict[str, float]:
    """The curve's terms under the step's names; those beside compute are scaled so that all sum to the step."""
    compute = min(parts["compute"], step) * batch
    others = sum(value for name, value in parts.items() if name != "compute")
    scale = (step * batch - compute) / others if others > 0 else 0.0
    compute = compute if others > 0 else step * batch
    named = dict.fromkeys(TERMS, 0.0)
    named["forward"] = compute * FORWARD_SHARE
    named["backward"] = compute * (1 - FORWARD_SHARE)
    for name in ("fixed", "aggregate", "slowdown", "waiting"):
        named[name] = parts[name] * scale
    return named


def _advice(series: Series, largest: int) -> str:
    many = series.hosts > 1
    if series.hosts_at(largest) > 1 and not many.any():
        return f"measure 2 hosts ({2 * series.per_host:g} devices): no point of this series crosses a link yet"
    if series.num_points < 3:
        return f"measure {2 * series.devices[-1]:g} devices: two points cannot show how aggregation grows"
    if many.sum() == 1:
        return f"measure {2 * series.devices[-1]:g} devices: one count beyond a host cannot show how the link scales"
    return f"measure the largest count you can afford, at most {largest}: extrapolation is now the widest part"


def _basis(series: Series) -> tuple[str, ...]:
    counts = ", ".join(f"{count:g}" for count in series.devices)
    parameters = parameters_of(series.network)
    link, kind = link_kind(series.link), strategy_kind(series.how)
    known = f"{parameters / 1e6:.1f} M parameters" if parameters else "network not known: label only"
    rate = f"link of {link.bandwidth / 1e9:g} GB/s" if link.bandwidth else "rate of the link not known: label only"
    overlap = {True: "overlapped", False: "not overlapped", None: "overlap not known"}[kind.overlap]
    where = "parameter servers" if kind.servers else "collectives"
    return (f"measured at {counts} devices", f"{known}, {rate}", f"{where}, {overlap}", "prior of published campaigns")
