"""Predictions: named terms that sum to the step time, each prediction with an interval, and properties of a curve.

step = io + h2d + forward + backward + aggregate + update + fixed + slowdown + waiting

`aggregate` is the exposed part, `fixed` the fixed cost of distributed training, `slowdown` the slowdown of compute by
concurrent communication, `waiting` the time of waiting for the slowest rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.units import BYTES, SECONDS

__all__ = ["TERMS", "Curve", "Estimate", "Prediction", "doublings", "estimate", "knee_of", "reasons"]

TERMS = ("io", "h2d", "forward", "backward", "aggregate", "update", "fixed", "slowdown", "waiting")
"""The named terms of a step, in order; they sum to it."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A predicted number with its 50 % and 90 % intervals."""

    value: float
    interval_50: tuple[float, float]
    interval_90: tuple[float, float]

    @property
    def half_width(self) -> float:
        """Half the 90 % interval as a share of the value."""
        low, high = self.interval_90
        return (high - low) / 2 / self.value if self.value else float("inf")


def estimate(value: float, draws: Floats) -> Estimate:
    """The value with intervals from draws; an interval always holds its value."""
    low90, low50, high50, high90 = (float(q) for q in np.quantile(draws, [0.05, 0.25, 0.75, 0.95]))
    return Estimate(value, (min(low50, value), max(high50, value)), (min(low90, value), max(high90, value)))


@dataclass(frozen=True)
class Prediction:
    """One number of devices: how long a step takes, how fast that is, and why."""

    devices: int
    batch_per_device: float
    step_s: Estimate
    samples_per_s: Estimate
    efficiency: float
    """Throughput per device, relative to one device; of measured points, to their smallest count."""
    terms: dict[str, float]
    """Seconds of each term; they sum to the step."""
    speed_up: Estimate | None = None
    """Throughput relative to one device; none where it was not drawn together with that of one device."""
    cost: float | None = None
    """Price of a million samples, in the currency of the devices' price per hour."""
    everyday: dict[str, Any] = field(default_factory=dict)
    """The prediction in everyday units: see `everyday.everyday_of`."""
    supported: bool = True
    """False beyond the distance to which intervals were validated."""

    @property
    def dominant(self) -> str:
        """The largest part of the step: a term, or compute, which is forward and backward together."""
        parts = self._parts
        return max(parts, key=lambda name: parts[name])

    @property
    def beside_compute(self) -> tuple[str, float]:
        """The largest term that is not compute, and its share of the step: the one to work on first."""
        parts = {name: seconds for name, seconds in self._parts.items() if name != "compute"}
        name = max(parts, key=lambda key: parts[key])
        return name, parts[name] / self.step_s.value

    @property
    def _parts(self) -> dict[str, float]:
        rest = {name: seconds for name, seconds in self.terms.items() if name not in ("forward", "backward")}
        return {"compute": self.terms["forward"] + self.terms["backward"], **rest}

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "devices": self.devices,
            "batch_per_device": self.batch_per_device,
            "step_s": self.step_s.value,
            "step_s_interval_50": list(self.step_s.interval_50),
            "step_s_interval_90": list(self.step_s.interval_90),
            "samples_per_s": self.samples_per_s.value,
            "interval_50": list(self.samples_per_s.interval_50),
            "interval_90": list(self.samples_per_s.interval_90),
            "efficiency": self.efficiency,
            "terms": self.terms,
            "dominant": self.dominant,
            "beside_compute": self.beside_compute[0],
            "cost": self.cost,
            "support": "supported" if self.supported else "unsupported",
            **self.everyday,
        }


