"""What a campaign's predictions are calibrated with, and the residual of each term."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.explain.explanation import explain_campaign
from paceline.explain.predicted import Residual, TermResidual, _Calibrations, _Group, _key, _residual, _rows
from paceline.measurements.run import Span
from paceline.measurements.summary import Interval
from paceline.model.calibration import CATALOG_ONLY
from tests.made import Made, write


def made(ranks: int = 2, **changes: Any) -> Any:
    """A case, as far as calibrations look at it."""
    run = {"cluster": "c", "framework": "f", "input": "resident", "launcher": "local", "ranks": ranks}
    return SimpleNamespace(run=SimpleNamespace(**{**run, **changes}), label=f"case of {ranks}")


class Told(_Group):
    """Says what it would fit."""

    def fitted(self, cases: Any, words: str) -> Any:
        return list(cases), words


def calibrations(*many: Any) -> _Calibrations:
    return _Calibrations({_key(made()): Told(tuple(many), {}, CATALOG_ONLY)})


@pytest.mark.parametrize(
    ("count", "every", "words"),
    [
        (1, 1, "this study's own case"), (2, 1, "this study's own 2 cases"), (48, 1, "this study's own 48 cases"),
        (49, 2, "25 of this study's own 49 cases"), (96, 2, "48 of this study's own 96 cases"),
        (97, 3, "33 of this study's own 97 cases"),
    ],
)  # fmt: skip
def test_a_curve_is_calibrated_with_at_most_48_cases_evenly_chosen(count: int, every: int, words: str) -> None:
    many = [made() for _ in range(count)]
    known = calibrations(*many)
    found: Any = known.everything(made())
    assert found == (many[::every], f"{words} on several ranks")
    assert known.everything(made()) is found, "fitted once"


def test_a_case_is_predicted_without_itself() -> None:
    one, two, three = (made() for _ in range(3))
    known = calibrations(one, two, three)
    assert known.without(two) == ([one, three], "the other 2 cases of this study on several ranks")
    assert known.without(made(ranks=1)) == known.everything(made())
    assert calibrations(one, two).without(one) == ([two], "the other case of this study on several ranks")
    large = [made() for _ in range(25)]
    assert len(calibrations(*large[:24]).without(large[0])[0]) == 23  # type: ignore[index]
    assert calibrations(*large).without(large[0])[0] == [], "too many fits: the catalog"  # type: ignore[index]
    for name in ("cluster", "framework", "input", "launcher"):
        assert _key(made(**{name: "other"})) != _key(made())
    assert _key(made(ranks=8)) == _key(made())


def test_the_catalog_stands_where_nothing_can_be_fitted() -> None:
    assert _Group((), {}, CATALOG_ONLY).fitted([], "words") is CATALOG_ONLY


def test_terms_of_the_model_belong_to_phases() -> None:
    terms = {"io": 1.0, "h2d": 2.0, "forward": 3.0, "backward": 4.0, "slowdown": 5.0, "aggregate": 6.0, "fixed": 7.0,
             "waiting": 8.0, "update": 9.0}  # fmt: skip
    step: Any = SimpleNamespace(value=45.0, interval_90=(40.0, 50.0))
    phases = dict.fromkeys(("io", "h2d", "forward", "backward", "aggregate", "update"), 10.0)
    case = made()
    case.result = SimpleNamespace(phases=phases, step_s=Interval(60.0, 59.0, 61.0))
    found = _residual(case, SimpleNamespace(terms=terms, step_s=step), "basis")  # type: ignore[arg-type]
    assert {term.phase: term.predicted_s for term in found.terms} == {
        "io": 1.0, "h2d": 2.0, "forward": 3.0, "backward": 9.0, "aggregate": 21.0, "update": 9.0,
    }  # fmt: skip
    assert TermResidual("io", 10.0, 1.0).residual_s == 9.0
    assert (found.measured_step_s, found.predicted_step_s, found.inside) == (60.0, 45.0, False)
    for measured, inside in ((40.0, True), (50.0, True), (39.9, False), (50.1, False)):
        assert Residual("c", 2, measured, 45.0, (40.0, 50.0), (), "").inside is inside


def test_rows_of_a_profile_are_medians_of_rank_0() -> None:
    spans = [Span(rank, step, phase, "conv", 10.0 * step + rank, step + 1.0 + 5 * rank, 7)
             for rank in (0, 1) for step in range(3) for phase in ("forward", "backward", "aggregate")]  # fmt: skip
    assert _rows(SimpleNamespace(spans=spans)) == [  # type: ignore[arg-type]
        ("forward", "conv", 2.0, 10.0, 7), ("backward", "conv", 2.0, 10.0, 7),
    ]  # fmt: skip


def test_a_curve_reaches_four_times_the_ranks_that_were_measured(tmp_path: Path) -> None:
    cases = [Made(ranks=ranks, network="resnet20", catalog_cluster="v100-10gbe-8x4") for ranks in (1, 2)]
    (series,) = explain_campaign(write(tmp_path, cases), "made-1").series
    assert series.curve is not None, series.why_not
    assert [one.devices for one in series.curve.predictions] == [1, 2, 4, 8]
