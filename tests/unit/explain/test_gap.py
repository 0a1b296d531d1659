"""Which gaps are told, and the parts that their bars are made of."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.explain import gap
from paceline.explain.cases.exchange import GradientExchange
from paceline.measurements.summary import Interval

TWO = GradientExchange(sizes=(100.0, 300.0), ready=(1.0, 2.0), last=(0, 1), overlap=True, startup=0.5, per_byte=0.01)
"""Exchanges of 1.5 and 3.5 s, ready at 1 and 2: 4 s exposed; in one bucket 4.5, without overlap 5."""


def case(step: float, name: str = "a", *, ranks: int = 2, batch: int = 8, compute: float = 1.0, **more: Any) -> Any:
    """A case, as far as it is compared."""
    run = {"network": "n", "cluster": "c", "launcher": "local", "framework": name, "input": "resident", "strategy": "s"}
    phases = {"forward": compute / 4, "backward": 3 * compute / 4}
    return SimpleNamespace(
        run=SimpleNamespace(**{**run, **more}, ranks=ranks, batch=batch, case_id=f"{name}{ranks}{batch}"),
        result=SimpleNamespace(step_s=Interval(step, step, step), phases=phases),
    )


def pairs(monkeypatch: pytest.MonkeyPatch, *cases: Any, most: int = 50) -> list[tuple[float, float]]:
    monkeypatch.setattr(
        gap, "_explain_gap", lambda slow, fast, fixed: (slow.result.step_s.value, fast.result.step_s.value)
    )
    return list(gap.find_gaps(cases, most=most))  # type: ignore[arg-type]


def test_each_is_compared_with_the_fastest_of_its_size_and_the_largest_ratio_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cases = [case(2.0, "a"), case(3.0, "b"), case(5.0, "c"), case(9.0, "d", batch=16), case(1.0, "e", batch=16)]
    assert pairs(monkeypatch, *cases) == [(9.0, 1.0), (5.0, 2.0), (3.0, 2.0)]
    assert pairs(monkeypatch, *cases, most=2) == [(9.0, 1.0), (5.0, 2.0)]
    for name, other in (("network", "m"), ("cluster", "d"), ("launcher", "ssh")):
        assert pairs(monkeypatch, case(2.0, "a"), case(3.0, "b", **{name: other})) == []
    untimed = case(4.0, "b")
    untimed.result.phases = {}
    assert pairs(monkeypatch, case(2.0, "a"), untimed) == []


def test_strategies_of_one_rank_do_not_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    one = case(2.0, "a", ranks=1)
    assert pairs(monkeypatch, one, case(3.0, "a", ranks=1, strategy="t")) == []
    assert pairs(monkeypatch, one, case(3.0, "b", ranks=1)) == [(3.0, 2.0)]
    assert pairs(monkeypatch, one, case(3.0, "a", ranks=1, input="files")) == [(3.0, 2.0)]
    assert pairs(monkeypatch, case(2.0), case(3.0, strategy="t")) == [(3.0, 2.0)]


def test_fixed_compute_is_where_the_line_through_the_batches_begins_within_what_was_measured() -> None:
    line = [case(9.0, batch=batch, compute=0.5 + 0.25 * batch) for batch in (2, 4, 8)]
    assert gap._fixed_compute(line) == pytest.approx({"a22": 0.5, "a24": 0.5, "a28": 0.5})
    falls = [case(9.0, batch=batch, compute=compute) for batch, compute in ((2, 1.0), (4, 4.0))]
    assert gap._fixed_compute(falls) == {"a22": 0.0, "a24": 0.0}, "never less than nothing"
    flat = [case(9.0, batch=batch, compute=compute) for batch, compute in ((2, 4.0), (4, 1.0))]
    assert gap._fixed_compute(flat) == {"a22": 4.0, "a24": 1.0}, "nor more than all"
    assert gap._fixed_compute([case(9.0), case(9.0, ranks=4)]) == {}, "one batch tells nothing"


def test_an_interval_keeps_its_width_around_another_value() -> None:
    assert gap._moved(Interval(5.0, 3.0, 6.0), 1.0) == Interval(1.0, -1.0, 2.0)
    assert gap._moved(None, 1.0) is None


def test_what_no_phase_accounts_for_is_a_clean_step_beyond_the_longest_pass() -> None:
    assert gap._apart({"clean": 5.0, "forward": 1.0, "resident": 4.5}) == 0.5


def test_a_slower_exchange_becomes_the_faster_one_buckets_first() -> None:
    single = replace(TWO, last=(1,), overlap=False)
    fusion, overlap = gap._walk(single, TWO)
    assert (fusion.cause, fusion.seconds) == ("fusion", pytest.approx(4.5 - 5.0))
    assert (overlap.cause, overlap.seconds) == ("overlap", pytest.approx(5.0 - 4.0))
    assert (fusion.trial.strategy, fusion.reverse.strategy) == ({"bucket": 0}, {"bucket": 400})
    assert (overlap.trial.strategy, overlap.reverse.strategy) == ({"overlap": True}, {"overlap": False})
    assert "exchanges a step: 1 against 2" in fusion.evidence
    assert "with overlap instead of without" in overlap.evidence
    assert "need the cores" not in overlap.evidence
    assert "need the cores" in gap._walk(replace(TWO, overlap=False, contended=True), TWO)[0].evidence
    assert gap._walk(TWO, TWO) == []
    other = replace(TWO, sizes=(400.0,), ready=(2.0,), last=(0,))
    assert gap._walk(single, replace(other, overlap=False)) == [], "of other gradients the buckets are not comparable"


def test_the_interval_of_a_bar_is_that_of_the_launches_of_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap, "phases_of", lambda passes: passes)
    slow, fast = case(9.0, compute=8.0), case(5.0, "b", compute=4.0)
    slow.launches = SimpleNamespace(passes=[{"forward": 2.0, "backward": 6.0 + n} for n in (-1, 0, 1)])
    fast.launches = SimpleNamespace(passes=[{"forward": 1.0, "backward": 3.0}] * 3)
    bar = gap._phase_bar("kernels", ("forward", "backward"), slow, fast, None)
    assert (bar.seconds, bar.interval) == (4.0, gap.difference([7.0, 8.0, 9.0], [4.0] * 3, 4.0))
    assert bar.interval is not None
    assert bar.interval.high - bar.interval.low > 1


def test_what_is_left_of_an_exchange_has_the_interval_of_the_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 s exposed against 3: overlap explains 1 s, the rest is the link, as sure as the launches are."""
    monkeypatch.setattr(gap, "phases_of", lambda passes: passes)
    slow, fast = case(9.0), case(5.0, "b")
    exchanges = {id(slow): replace(TWO, overlap=False), id(fast): TWO}
    monkeypatch.setattr(gap, "exchange_like", lambda one, other: exchanges.get(id(one)))
    for one, seconds in ((slow, (7.0, 8.0, 9.5)), (fast, (3.0, 3.0, 3.5))):
        one.result.phases["aggregate"] = seconds[1]
        one.launches = SimpleNamespace(passes=[{"aggregate": second} for second in seconds])
        one.policy = SimpleNamespace(aggregation="allreduce")
    all_of_it = gap.difference([7.0, 8.0, 9.5], [3.0, 3.0, 3.5], 5.0)
    overlap, rest = gap._exchange_bars(slow, fast)
    assert (overlap.cause, overlap.seconds, rest.cause, rest.seconds) == ("overlap", 1.0, "link and start-up", 4.0)
    assert rest.interval is not None
    assert (rest.interval.value, rest.interval.low, rest.interval.high) == pytest.approx(
        (4.0, all_of_it.low - 1, all_of_it.high - 1)
    )
    slow.policy.aggregation = "parameter_server"
    assert gap._exchange_bars(slow, fast)[-1].cause == "server"
    fast.policy.aggregation = "parameter_server"
    assert gap._exchange_bars(slow, fast)[-1].cause == "link and start-up"
    fast.policy = None
    assert gap._exchange_bars(slow, fast)[-1].cause == "server"
    del exchanges[id(fast)]
    (whole,) = gap._exchange_bars(slow, fast)
    assert (whole.cause, whole.seconds, whole.interval) == ("exchange", 5.0, all_of_it)


def test_half_widths_add_as_independent_errors_do() -> None:
    one, other = gap.amount_interval([1.0, 2.0, 4.0]), gap.amount_interval([5.0, 5.5, 5.7])
    found = gap.difference([1.0, 2.0, 4.0], [5.0, 5.5, 5.7], -3.0)
    assert found.value == -3.0
    assert (3.0 + found.low) ** 2 == pytest.approx((one.value - one.low) ** 2 + (other.high - other.value) ** 2)
    assert (3.0 + found.high) ** 2 == pytest.approx((one.high - one.value) ** 2 + (other.value - other.low) ** 2)
    assert found.low < -3.0 < found.high