@dataclass(frozen=True)
class Curve:
    """Predictions over numbers of devices, and properties of the whole curve."""

    label: str
    predictions: tuple[Prediction, ...]
    knee: int | None
    """Last doubling of devices before the next one gains less than `knee_gain`, independent of the requested counts;
    None if it was not reached."""
    knee_gain: float
    advice: str
    """The one measurement that would narrow the widest interval most."""
    basis: tuple[str, ...] = field(default=())
    """The sources of the prediction, one line each."""
    notes: tuple[str, ...] = field(default=())
    """How the ranks of each number of devices use the cores of a host, where they compute on them."""
    detail: dict[str, Any] = field(default_factory=dict)
    """Further facts of this kind of prediction, for JSON."""
    measured: tuple[tuple[int, float], ...] = ()
    """Devices and samples per second of the measured points that the curve extrapolates, if any."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "label": self.label,
            "predictions": [prediction.as_dict() for prediction in self.predictions],
            "knee": self.knee,
            "knee_gain": self.knee_gain,
            "advice": self.advice,
            "basis": list(self.basis),
            "notes": list(self.notes),
            **self.detail,
        }


def doublings(first: int, last: int) -> tuple[int, ...]:
    """`first`, twice it, and so on, up to `last`."""
    return tuple(first * 2**power for power in range(64) if first * 2**power <= last)


def knee_of(counts: Sequence[int], throughput: Sequence[float], *, gain: float) -> int | None:
    """The last of successive doublings after which the next gains less than `gain` (0.5: half of the added devices)."""
    for count, now, then in zip(counts, throughput, throughput[1:], strict=False):
        if then / now - 1.0 < gain:
            return count
    return None


_AGGREGATION = {
    "allreduce": "averages gradients by all-reduce",
    "parameter_server": "sends gradients to parameter servers and fetches weights from them",
    "sharded": "shards weights: gathers them before use and scatters gradients",
    "none": "exchanges nothing",
}
_SHARDED = {
    1: "shards the state of the optimizer: every rank updates its part, then all gather the weights",
    2: "shards gradients and the state of the optimizer: every rank updates its part, then all gather the weights",
}
"""Texts by ZeRO stage; for stage 3, and without a stage, by the aggregation."""
_SIMPLE = {
    "overlap": ("exchanges after the backward pass", "exchanges while backward still runs"),
    "input_overlap": ("reads input between steps", "reads the next batch while this one trains"),
}
"""Texts for False and True of a field."""


def reasons(before: Curve, after: Curve) -> list[str]:
    """The differences of `after` from `before`, most important first, then the terms that change most."""
    old, new = before.detail.get("policy", {}), after.detail.get("policy", {})
    said = [*_otherwise(old, new), *_moved(before, after)]
    return said or ["no term of the step changes by 1 %"]


def _otherwise(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    said = []
    if old.get("aggregation") != new.get("aggregation"):
        said.append(_SHARDED.get(new.get("shard_stage") or 0) or _AGGREGATION[new["aggregation"]])
    for name, (off, on) in _SIMPLE.items():
        if old.get(name) != new.get(name):
            said.append(on if new.get(name) else off)
    if _fused(old) != _fused(new):
        said.append(f"{_fused(new)} instead of {_fused(old)}")
    if old.get("order") != new.get("order") and new.get("order") == "priority":
        said.append("sends gradients of the first layers first, so that the next forward can begin")
    if old.get("synchrony") != new.get("synchrony"):
        said.append("ranks do not wait for each other" if new["synchrony"] == "asynchronous" else "ranks wait")
    if old.get("compression") != new.get("compression"):
        said.append(f"compression {new['compression']}")
    return said


def _fused(policy: dict[str, Any]) -> str:
    if policy.get("bucket"):
        return f"buckets of {BYTES.format(policy['bucket'])}"
    return "everything at once" if policy.get("fusion") == "all" else f"one exchange per {policy.get('fusion')}"


def _moved(before: Curve, after: Curve) -> list[str]:
    """The terms that change by more than a hundredth of the step, at the largest number of devices."""
    old, new = before.predictions[-1], after.predictions[-1]
    change = {name: new.terms[name] - old.terms[name] for name in new.terms}
    large = [name for name in change if abs(change[name]) > 0.01 * old.step_s.value]
    large.sort(key=lambda name: -abs(change[name]))
    return [f"{name} {'+' if change[name] > 0 else '-'}{SECONDS.format(abs(change[name]))}" for name in large[:3]]
