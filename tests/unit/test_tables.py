"""Every number of every table by hand: the right quantity in its column, unit, sign and order."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.explain.cases.breakdown import Breakdown, Part, RankPhases, TracedLayer
from paceline.explain.cases.step import WhatIf
from paceline.explain.cases.stragglers import Straggler
from paceline.explain.gap import Bar, Gap
from paceline.explain.predicted import Residual, TermResidual
from paceline.measurements.run import PHASES, Failure
from paceline.measurements.summary import Interval
from paceline.report import tables
from paceline.report.tables import Table
from paceline.report.terminal.predictions import _checked
from paceline.report.words import gain_words, over_peak_words, predicted_words, tried_words
from tests.unit.test_store import make_run

SECOND = Interval(0.2, 0.18, 0.22)


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def result(**changes: Any) -> Any:
    known = {
        "run": SimpleNamespace(label="case", case_id="id", ranks=4),
        "throughput": Interval(1234.56, 1172.832, 1296.288), "step_s": SECOND, "speedup": Interval(3.456, 3.0, 4.0),
        "base_ranks": 1, "efficiency": 0.864, "num_counted": 3, "num_launches": 5, "usage": None, "closes": True,
        "shares": dict(zip((*PHASES, "other"), (0.1, 0.0, 0.2, 0.3, 0.25, 0.05, 0.1), strict=True)),
        "instrument_overhead": -0.0123,
    }  # fmt: skip
    return SimpleNamespace(**{**known, **changes})


def test_results_show_the_launches_that_count_and_the_base_of_the_speed_up() -> None:
    base = result(run=SimpleNamespace(label="base", case_id="b", ranks=1), speedup=Interval(1, 1, 1), efficiency=1.0)
    none = result(throughput=None)
    table = tables.results_table([base, result(), none])
    assert table.columns == ("case", ">samples/s", ">95 %", ">step", ">speed-up", ">efficiency", ">launches")
    assert texts(table) == [
        ["base", "1,234.6", "± 5.0 %", "200 ms", "base (1)", "100.0 %", "3"],
        ["case", "1,234.6", "± 5.0 %", "200 ms", "3.46 x", "86.4 %", "3"],
    ]
    assert [cell.value for cell in table.rows[1]] == [None, 1234.56, None, 0.2, 3.456, 0.864, None]


def test_phases_are_shares_of_the_step_and_a_remainder_is_marked() -> None:
    table = tables.phase_table([result(), result(closes=False, instrument_overhead=None)])
    assert texts(table) == [
        ["case", "10.0 %", "0.0 %", "20.0 %", "30.0 %", "25.0 %", "5.0 %", "10.0 %", "-1.2 %"],
        ["case *", "10.0 %", "0.0 %", "20.0 %", "30.0 %", "25.0 %", "5.0 %", "10.0 %", ""],
    ]
    assert tables.NOT_CLOSED in table.title
    assert tables.NOT_CLOSED not in tables.phase_table([result()]).title


def test_the_newest_failure_of_a_case_is_shown_with_their_number() -> None:
    def failed(case: str, launch: int, message: str) -> Any:
        failure = Failure(phase="measure", reason="crash", message=message)
        return make_run(f"demo-1-{case}-00{launch}", case_id=case, launch=launch, outcome="failed", failure=failure)

    runs = [
        failed("a", 0, "first"),
        failed("a", 1, "second"),
        make_run("demo-1-a-002", case_id="a"),
        failed("b", 0, "x"),
    ]
    assert [row[1:] for row in texts(tables.failure_table(runs))] == [
        ["measure: crash", "second (2 launches)"], ["measure: crash", "x (1 launch)"],
    ]  # fmt: skip


def breakdown(**changes: Any) -> Breakdown:
    names = ("io", "h2d", "forward", "backward", "aggregate", "update", "other")
    seconds = (0.0, 0.0, 0.06, 0.1, 0.04, 0.0, 0.0)
    parts = tuple(Part(name, each, each / 0.2, SECOND) for name, each in zip(names, seconds, strict=True))
    ranks = (RankPhases(1, "node", dict(zip(names, seconds, strict=True)), 0.03),)
    layers = (TracedLayer("conv", 0.001, 0.002, 4096), TracedLayer("relu", 0.003, 0.004, 0))
    return replace(Breakdown("id", "case", "net", SECOND, parts, 0.025, "timers", ranks, layers), **changes)


def test_a_breakdown_has_shares_with_seconds_and_what_was_hidden() -> None:
    table = tables.breakdown_table([breakdown()])
    assert table.columns == ("case", ">step", ">forward", ">backward", ">exposed aggregate", ">hidden aggregate")
    assert texts(table) == [["case", "200 ms", "30.0 %", "50.0 %", "20.0 %", "25.0 ms"]]
    cells = table.rows[0][2:]
    assert [(cell.value, cell.below) for cell in cells] == [
        (0.06, "60.0 ms"), (0.1, "100 ms"), (0.04, "40.0 ms"), (0.025, "framework's timers"),
    ]  # fmt: skip
    assert texts(tables.breakdown_table([breakdown(hidden_s=None, hidden_source=None)]))[0][-1] == ""
    assert texts(tables.rank_table([breakdown()])) == [["case", "1", "node", "60.0 ms", "100 ms", "40.0 ms", "30.0 ms"]]
    assert texts(tables.layer_table(breakdown())) == [
        ["conv", "1.00 ms", "2.00 ms", "4.00 KiB"], ["relu", "3.00 ms", "4.00 ms", ""],
    ]  # fmt: skip


def test_bars_of_a_gap_have_signs_and_sum_to_it() -> None:
    tried = Bar("overlap", -0.005, "hidden", measured_s=Interval(0.0012, 0.001, 0.0014), tried="slower side changed")
    gap = Gap("slow", "fast", "s", "f", Interval(0.2, 0.2, 0.2), Interval(0.17, 0.17, 0.17),
              (Bar("kernels", 0.035, "forward", Interval(0.035, 0.03, 0.04)), tried))  # fmt: skip
    assert texts(tables.gap_table(gap)) == [
        ["kernels", "+35.00", "30.00 to 40.00", "forward"],
        ["overlap", "-5.00", "", "hidden; tried, slower side changed: +1.200 ms (+1.000 to +1.400)"],
        ["all: the measured gap", "+30.00", "", ""],
    ]
    assert "not to be trusted: why" in tables.gap_table(replace(gap, untrusted="why")).title
    assert tried_words(Bar("link", 0.1, "x", tried="refused")) == "refused"


def test_stragglers_what_ifs_and_residuals_by_column() -> None:
    slow = Straggler(3, "node", "backward", "transient", 1.25, 0.4, Interval(0.02, 0.01, 0.03), 8640.0)
    assert texts(tables.straggler_table([("case", slow)])) == [
        ["case", "3", "node", "backward", "transient", "1.25 x", "40.0 %", "20.0 ms", "2.40 h"]
    ]
    what = [WhatIf("faster", 0.15, 0.05), WhatIf("slower", 0.21, -0.01)]
    assert texts(tables.what_if_table("case", what)) == [
        ["faster", "150.00", "+50.00"], ["slower", "210.00", "-10.00"],
    ]  # fmt: skip
    terms = (TermResidual("io", 0.0, 0.0), TermResidual("forward", 0.06, 0.05), TermResidual("backward", 0.1, 0.13))
    residual = Residual("case", 2, 0.2, 0.19, (0.15, 0.25), terms, "catalog")
    table = tables.residual_table([residual])
    assert table.columns[4:] == (">forward, ms", ">backward, ms")
    assert texts(table) == [["case", "200 ms", "190 ms", "150 ms to 250 ms", "+10.00", "-30.00"]]


def test_a_ranking_says_who_wins_only_if_that_is_shown() -> None:
    def ranking(winner: bool) -> Any:
        places = (SimpleNamespace(name="a", throughput=Interval(300.0, 290, 310)),
                  SimpleNamespace(name="b", throughput=Interval(200.0, 190, 210)))  # fmt: skip
        return SimpleNamespace(label="net", lead=Interval(1.5, 1.4, 1.6), places=places,
                               winner=places[0] if winner else None, verdict="no difference shown")  # fmt: skip

    assert texts(tables.ranking_table([ranking(True), ranking(False)])) == [
        ["net", "a wins", "1.50 x", "a 300.0 > b 200.0"], ["net", "no difference shown", "1.50 x", "a 300.0 > b 200.0"],
    ]  # fmt: skip


def test_a_gain_has_its_interval_and_one_launch_none() -> None:
    assert gain_words(Interval(0.2, 0.1, 0.3)) == "20.0 % of the time per sample (10.0 % to 30.0 %)"
    assert gain_words(Interval(0.2, float("-inf"), float("inf"))).endswith("(one launch: no interval)")
    finding: Any = SimpleNamespace(unknown="", first=False, gain=Interval(0.01, 0.0, 0.02))
    assert predicted_words(finding) == gain_words(finding.gain)
    finding.first = True
    assert predicted_words(finding).startswith("about none (0.0 % to 2.0 %)")
    finding.unknown = "why"
    assert predicted_words(finding) == "unknown, why"


@pytest.mark.parametrize(("mfu", "said"), [(None, False), (0.9, False), (1.0, False), (1.01, True)])
def test_more_than_the_peak_is_noted(mfu: float | None, said: bool) -> None:
    usage: Any = SimpleNamespace(mfu=mfu)
    assert bool(over_peak_words([None, usage])) is said


def test_a_prediction_beside_its_measurement_has_the_sign_of_its_error() -> None:
    assert _checked(110.0, (90.0, 120.0), 100.0, verb="measured") == (
        "predicted 110.0 samples/s (90 %: 90.0 to 120.0), measured 100.0: error +10.0 %, "
        "the measurement is inside the interval"
    )
    for measured, where in ((90.0, "inside"), (120.0, "inside"), (89.9, "OUTSIDE"), (120.1, "OUTSIDE")):
        assert f"the measurement is {where} the interval" in _checked(110.0, (90.0, 120.0), measured, verb="reached")
