"""Intervals called 95 % hold 95 %: a short form of benchmarks/interval_coverage.py with limits of chance."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from scipy.stats import binom, norm

from paceline.measurements import summary

TRIALS = 400
MORE_TRIALS = 2000
SLOW = ("steps vary", "vary by 0.5%", "vary by 3.0%")
"""Lines that take long, and are left to the benchmark."""


def limits(trials: int) -> tuple[float, float]:
    """Shares that a true coverage of 94 to 96.5 % leaves once in a thousand."""
    return binom.ppf(1e-3, trials, 0.94) / trials, binom.ppf(1 - 1e-3, trials, 0.965) / trials


@pytest.fixture(scope="module")
def benchmark_module() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        sys.modules.pop("interval_coverage", None)
        yield importlib.import_module("interval_coverage")


@pytest.fixture(scope="module")
def lines(benchmark_module: ModuleType) -> dict[str, Any]:
    judged = [line for line in benchmark_module.lines(pool=1) if line.judged]
    return {line.name: line for line in judged if not any(word in line.name for word in SLOW)}


@pytest.mark.parametrize("count", [3, 5, 10])
def test_every_kind_of_launches_is_covered(benchmark_module: ModuleType, lines: dict[str, Any], count: int) -> None:
    held = {name: benchmark_module.coverage(line, count, TRIALS) for name, line in lines.items()}
    assert {"normal", "slow outliers", "drift", "stopping, slow outliers", "ratio", "ratio, rounds"} <= set(held)
    least, most = limits(TRIALS)
    assert {name: share for name, share in held.items() if not least <= share <= most} == {}


@pytest.mark.parametrize("count", [3, 5, 10])
def test_a_normal_quantile_is_noticed(
    benchmark_module: ModuleType, lines: dict[str, Any], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    least, most = limits(MORE_TRIALS)
    assert least <= benchmark_module.coverage(lines["normal"], count, MORE_TRIALS) <= most
    monkeypatch.setattr(summary, "_quantile", lambda confidence, freedom: float(norm.ppf(0.5 + confidence / 2)))
    assert benchmark_module.coverage(lines["normal"], count, MORE_TRIALS) < least


def test_optional_stopping_without_the_pilot_is_noticed(
    benchmark_module: ModuleType, lines: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = summary._scale
    monkeypatch.setattr(summary, "_scale", lambda values, pilot: plain(values, None))
    stopped = benchmark_module.coverage(lines["stopping, launches vary by 2.0%"], 3, MORE_TRIALS)
    assert stopped < limits(MORE_TRIALS)[0]


def test_launches_that_begin_too_slow_are_not_biased(benchmark_module: ModuleType) -> None:
    rates = [benchmark_module.launched(benchmark_module.np.random.default_rng(seed), 0.01) for seed in range(12)]
    assert sum(rates) / len(rates) == pytest.approx(1.0, abs=0.002)
