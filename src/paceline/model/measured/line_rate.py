"""Lower bound of aggregation between hosts: the bytes of the gradients at the line rate of a host's link.

Whatever the algorithm, an all-reduce over H hosts moves 2 (H-1)/H times the bytes through the link of each host, and so
do servers that stand on all hosts. With the curve's factor 2 (P-1)/P for a ring, two hosts of m devices have

    X >= m/(2m-1) bytes / line rate / step      step: seconds that one device computes between two aggregations

The bound holds where the label states the rate in figures and the parameters are known.
"""

from __future__ import annotations

import math
import re
from functools import cache

import numpy as np

from paceline.model.measured.names import normal, parameters_of
from paceline.model.measured.points import Series

__all__ = ["is_text", "least_log_seconds", "least_network", "line_rate", "rate_of", "step_of"]

_FIGURES = re.compile(r"(\d+(?:\.\d+)?)\s*([GgTt])(?:(B(?:/s|ytes?))|[bB]|igab|erab|[eE]\b|ig?\b|$|\s)")
_TIMES = re.compile(r"(\d+)\s*x(?![a-z0-9]*[a-z]\d)", re.IGNORECASE)
_EACH = re.compile(r"per (?:gpu|device|accelerator|card|rank)", re.IGNORECASE)
_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s?([mb])\b", re.IGNORECASE)
_FEWER_BYTES = re.compile(
    r"lora|adapter|compress|powersgd|sparse|top-?k|dgc|quanti|1-?bit|sign-?sgd|accum|pipeline|megatron|expert|moe|"
    r"model.parallel|tensor.parallel|local.sgd|diloco|3d|async",
    re.IGNORECASE,
)
"""Strategies that send less than every gradient after every step of every device."""
TEXT = ("bert", "gpt", "transformer", "lstm", "gnmt")
TEXT_LENGTH = 128
"""Tokens of a short text."""
MOST_FLOPS = 2e15
"""More than one device does."""
FASTER = 1.05
"""A measured point may be this much faster than the bound: noise, and a rate that is rounded."""
_SINGLE = re.compile(r"fp32|float32|tf32|single", re.IGNORECASE)


@cache
def line_rate(link: str, per_host: float) -> float | None:
    """Bytes per second that a host's link carries at most; the largest that the label allows, none without figures."""
    rates = [float(number) * {"g": 1e9, "t": 1e12}[unit.lower()] / (1 if octets else 8)
             for number, unit, octets in _FIGURES.findall(link)]  # fmt: skip
    if not rates:
        return None
    times = max((float(number) for number in _TIMES.findall(link)), default=1.0)
    return max(rates) * max(times, 1.0) * (per_host if _EACH.search(link) else 1.0)


@cache
def is_text(network: str) -> bool:
    """Whether a sample of this network is a text of many tokens."""
    return any(word in normal(network) for word in TEXT) or bool(_SIZE.search(network))


def rate_of(series: Series, parameters: float) -> float | None:
    """Samples per second of one device; none where they are tokens, or more than any device computes."""
    rate = float(series.samples_per_s[0] / series.devices[0])
    length = TEXT_LENGTH if is_text(series.network) else 1
    return None if series.in_tokens or 6 * parameters * rate * length >= MOST_FLOPS else rate


def step_of(series: Series, parameters: float) -> float | None:
    """Seconds that one device computes between two aggregations; None if the batch or its unit is not known.

    A rate above that of any device counts tokens or has a wrong unit, so the length of a step is not known.
    """
    rate = rate_of(series, parameters)
    return None if series.batch is None or rate is None else series.batch / rate


@cache
def _parameters(network: str) -> float | None:
    """Number of parameters, by the network's name, or as stated in the name: `GPT 498M`, `llama-7b`."""
    known = parameters_of(network)
    if known is not None:
        return known
    sizes = [float(number) * {"m": 1e6, "b": 1e9}[unit.lower()] for number, unit in _SIZE.findall(network)]
    return min(sizes, default=None)


def least_network(series: Series) -> float:
    """Logarithm of the least X of the curve; minus infinity where labels do not tell it."""
    least, inside = _least(series), series.per_host
    return math.log(inside / (2 * inside - 1) * least[0] / least[1]) if least else -math.inf


def least_log_seconds(series: Series, count: float, batch: float) -> float:
    """Logarithm of seconds per sample and device below which no algorithm aggregates over a host's link."""
    hosts, least = series.hosts_at(count), _least(series)
    return math.log(2 * (hosts - 1) / hosts * least[0] / batch) if least and hosts > 1 else -math.inf


@cache
def _sends_less(labels: str) -> bool:
    return bool(_FEWER_BYTES.search(labels))


@cache
def _bytes_each(precision: str) -> int:
    return 4 if _SINGLE.search(precision) else 2


def _least(series: Series) -> tuple[float, float] | None:
    """Seconds that all gradients take once over the link of a host, and of a step; none where labels do not tell.

    None either where a measured point is faster: its labels do not mean what they say.
    """
    rate, parameters = line_rate(series.link, series.per_host), _parameters(series.network)
    step = step_of(series, parameters) if parameters else None
    if rate is None or parameters is None or step is None:
        return None
    if _sends_less(f"{series.network} {series.how} {series.label}"):
        return None
    seconds = parameters * _bytes_each(series.precision) / rate
    least = 2 * (series.hosts - 1) / series.hosts * seconds / series.batches
    return None if (least > FASTER * np.exp(series.log_seconds)).any() else (seconds, step)
