"""Conversion of quantities to text and back: seconds, bytes, bytes per second, flop per second, prices.

In memory every quantity is a float in SI units (s, B, B/s, flop/s). Text has a unit, and a unit of another
dimension is an error: "10 Gb/s" is 1.25e9 B/s, "10 GB/s" is 1e10 B/s, and neither is a time.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal

from paceline.errors import UnitError, nearest

__all__ = ["BANDWIDTH", "BYTES", "FLOPS", "POWER", "PRICE", "SECONDS", "Dimension", "format_count", "format_share"]

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_NUMBER = re.compile(r"\s*([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*")


@dataclass(frozen=True)
class Dimension:
    """A kind of quantity: its name, its units with factors to SI, and the units for printing."""

    name: str
    example: str
    units: dict[str, float]
    steps: tuple[tuple[str, float], ...]
    """Units for printing, smallest first."""

    def parse(self, given: object) -> float:
        """The value in SI units of text with a unit; a number without a unit is in SI units."""
        if isinstance(given, bool) or not isinstance(given, int | float | str):
            raise self._wrong(given)
        value = float(given) if isinstance(given, int | float) else self._parse_text(given)
        if not math.isfinite(value):
            raise self._wrong(given)
        return value

    def _parse_text(self, text: str) -> float:
        match = _NUMBER.fullmatch(text)
        if match is None:
            raise self._wrong(text)
        number, unit = match.groups()
        if unit not in self.units:
            raise self._wrong(text, unit)
        return _scale(number, self.units[unit])

    def _wrong(self, given: object, unit: str | None = None) -> UnitError:
        close = nearest(unit, self.units) if unit else None
        hint = f"did you mean {close!r}?" if close else f"units: {', '.join(unit for unit, _ in self.steps)}"
        return UnitError(given, expected=f"a {self.name} such as {self.example!r}", hint=hint)

    def format(self, value: float, digits: int = 3) -> str:
        """The value as text, with the largest unit in which it is at least one; far below the smallest unit it is 0."""
        unit, factor = self.steps[0]
        if abs(value) < factor * 0.5 * 10**-digits:
            return f"0 {unit}"
        for unit_, factor_ in self.steps:
            if abs(value) >= factor_ * (1 - 0.5 * 10**-digits):
                unit, factor = unit_, factor_
        return f"{_significant(value / factor, digits)} {unit}".strip()

    def exact(self, value: float) -> str:
        """The text with the shortest number that parses back to exactly this value."""
        units = {**dict(reversed(self.steps)), **self.units}
        scaled = [(value / factor, unit) for unit, factor in units.items() if unit and abs(value) >= factor]
        texts = [f"{number:.12g} {unit}" for number, unit in scaled if math.isfinite(number)]
        same = [text for text in texts if self.parse(text) == value]
        return min(same, key=lambda text: text.index(" "), default=f"{value!r} {self.base}")

    @property
    def base(self) -> str:
        """The unit whose factor is one."""
        return next(unit for unit, factor in self.units.items() if unit and factor == 1.0)


def _scale(number: str, factor: float) -> float:
    """The product rounded once, so that "60 us" is the float nearest to 60e-6."""
    value = float(number)
    if value == 0 or not math.isfinite(value):
        return abs(value)
    return float(Decimal(number) * Decimal(repr(factor)))


def _significant(value: float, digits: int) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{value:.{decimals}f}"


def _scaled(unit: str, factor: float, scales: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}{unit}": scale * factor for prefix, scale in scales.items()}


def _steps(units: dict[str, float], *names: str) -> tuple[tuple[str, float], ...]:
    return tuple((name, units[name]) for name in names)


_TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {**_scaled("B", 1.0, _DECIMAL), **_scaled("B", 1.0, _BINARY)}
_RATES = {
    **{f"{unit}/s": factor for unit, factor in _BYTES.items()},
    **{f"{unit}/s": factor / 8 for unit, factor in _scaled("b", 1.0, _DECIMAL).items()},
    **{f"{unit}/s": factor / 8 for unit, factor in _scaled("bit", 1.0, _DECIMAL).items()},
    **{f"{unit}ps": factor / 8 for unit, factor in _scaled("b", 1.0, _DECIMAL).items()},
}
_FLOPS = {**_scaled("flop/s", 1.0, _DECIMAL), **_scaled("FLOP/s", 1.0, _DECIMAL), **_scaled("FLOPS", 1.0, _DECIMAL)}
_PRICES = {"USD/h": 1.0, "$/h": 1.0}
_POWERS = {"W": 1.0, "kW": 1e3}

SECONDS = Dimension("time", "1.5 ms", _TIMES, _steps(_TIMES, "ns", "us", "ms", "s", "min", "h"))
BYTES = Dimension("size", "25 MiB", _BYTES, _steps(_BYTES, "B", "KiB", "MiB", "GiB", "TiB"))
BANDWIDTH = Dimension("bandwidth", "25 Gb/s", _RATES, _steps(_RATES, "B/s", "kB/s", "MB/s", "GB/s", "TB/s"))
FLOPS = Dimension("compute rate", "15.7 Tflop/s", _FLOPS, _steps(_FLOPS, "flop/s", "Gflop/s", "Tflop/s", "Pflop/s"))
POWER = Dimension("power", "400 W", _POWERS, _steps(_POWERS, "W", "kW"))
PRICE = Dimension("price", "3.06 USD/h", _PRICES, _steps(_PRICES, "USD/h"))


def format_share(value: float) -> str:
    """A fraction as percent."""
    return f"{100 * value:.1f} %"


def format_count(count: int, noun: str) -> str:
    """A number of things: `1 rank`, `4 ranks`, `2 launches`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('ch') else 's'}"
