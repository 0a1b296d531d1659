"""Numbers behind explanations, each worked out by hand: what-ifs, sensitivities, gains, trials, levels of steps."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.explain.cases import breakdown
from paceline.explain.cases import step as steps
from paceline.explain.cases.evidence import CaseEvidence, load_evidence
from paceline.explain.cases.exchange import GradientExchange, gradient_exchange, gradients_of
from paceline.explain.confirm import BarTrial, Trials, _apart, plan_trials, with_measured
from paceline.explain.explanation import explain_campaign
from paceline.explain.findings import Change, Finding, across, gain_of, is_shown, ranked
from paceline.explain.findings.rules import _on_faster_link, _spread_over
from paceline.explain.levels import _cuts, _running_median, lasting, levels_of, period_of
from paceline.explain.watched import StepCause, _Series, _share, _shares, _waiting
from paceline.measurements.run import Span
from paceline.measurements.summary import Interval
from tests.made import Made, write

EXCHANGE = GradientExchange(
    sizes=(100.0, 300.0), ready=(1.0, 2.0), last=(0, 1), overlap=True, startup=0.5, per_byte=0.01
)
"""Exchanges of 1.5 and 3.5 s, ready at 1 and 2: the first ends at 2.5, the second at 6, 4 s after backward."""


def evidence(root: Path, *cases: Made) -> list[CaseEvidence]:
    return list(load_evidence(write(root, list(cases)), "made-1"))


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CaseEvidence:
    """A case of phases by hand with the exchange above."""
    (case,) = evidence(tmp_path, Made(aggregate=0.01, launches=2))
    phases = {"io": 0.2, "h2d": 0.1, "forward": 1.0, "backward": 2.0, "aggregate": 4.0, "update": 0.4, "other": 0.3}
    result = replace(case.result, phases=phases, step_s=Interval(8.0, 7.5, 8.5))
    monkeypatch.setattr(steps, "gradient_exchange", lambda _: EXCHANGE)
    return replace(case, result=result)


def test_what_would_change_with_the_exchange(planted: CaseEvidence) -> None:
    found = {item.change: (item.predicted_step_s, item.saved_s) for item in steps.what_if(planted)}
    by_hand = {
        "overlap on": 4.0,
        "overlap off": 5.0,  # both after backward
        "best buckets": 4.0,
        "every gradient by itself": 4.0,
        "link twice as fast": 2.0,  # 1 and 2 s, ready at 1 and 2
        "link ten times as fast": 0.8,
        "half precision gradients": 2.0,
        "no exchange at all": 0.0,
    }
    assert found == {
        name: (pytest.approx(4.0 + exposed), pytest.approx(4.0 - exposed)) for name, exposed in by_hand.items()
    }
    seconds = [item.predicted_step_s for item in steps.what_if(planted)]
    assert seconds == sorted(seconds)


def test_a_step_depends_on_half_and_twice_of_everything(planted: CaseEvidence) -> None:
    found = {item.quantity: (item.halved_s, item.doubled_s, item.base_s) for item in steps.sensitivities(planted)}
    assert found == {
        "io": (pytest.approx(7.9), pytest.approx(8.2), 8.0),
        "h2d": (pytest.approx(7.95), pytest.approx(8.1), 8.0),
        "forward": (7.5, 9.0, 8.0),
        "update": (pytest.approx(7.8), pytest.approx(8.4), 8.0),
        # Ready at 0.5 and 1: until 5.5, 4.5 s exposed, a second of backward less. Ready at 2 and 4: until 7.5.
        "backward": (pytest.approx(7.5), pytest.approx(9.5), 8.0),
        "seconds per byte of the link": (pytest.approx(6.0), pytest.approx(12.0), 8.0),
        "start-up of an exchange": (pytest.approx(7.5), pytest.approx(9.0), 8.0),
    }
    swings = [item.swing for item in steps.sensitivities(planted)]
    assert swings == sorted(swings, reverse=True)


def test_without_gradients_a_step_depends_on_the_exposed_exchange_as_a_whole(
    planted: CaseEvidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "gradient_exchange", lambda _: None)
    found = {item.quantity: (item.halved_s, item.doubled_s) for item in steps.sensitivities(planted)}
    assert (found["backward"], found["exposed aggregate"]) == ((7.0, 10.0), (6.0, 12.0))
    assert steps.what_if(planted) == ()
    spans = [(span.name, round(span.start_s, 9)) for span in steps.predicted_step(planted) if span.rank == 0]
    assert spans[-2:] == [("exposed exchange", 3.3), ("update", 7.3)]


def test_a_predicted_step_has_its_parts_one_after_the_other(planted: CaseEvidence) -> None:
    spans = [span for span in steps.predicted_step(planted) if span.rank == 0]
    found = [(span.name, round(span.start_s, 9), round(span.seconds, 9)) for span in spans]
    assert found == [
        ("batch", 0.0, 0.3), ("forward", 0.3, 1.0), ("backward", 1.3, 2.0),
        ("bucket 1 of 2", 2.3, 1.5), ("bucket 2 of 2", 3.8, 3.5), ("update", 7.3, 0.4),
    ]  # fmt: skip
    assert [span.size_bytes for span in spans][3:5] == [100, 300]


def test_a_traced_step_is_scaled_to_the_clean_one(planted: CaseEvidence) -> None:
    spans = (
        Span(0, 1, "forward", "a", 0.0, 1.0),
        Span(0, 2, "forward", "a", 0.5, 1.0),
        Span(0, 2, "backward", "a", 1.5, 2.15),
    )
    scaled, factor = steps.scaled_step(replace(planted, spans=spans))
    assert factor == pytest.approx(7.3 / 3.65)
    assert [(span.start_s, span.seconds) for span in scaled] == [
        (pytest.approx(1.0), pytest.approx(2.0)),
        (pytest.approx(3.0), pytest.approx(4.3)),
    ]
    assert steps.scaled_step(replace(planted, spans=())) == ((), 1.0)


def test_a_gain_is_a_share_of_the_step_and_its_interval_of_both(planted: CaseEvidence) -> None:
    found = gain_of(planted, Interval(2.0, 1.7, 2.25))
    assert (found.value, found.low, found.high) == (0.25, pytest.approx(1.7 / 8.5), pytest.approx(2.25 / 7.5))
    unsure = gain_of(planted, Interval(2.0, -math.inf, math.inf))
    assert (unsure.value, unsure.low, unsure.high) == (0.25, -math.inf, math.inf)
    assert gain_of(planted, Interval(-1.0, -2.0, 9.0)) == Interval(0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("gain", "shown"),
    [((0.05, 0.025), True), ((0.0499, 0.025), False), ((0.05, 0.0249), False), ((0.5, -math.inf), False)],
)
def test_a_gain_is_advised_from_five_percent_on(gain: tuple[float, float], shown: bool) -> None:
    assert is_shown(Interval(gain[0], gain[1], 1.0)) is shown


def finding(gain: float, measured: tuple[float, float] | None = None, kind: str = "setting", **more: Any) -> Finding:
    tried = Interval(measured[0], measured[1], 1.0) if measured else None
    return Finding("c", "t", "i", "l", (), Interval(gain, 0.0, 1.0), Change(kind, "w"), measured_gain=tried, **more)  # type: ignore[arg-type]


def test_trials_confirm_refute_or_leave_it_open() -> None:
    assert finding(0.3).verdict is None
    assert finding(0.3, (0.0249, 0.02)).verdict == "refuted"
    assert finding(0.3, (0.025, 0.001)).verdict == "confirmed"
    assert finding(0.3, (0.025, 0.0)).verdict == finding(0.3, (0.2, -math.inf)).verdict == "within the noise"


def test_conditions_come_first_and_purchases_are_worth_less() -> None:
    cheap, dear, measured, first = (
        finding(0.2),
        finding(0.24, kind="purchase"),
        finding(0.0, (0.3, 0.1)),
        finding(0.0, first=True),
    )
    assert dear.weight == pytest.approx(0.192)
    assert ranked([dear, cheap, measured, first]) == [first, measured, cheap, dear]


def test_bytes_over_more_ports_and_a_link_ten_times_as_fast(tmp_path: Path) -> None:
    assert _spread_over(EXCHANGE, 4).per_byte == pytest.approx(0.0025)
    (case,) = evidence(tmp_path, Made(aggregate=0.01))
    settings, faster = _on_faster_link(case, replace(EXCHANGE, overlap=False))
    assert settings.overlap
    assert settings.exposed <= 4.0
    assert faster.per_byte == pytest.approx(settings.per_byte / 10)


# Trials.


def test_seconds_of_a_cause_are_compared_round_by_round_where_three_rounds_are_common() -> None:
    having, lacking = {0: 5.0, 1: 9.0, 2: 7.0}, {0: 4.0, 1: 8.0, 2: 6.0}
    assert _apart(having, lacking) == Interval(1.0, 1.0, 1.0)
    few = _apart(having, {0: 4.0, 1: 8.0, 7: 6.0})
    assert few.value == 1.0
    assert few.low < 0 < few.high


@pytest.mark.parametrize(("side", "seconds"), [("slower", 0.04), ("faster", -0.04)])
def test_a_tried_bar_has_the_seconds_of_its_cause(tmp_path: Path, side: str, seconds: float) -> None:
    slow = Made(aggregate=0.06, strategy={"name": "after", "overlap": False, "bucket": 65536.0})
    fast = Made(aggregate=0.01, strategy={"name": "before", "bucket": 65536.0})
    explanation = explain_campaign(write(tmp_path, [slow, fast]), "made-1")
    trials = plan_trials(explanation, 0, lambda case: None)
    assert trials.findings == {}
    place = next(index for index, bar in enumerate(explanation.gaps[0].bars) if bar.cause == "overlap")
    wanted = trials.bars[place].confirmation
    assert wanted is not None
    assert trials.bars[place].side == "slower"
    assert wanted.changes == "overlap = True"
    # 64 samples in 0.08 s before, in 0.04 s after.
    rates = {wanted.key: (dict.fromkeys(range(3), 800.0), dict.fromkeys(range(3), 1600.0))}
    tried = with_measured(explanation, Trials({}, {place: BarTrial(wanted, side)}), rates).gaps[0].bars[place]
    assert tried.measured_s is not None
    assert tried.measured_s.value == pytest.approx(seconds)
    assert tried.tried == f"the {side} side, pytorch/ddp, with overlap = True"
    failed = with_measured(explanation, Trials({}, {place: BarTrial(wanted, side)}), {wanted.key: ({}, {0: 1.0})})
    assert failed.gaps[0].bars[place].tried.endswith("the trial failed")
    refused = with_measured(explanation, Trials({}, {place: BarTrial(None, refused="no")}), {})
    assert refused.gaps[0].bars[place].tried == "not tried: no"


def test_a_bar_is_tried_on_the_other_side_where_one_refuses(tmp_path: Path) -> None:
    slow = Made(aggregate=0.06, strategy={"name": "after", "overlap": False, "bucket": 65536.0})
    fast = Made(aggregate=0.01, strategy={"name": "before", "bucket": 65536.0})
    explanation = explain_campaign(write(tmp_path, [slow, fast]), "made-1")
    place = next(index for index, bar in enumerate(explanation.gaps[0].bars) if bar.cause == "overlap")
    on_fast = plan_trials(explanation, 9, lambda case: "cannot" if case.strategy.overlap else None)
    assert on_fast.bars[place].side == "faster"
    nowhere = plan_trials(explanation, 9, lambda case: "cannot")
    assert nowhere.findings == {}
    assert (nowhere.bars[place].confirmation, nowhere.bars[place].refused) == (None, "cannot; cannot")


# Findings that compare cases.


def test_lines_through_batches() -> None:
    fixed, slope = across._line_through(np.array([1.0, 3.0]), np.array([[5.0, 9.0], [9.0, 5.0]]))
    assert fixed.tolist() == [3.0, 7.0], "a line never falls"
    assert slope.tolist() == [2.0, 0.0]


@pytest.mark.parametrize(
    ("batch", "ratio", "wanted"), [(8, 0.5, 8), (8, 8 / 9, 8), (8, 0.9, 16), (8, 1e9, 128), (1, 1.0, 16)]
)
def test_a_batch_doubles_until_a_tenth_does_not_depend_on_it(batch: int, ratio: float, wanted: int) -> None:
    assert across._enough(batch, ratio) == wanted


def test_the_gain_of_a_batch_has_the_interval_of_lines_through_launches() -> None:
    """Steps of 0.5 s and 0.25 s a sample; at batch 16 a sample takes 0.28125 s, at batch 2 0.5."""

    def case(batch: int, *away: float) -> Any:
        step = 0.5 + 0.25 * batch
        return SimpleNamespace(
            run=SimpleNamespace(batch=batch),
            result=SimpleNamespace(step_s=Interval(step, step, step)),
            launches=SimpleNamespace(steps=[step + one for one in away]),
        )

    exact = [case(batch, 0.0, 0.0, 0.0) for batch in (2, 4, 8)]
    gain = 1 - 0.28125 / 0.5
    found = across._batch_gain(exact[0], exact, 16, 0.28125)
    assert (found.value, found.low, found.high) == pytest.approx((gain, gain, gain))
    spread = [case(batch, -0.05, 0.0, 0.05) for batch in (2, 4, 8)]
    found = across._batch_gain(spread[0], spread, 16, 0.28125)
    assert found.value == pytest.approx(gain)
    assert gain - 0.2 < found.low < gain - 0.01
    assert gain + 0.01 < found.high < gain + 0.2
    short = [exact[0], case(4, 0.0)]
    assert across._batch_gain(exact[0], short, 16, 0.28125) == Interval(gain, float("-inf"), float("inf"))
    assert across._batch_gain(exact[0], exact, 16, 0.6).value == 0.0


def test_the_share_before_the_first_layer_is_that_of_the_last_rank_to_start() -> None:
    spans = [
        Span(0, 0, "forward", "a", 0.2, 0.3), Span(0, 0, "backward", "a", 0.5, 0.5),
        Span(1, 0, "forward", "a", 0.5, 0.5), Span(0, 1, "forward", "a", 0.1, 0.9),
        Span(0, 2, "forward", "a", 0.0, 0.0),
    ]  # fmt: skip
    case: Any = SimpleNamespace(spans=spans)
    assert across._shares_before(case) == [0.5, pytest.approx(0.1), 0.0], "a step that takes no time has no share"


def test_a_part_has_the_interval_of_its_launches_around_its_own_value() -> None:
    assert breakdown._around(2.0, [3.0, 3.0, 3.0]) == Interval(2.0, 2.0, 3.0)
    assert breakdown._around(4.0, [3.0, 3.0]) == Interval(4.0, 3.0, 4.0)
    spread = breakdown._around(2.0, [1.0, 2.0, 3.0])
    half = 4.302653 / 3**0.5  # t of 2 degrees of freedom, a standard deviation of 1
    assert (spread.low, spread.value, spread.high) == (pytest.approx(2 - half), 2.0, pytest.approx(2 + half))
    alone = breakdown._around(2.0, [3.0])
    assert (alone.low, alone.high) == (-np.inf, np.inf)


# Levels of observed steps.


def series(seconds: list[list[float]], first: int = 0, **phases: list[list[float]]) -> _Series:
    whole = np.array(seconds)
    names = ("io", "h2d", "forward", "backward", "aggregate", "update")
    parts = {name: np.array(phases.get(name, np.zeros_like(whole))) for name in names}
    parts["other"] = whole - sum(parts.values())
    return _Series(np.arange(first, first + whole.shape[1]), whole, parts, np.zeros(whole.shape[1]))


def test_waiting_is_what_an_exchange_takes_beyond_the_shortest() -> None:
    given = series([[10.0, 10.0], [10.0, 10.0]], aggregate=[[1.0, 2.0], [3.0, 2.0]])
    assert _waiting(given) == pytest.approx((2.0 / 4) / 10)


def test_shares_are_of_the_slowest_rank_of_each_pass() -> None:
    given = series([[10.0, 10.0], [10.0, 10.0]], io=[[1.0, 1.0], [2.0, 2.0]], forward=[[3.0, 3.0], [2.0, 2.0]],
                   backward=[[4.0, 4.0], [5.0, 5.0]], aggregate=[[1.0, 1.0], [0.0, 0.0]])  # fmt: skip
    found = _shares(given)
    assert sum(found.values()) == pytest.approx(1.0)
    by_hand = {"forward": 0.3, "backward": 0.4, "aggregate": 0.1, "io": 0.1, "other": 0.1}  # up to 3, 7, 8, 9 and 10 s
    assert {name: share for name, share in found.items() if share > 1e-9} == pytest.approx(by_hand)


def test_a_share_has_the_interval_of_ten_parts() -> None:
    found = _share(np.array([1.0, 3.0] * 10), 4.0)
    assert found == Interval(0.5, 0.5, 0.5), "parts of two steps are alike"
    uneven = _share(np.array([0.0] * 10 + [2.0] * 10), 4.0)
    half = 2.262157 * np.std([0.0] * 5 + [0.5] * 5, ddof=1) / 10**0.5  # t of 9 degrees of freedom
    assert (uneven.value, uneven.low, uneven.high) == (
        0.25,
        pytest.approx(0.25 - half, rel=1e-5),
        pytest.approx(0.25 + half, rel=1e-5),
    )


def test_eight_long_steps_in_a_row_are_a_level() -> None:
    row = np.array([[False] * 2 + [True] * 8 + [False] + [True] * 7 + [False]])
    assert lasting(row).tolist() == [[False] * 2 + [True] * 8 + [False] * 9]


def test_regular_stalls_by_hand() -> None:
    numbers = np.arange(20)
    cost = np.where(numbers % 5 == 2, 1.0, 0.0)
    assert period_of(numbers, cost) == (5, 2)
    assert period_of(numbers, np.zeros(20)) == (0, 0)
    mostly = cost.copy()
    mostly[2] = 0.0  # three of four is less than four of five
    assert period_of(numbers, mostly) == (0, 0)
    mixed = cost + np.where(numbers == 4, 3.0, 0.0)
    assert period_of(numbers, mixed) == (0, 0), "four of seven seconds are less than 60 %"
    assert period_of(numbers, cost + np.where(numbers == 4, 2.6, 0.0)) == (5, 2)
    assert period_of(numbers, np.where(numbers % 8 == 2, 1.0, 0.0)) == (0, 0), (
        "nineteen steps hold three sixths, not eighths"
    )
    assert period_of(numbers, np.where(numbers % 6 == 1, 1.0, 0.0)) == (6, 1)


def test_outliers_go_and_edges_stay() -> None:
    values = np.array([1.0] * 4 + [9.0] + [1.0] * 3 + [5.0] * 5)
    assert _running_median(values).tolist() == [1.0] * 8 + [5.0] * 5


def test_levels_are_cut_where_the_mean_changes() -> None:
    values = np.array([1.0] * 10 + [2.0] * 12)
    assert _cuts(values, 0, 22, 0.1) == [10]
    # The change is 1 x sqrt(10 x 12 / 22) = 2.34 of values whose noise is 0.3: below eight of it.
    assert _cuts(values, 0, 22, 0.3) == []
    assert _cuts(values[3:], 0, 19, 0.01) == [8], "a level has at least eight steps"
    assert _cuts(values[:18], 0, 18, 0.01) == [10], "the last one, too"
    assert _cuts(values[:15], 0, 15, 0.001) == [], "and two have sixteen"
    assert levels_of(values, 1.5) == [(0, 10, 1.0), (10, 22, 2.0)]
    assert levels_of(np.where(values > 1, 1.04, 1.0), 1.5) == [(0, 22, 1.04)], "a change of less than three percent"
    three = np.array([1.0] * 10 + [3.0] * 10 + [2.0] * 10)
    assert levels_of(three, 2.0) == [(0, 10, 1.0), (10, 20, 3.0), (20, 30, 2.0)]


# Rules that compare cases, with the numbers that they print.


def found(root: Path, *cases: Made) -> dict[tuple[str, str], Finding]:
    explanation = explain_campaign(write(root, list(cases)), "made-1")
    return {(one.cause, one.case): one for one in (*explanation.findings, *explanation.unsure)}


def test_fewer_devices_are_advised_to_the_case_that_has_more(tmp_path: Path) -> None:
    advised = found(tmp_path, Made(ranks=1), Made(ranks=2, aggregate=0.4), Made(ranks=3, aggregate=0.1))
    (label,) = [case for cause, case in advised if cause == "too_many_devices"]
    one = advised["too_many_devices", label]
    assert "2 ranks" in label
    assert one.trial is not None
    assert one.trial.ranks == 1
    # 32 samples in 0.12 s against 64 in 0.52 s.
    assert one.gain.value == pytest.approx(1 - (64 / 0.52) / (32 / 0.12), rel=1e-3)
    assert one.evidence[0] == "123.0 samples/s with 2 ranks, 266.4 with 1"


def test_fewer_devices_are_compared_round_by_round_as_their_gain_is() -> None:
    best, case = (
        SimpleNamespace(run=SimpleNamespace(ranks=ranks), launches=SimpleNamespace(throughputs=rates, rounds=(0, 1, 2)))
        for ranks, rates in ((1, (110.0, 221.0, 442.0)), (4, (100.0, 200.0, 400.0)))
    )
    gain = across._fewer_gain(case, best)  # type: ignore[arg-type]
    assert 0 < gain.low < gain.value < gain.high < 0.15
    assert across._fewer_title(case, best) == "1 rank is 1.10 times as fast as 4"  # type: ignore[arg-type]


def test_ranks_without_a_core_are_advised_to_be_as_many_as_cores(tmp_path: Path) -> None:
    (one,) = [
        f
        for (cause, _), f in found(tmp_path, Made(ranks=6, cores=2, one_host=True)).items()
        if cause == "too_few_cores"
    ]
    assert one.trial is not None
    assert one.trial.ranks == 2
    assert "no case of this study has at most 2 ranks" in one.unknown
    assert "a rank has 0.33 of a core" in one.evidence[0]


def test_threads_are_counted_against_the_cores_of_their_own_host(tmp_path: Path) -> None:
    causes = {cause for cause, _ in found(tmp_path / "apart", Made(ranks=4, threads=2, cores=4))}
    assert "oversubscribed_threads" not in causes
    causes = {cause for cause, _ in found(tmp_path / "together", Made(ranks=4, threads=2, cores=4, one_host=True))}
    assert "oversubscribed_threads" in causes


def test_the_time_before_the_first_layer_is_a_share_of_the_traced_step(tmp_path: Path) -> None:
    (one,) = [
        f for (cause, _), f in found(tmp_path, Made(before_first_layer=0.06)).items() if cause == "fixed_overhead"
    ]
    assert one.gain.value == pytest.approx(0.06 / 0.18)
    assert "33.3 % of every traced step" in one.evidence[0]
    assert "40 ms of a clean one" in one.evidence[0] or "40.0 ms of a clean one" in one.evidence[0]


@pytest.mark.parametrize(("count", "pattern"), [(100, "transient"), (101, "persistent")])
def test_stalls_of_more_than_half_of_the_steps_are_persistent(count: int, pattern: str) -> None:
    share = Interval(0.1, 0.1, 0.1)
    assert StepCause("stalls", "io", None, share, None, None, count=count, num_steps=200).pattern == pattern
    assert StepCause("stalls", "io", None, share, None, 150, count=count, num_steps=200).pattern == "transient"
    assert StepCause("slow_rank", "io", 1, share, None, None, count=1, num_steps=200).pattern == "persistent"


def test_gradients_are_those_of_the_first_rank(tmp_path: Path) -> None:
    (case,) = evidence(tmp_path, Made(aggregate=0.03))
    spans = tuple(Span(rank, 0, "backward", "a.weight", 1.0 + rank, 1.0 + rank, 100) for rank in (0, 1))
    assert gradients_of(replace(case, spans=spans)) == ((100.0,), (1.0,))


def test_gradients_become_ready_in_the_measured_backward(tmp_path: Path) -> None:
    (case,) = evidence(tmp_path, Made(aggregate=0.03, alone_factor=1.5))
    exchange = gradient_exchange(case)
    assert exchange is not None
    backward = case.result.phases["backward"]
    assert (exchange.ready[0], exchange.ready[-1]) == (pytest.approx(backward / 20), pytest.approx(backward))
    assert backward == pytest.approx(0.12, rel=0.01)
