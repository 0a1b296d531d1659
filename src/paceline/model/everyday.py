"""Predictions in everyday units: tokens or images per second, use of the peak, time, money and energy of a run."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline import catalog
from paceline.cost.precision import numerics_on
from paceline.cost.roofline import input_unit, macs_of, peak_share
from paceline.errors import InputError
from paceline.model.prediction import Curve, Prediction
from paceline.model.question import Question
from paceline.spec.cluster import Device, LayerClass, place
from paceline.spec.network import Network

__all__ = ["PlannedRun", "everyday_curve", "everyday_of", "job_of"]

_PRICE = re.compile(r"\s*([$€£])?\s*(\d+(?:\.\d+)?)\s*([A-Za-z]{3}|[$€£])?\s*(?:/\s*(?:h|hr|hour))?\s*")
_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP"}


@dataclass(frozen=True)
class PlannedRun:
    """A training run as people count it."""

    samples: int | None = None
    """Samples of one epoch."""
    epochs: float = 1.0
    price: tuple[float, str] | None = None
    """Price of one device and hour, and its currency; by default the catalog's, in USD."""
    tokens: int | None = None
    """Tokens of one epoch, in place of its samples."""

    def samples_of(self, unit: str, each: int) -> int | None:
        """Samples of one epoch of a network whose samples have `each` of a unit."""
        if self.tokens is None:
            return self.samples
        if unit != "tokens":
            raise InputError(f"--tokens {self.tokens}: a sample is no text but one of {unit}", hint="give --samples N")
        return max(1, round(self.tokens / each))


def job_of(samples: int | None, epochs: float, price: str | None, tokens: int | None = None) -> PlannedRun:
    """The run that options describe; a price is a number with a currency, such as 2.50 EUR."""
    for name, given in (("samples", samples), ("tokens", tokens)):
        if given is not None and given < 1:
            raise InputError(f"--{name} {given}: expected at least 1")
    if samples is not None and tokens is not None:
        raise InputError(f"--samples {samples} and --tokens {tokens}: expected one of them")
    if not epochs > 0:
        raise InputError(f"--epochs {epochs}: expected more than 0")
    if samples is None and tokens is None and epochs != 1:
        raise InputError(f"--epochs {epochs:g}: the samples of an epoch are not known", hint="add --samples N")
    if price is None:
        return PlannedRun(samples, epochs, tokens=tokens)
    match = _PRICE.fullmatch(price)
    if match is None or (match.group(1) and match.group(3)):
        raise InputError(f"--price {price}: expected a price of one device and hour", hint="for example '2.50 USD/h'")
    sign = match.group(1) or match.group(3) or "USD"
    return PlannedRun(samples, epochs, (float(match.group(2)), _SIGNS.get(sign, sign.upper())), tokens=tokens)


def everyday_curve(curve: Curve, question: Question, job: PlannedRun) -> Curve:
    """The curve with everyday units at every number of devices."""
    return replace(curve, predictions=tuple(_with_units(one, question, job) for one in curve.predictions))


def _with_units(prediction: Prediction, question: Question, job: PlannedRun) -> Prediction:
    devices = [rank.device for rank in place(question.cluster, prediction.devices)]
    rate = prediction.samples_per_s
    known = everyday_of(question, devices, (rate.value, *rate.interval_90), job)
    hourly = known.get("price_per_h")
    return replace(prediction, everyday=known, cost=hourly and hourly / 3600 / rate.value * 1e6)


def everyday_of(
    question: Question, devices: Sequence[Device], rates: tuple[float, ...], job: PlannedRun
) -> dict[str, Any]:
    """Everyday units of a throughput (value, low, high) on devices; unknown units are absent."""
    network = _network(question)
    unit, each = input_unit(network)
    known: dict[str, Any] = {"unit": unit, "per_sample": each}
    known[f"{unit}_per_s"], known[f"{unit}_per_s_interval_90"] = rates[0] * each, [rate * each for rate in rates[1:]]
    mfu = _mfu(question, devices, rates[0])
    if mfu is not None:
        known["mfu"] = mfu
    watts = [device.power for device in devices if device.power is not None]
    if len(watts) == len(devices):
        known["power_w"] = sum(watts)
    hourly, currency = _hourly(devices, job)
    if hourly is not None:
        known |= {"price_per_h": hourly, "currency": currency}
    samples = job.samples_of(unit, each)
    if samples is not None:
        known |= _run(job, samples, rates[0], known)
    return known


def _run(job: PlannedRun, samples: int, rate: float, known: dict[str, Any]) -> dict[str, Any]:
    """Seconds, money and energy of an epoch and of the run."""
    spent: dict[str, Any] = {"samples": samples, "epochs": job.epochs}
    for name, count in (("epoch", 1.0), ("run", job.epochs)):
        hours = samples * count / rate / 3600
        spent[f"{name}_s"] = hours * 3600
        if "price_per_h" in known:
            spent[f"{name}_cost"] = hours * known["price_per_h"]
        if "power_w" in known:
            spent[f"{name}_kwh"] = hours * known["power_w"] / 1e3
    return spent


def _network(question: Question) -> Network | None:
    if question.network is not None:
        return question.network
    name = question.subject
    return catalog.network(name) if name in catalog.network_names() else None


def _macs(question: Question) -> dict[LayerClass, float] | None:
    """Multiply-adds of the network, or of a profile that has those of all its layers."""
    network = _network(question)
    if network is not None or question.profile is None:
        return macs_of(network) if network is not None else None
    found: defaultdict[LayerClass, float] = defaultdict(float)
    for layer in question.profile.layers:
        if layer.kind is None or layer.macs is None:
            return None
        found[layer.kind] += layer.macs
    return dict(found)


def _mfu(question: Question, devices: Sequence[Device], rate: float) -> float | None:
    """Share of the peak of all devices that the network's own multiply-adds need."""
    precision = catalog.resolve(question.framework, question.strategy).precision
    macs, processors = _macs(question), _processors(question, devices)
    share = peak_share(macs, processors, rate, precision)
    least = share and share > 1 and peak_share(macs, processors, rate, precision, fewest=True)
    if share and least and least > 1:
        raise InputError(
            f"{rate:,.1f} samples/s of {question.subject} are {share:.0%} of the peak of {len(devices)} x "
            f"{devices[0].name} ({numerics_on(devices[0], precision).meaning}), which no device can do",
            hint="state the --precision in which it was measured, and the device that the profile is of",
        )
    return share


def _processors(question: Question, devices: Sequence[Device]) -> Sequence[Device]:
    """Devices whose peaks add up: ranks that share the cores of a host have one peak together."""
    hosts = question.cluster.hosts
    if not all(host.cores and all(device.kind == "cpu" for device in host.devices) for host in hosts):
        return devices
    return devices[: len({rank.host for rank in place(question.cluster, len(devices))})]


def _hourly(devices: Sequence[Device], job: PlannedRun) -> tuple[float | None, str]:
    if job.price is not None:
        return job.price[0] * len(devices), job.price[1]
    prices = [device.price for device in devices if device.price is not None]
    return (sum(prices) if len(prices) == len(devices) else None), "USD"
