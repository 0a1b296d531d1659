"""How predictions are judged, by hand: errors, intervals, scores, supported distances, rows of the table."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline import catalog
from paceline.model.compute import roofline
from paceline.model.measured.points import Series
from paceline.model.prediction import Estimate
from paceline.model.validation.campaigns import COLUMNS, _shipped, published_series, read_campaigns
from paceline.model.validation.gpt import _joined, _judged
from paceline.model.validation.origins import Task, _supported
from paceline.model.validation.report import (
    Row,
    _default_precision,
    _gpt_row,
    _roofline_rate,
    _roofline_row,
    _rows,
    failures,
)

COUNTS = np.array([1.0, 2.0, 4.0, 8.0])
SERIES = Series("ResNet-50, pytorch, V100, fp32", "ResNet-50", "pytorch ddp", "Tesla V100", "10GbE", 8.0, COUNTS,
                np.ones(4), np.array([100.0, 200.0, 400.0, 800.0]), np.zeros(4), np.full(4, 64.0), "one")  # fmt: skip


def task(*, off: float = 0.0, origin: int = 2, target: int = 3, situation: int = 0, doublings: float = 2.0) -> Task:
    """A prediction that is too fast by `off` of the logarithm; one sample takes a device 10 ms."""
    doubt = SimpleNamespace(situation=situation, doublings=doublings)
    forecast: Any = SimpleNamespace(centre=math.log(0.01) - off, doubt=doubt)
    laws = {"power law": math.log(0.005), "straight line": math.log(0.01), "Amdahl": math.log(0.02)}
    return Task(SERIES, origin, target, forecast, laws, {0.5: (-0.05, 0.1), 0.9: (-0.2, 0.4)})


def test_a_prediction_is_judged_by_its_throughput() -> None:
    fast = task(off=math.log(1.25))
    assert fast.error() == pytest.approx(0.25)
    assert [fast.error(law) for law in ("power law", "straight line", "Amdahl")] == pytest.approx([1.0, 0.0, -0.5])
    assert (fast.factor, task(target=2).factor, task(origin=3).factor) == (4, 2, 2)
    assert [task(origin=origin, target=target).largest for origin, target in ((3, 3), (2, 3), (2, 2))] == [
        True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("off", "half", "whole", "score"),
    [
        (-0.09, True, True, 0.6), (-0.11, False, True, 0.6), (0.04, True, True, 0.6), (0.06, False, True, 0.6),
        (0.19, False, True, 0.6), (0.3, False, False, 0.6 + 20 * 0.1), (-0.39, False, True, 0.6),
        (-0.5, False, False, 0.6 + 20 * 0.1),
    ],
)  # fmt: skip
def test_an_interval_holds_or_pays_for_what_it_misses(off: float, half: bool, whole: bool, score: float) -> None:
    # Bounds are of measured over predicted: too fast by 0.3 is below the lower end by 0.1.
    one = task(off=off)
    assert (one.held(0.5), one.held(0.9)) == (half, whole)
    assert one.score() == pytest.approx(score)


def test_a_distance_is_supported_while_three_of_four_held() -> None:
    far = [task(off=0.5 if n == 0 else 0.0, doublings=3.0) for n in range(4)]
    near = [task(doublings=1.0) for _ in range(8)]
    assert _supported([*near, *far]).tolist() == [3.0, 1.0, 1.0, 1.0, 1.0, 4.0]
    missed = [replace(far[0]), *far]
    assert _supported([*near, *missed]).tolist()[0] == 1.0
    assert _supported([*near, *far[1:]]).tolist()[0] == 1.0, "three are too few"
    shared = [task(situation=n % 3 + 1, doublings=2.0) for n in range(4)]
    assert _supported(shared).tolist() == [1.0, 2.0, 2.0, 2.0, 1.0, 4.0]
    early = [task(off=0.5, doublings=1.0) for _ in range(8)]
    assert _supported([*early, *(task(doublings=3.0) for _ in range(4))]).tolist()[0] == 1.0, "missed on the way"
    farthest = [task(doublings=40.0) for _ in range(4)]
    assert _supported(farthest).tolist()[0] == 12.0


def test_rows_of_the_table() -> None:
    tasks = [task(off=math.log(1.1)), task(off=math.log(0.8)), task(origin=3, off=math.log(1.5), situation=4)]
    rows = {row.name: row for row in _rows(tasks)}
    assert [row.points for row in rows.values()] == [2, 1, 1, 2, 3, 1, 1]
    everything = rows["all origins"]
    assert (everything.mean_error, everything.median_error, everything.bias) == pytest.approx((0.8 / 3, 0.2, 0.1))
    assert (everything.worst_error, everything.worst) == (pytest.approx(0.5), f"{SERIES.label} at 8")
    assert everything.laws == pytest.approx({"power law": 1.0, "straight line": 0.0, "Amdahl": 0.5})
    assert (everything.covered_50, everything.covered_90) == (0.0, pytest.approx(2 / 3))
    assert (rows["x2"].points, rows["x4"].points) == (1, 2)
    assert rows["all campaigns, batch changes"].points == rows["one"].points == 1


@pytest.mark.parametrize(
    ("changes", "bad"),
    [
        ({}, True), ({"covered_90": 0.85}, False), ({"covered_90": 0.95}, False), ({"covered_90": 0.96}, True),
        ({"points": 29}, False), ({"group": "other"}, False), ({"covered_90": None}, False),
    ],
)  # fmt: skip
def test_a_situation_fails_where_its_interval_holds_too_few_or_too_many(changes: dict[str, Any], bad: bool) -> None:
    row = Row("situation", "s", 30, 0.1, 0.1, 0.0, 0.5, 0.84, 1.0, {}, 0.3, "w")
    assert bool(failures([replace(row, **changes)])) is bad


def test_iterations_are_judged_as_predicted_over_measured() -> None:
    made = [Estimate(2.0, (1.9, 2.1), (1.0, 3.0)), Estimate(6.0, (5.5, 6.5), (5.0, 7.0))]
    judged = _judged(made, np.array([1.0, 5.5]))
    assert judged.ratio == pytest.approx([2.0, 6 / 5.5])
    assert (judged.in_50.tolist(), judged.in_90.tolist()) == ([False, True], [True, True])
    row = _gpt_row("g", _joined([judged, _judged(made[:1], np.array([4.0]))]))
    assert (row.points, row.worst_error, row.covered_50, row.covered_90) == (3, 1.0, pytest.approx(1 / 3), 2 / 3)
    assert (row.mean_error, row.median_error, row.bias) == pytest.approx(((1.0 + 1 / 11 + 0.5) / 3, 0.5, 1 / 11))


def test_the_roofline_is_checked_where_device_network_batch_and_precision_are_known() -> None:
    work = roofline(catalog.network("resnet50"), catalog.device("v100-sxm2"), 64)
    rate = 64 / (work.compute + work.update)
    assert _roofline_rate(SERIES) == pytest.approx(rate)
    unknown = {"device": "abacus", "network": "MyNet", "batches": np.full(4, np.nan), "devices": 2 * COUNTS,
               "label": "ResNet-50, amp"}  # fmt: skip
    for name, value in unknown.items():
        assert _roofline_rate(replace(SERIES, **{name: value})) is None
    ways = [_default_precision(replace(SERIES, how=how)) for how in ("PyTorch ddp", "abacus x")]
    assert ways == ["tf32_convolutions", "float32"]
    slower = replace(SERIES, label="b, fp32", samples_per_s=SERIES.samples_per_s * rate / 50)
    other = replace(SERIES, label="c, fp32", samples_per_s=SERIES.samples_per_s * rate / 200)
    row = _roofline_row([slower, other, replace(SERIES, device="abacus")])
    # Half and twice as fast as measured.
    assert (row.points, row.mean_error, row.bias, row.worst_error, row.worst) == (
        2, pytest.approx(0.75), pytest.approx(0.25), pytest.approx(1.0), "c, fp32",
    )  # fmt: skip


def test_a_shipped_series_and_one_of_a_file(tmp_path: Path) -> None:
    entry = {"framework": "tf", "strategy": "ps", "network": "vgg16", "device": "V100", "link": "10GbE", "batch": 32,
             "devices": [1, 8, 16], "hosts": [1, 2, 2], "samples_per_s": [10, 70, 120],
             "spread": [1, 7, 6]}  # fmt: skip
    one = _shipped("c", {**entry, "precision": "fp32"})
    assert (one.label, one.how, one.per_host, one.campaign) == (
        "vgg16, tf ps, V100, 10GbE, fp32, batch 32",
        "tf ps",
        8,
        "c",
    )
    assert (one.spread.tolist(), one.batches.tolist()) == ([0.1, 0.1, 0.05], [32.0] * 3)
    assert _shipped("c", {**entry, "devices_per_host": 4}).per_host == 4.0
    units = {"img/s": 100.0, "images/s per gpu": 25.0, "hours": 3.0}
    path = tmp_path / "points.csv"
    rows = [
        {"source_id": "s", "framework": "tf", "comm": "ps", "model": "vgg16", "hardware": "4x V100", "nodes": 2,
         "interconnect": "10GbE", "devices": 4, "batch_per_device": 32, "value": value, "unit": unit,
         "precision": str(n)}
        for n, (unit, value) in enumerate(units.items())
    ]  # fmt: skip
    names = list(dict.fromkeys([*COLUMNS, *rows[0]]))
    lines = [",".join(str(row.get(name, "")) for name in names) for row in rows]
    path.write_text("\n".join([",".join(names), *lines]) + "\n")
    found = read_campaigns(path)
    assert [series.samples_per_s.tolist() for series in found] == [[100.0], [100.0]]
    assert {(series.device, series.per_host) for series in found} == {("V100", 2.0)}


def test_two_measurements_of_one_device_are_two_series():
    """The source kept three devices of its first measurement when one, two, four and eight were measured again."""
    cards = [one for one in published_series() if one.campaign == "lambda-tf" and one.device == "RTX 3090"]
    assert len(cards) == 20
    assert {tuple(one.devices) for one in cards} == {(1, 2, 3), (1, 2, 4, 8)}
    assert len({one.label for one in cards}) == 20
    assert all(one.batch for one in cards)
