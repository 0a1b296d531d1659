"""The exchange of gradients by hand: 1, 2 and 1 MB that are ready after 1, 2 and 4 s; 0.5 s + 1 us a byte."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.explain.cases.breakdown import hidden_by_rank
from paceline.explain.cases.evidence import CaseEvidence, load_evidence
from paceline.explain.cases.exchange import GradientExchange, exchanges_by_launch, gradient_exchange, gradients_of
from paceline.explain.gap import difference, find_gaps
from paceline.measurements.run import Span
from paceline.measurements.summary import amount_interval
from tests.made import Made, write

EXCHANGE = GradientExchange(
    sizes=(1e6, 2e6, 1e6), ready=(1.0, 2.0, 4.0), last=(0, 1, 2), overlap=True, startup=0.5, per_byte=1e-6
)


def evidence(root: Path, *cases: Made) -> list[CaseEvidence]:
    return load_evidence(write(root, list(cases)), "made-1")


def test_overlapped_exchanges_start_when_they_are_ready() -> None:
    assert EXCHANGE.communication == pytest.approx(1.5 + 2.5 + 1.5)
    assert EXCHANGE.exposed == pytest.approx(6.5 - 4.0)  # sent until 2.5, 5.0 and 6.5
    assert (EXCHANGE.num_exchanges, EXCHANGE.total_bytes, EXCHANGE.bucket_limit) == (3, 4e6, 2e6)


@pytest.mark.parametrize("changes", [{"overlap": False}, {"contended": True}])
def test_nothing_is_hidden_without_overlap_or_without_free_cores(changes: dict[str, bool]) -> None:
    without = replace(EXCHANGE, **changes)  # type: ignore[arg-type]
    assert not without.hides
    assert without.exposed == pytest.approx(5.5)


def test_other_buckets_have_other_exposed_times() -> None:
    two = EXCHANGE.rebucketed(3e6)
    assert two.last == (1, 2)
    assert two.bucket_sizes.tolist() == [3e6, 1e6]
    assert two.bucket_ready.tolist() == [2.0, 4.0]
    assert two.exposed == pytest.approx(3.0)
    assert EXCHANGE.rebucketed(4e6).exposed == pytest.approx(4.5)
    assert EXCHANGE.rebucketed(4e6).best_buckets().last == (0, 1, 2)
    assert two.bound() == pytest.approx(2.5)
    slow_start = replace(EXCHANGE, startup=4.0)
    assert slow_start.best_buckets().last == (2,)
    assert slow_start.bound() == pytest.approx(8.0)


@pytest.mark.parametrize("seconds", [0.0005, 0.004, 0.03, 0.3])
@pytest.mark.parametrize("overlap", [True, False])
def test_the_fitted_exchange_exposes_what_was_measured(tmp_path: Path, seconds: float, overlap: bool) -> None:
    made = Made(aggregate=seconds, strategy={"overlap": overlap, "bucket": 65536.0})
    (case,) = evidence(tmp_path, made)
    found = gradient_exchange(case)
    assert found is not None
    assert found.exposed == pytest.approx(case.result.phases["aggregate"], rel=1e-6)
    assert found.startup <= 150e-6 + 2 * 1e-4 + 1e-12, "a call and two hops of the link"
    assert found.per_byte >= 1 / 2e9


def test_gradients_are_ready_when_their_span_ends(tmp_path: Path) -> None:
    (case,) = evidence(tmp_path, Made(gradients=4, aggregate=0.01))
    assert gradients_of(case) == ((50_000.0,) * 4, pytest.approx((0.02, 0.04, 0.06, 0.08)))
    (quarter,) = evidence(tmp_path / "half", Made(gradients=4, aggregate=0.01, strategy={"compression": "float16"}))
    found = gradient_exchange(quarter)
    assert found is not None
    assert found.sizes == (25_000.0,) * 4


def test_one_rank_or_no_spans_have_no_exchange(tmp_path: Path) -> None:
    (alone,) = evidence(tmp_path / "1", Made(ranks=1))
    (untraced,) = evidence(tmp_path / "2", Made(traced=False, aggregate=0.01))
    assert gradient_exchange(alone) is None
    assert gradient_exchange(untraced) is None


def test_each_launch_is_fitted_with_half_and_twice_the_cost_of_a_call(tmp_path: Path) -> None:
    (case,) = evidence(tmp_path, Made(aggregate=0.03, strategy={"overlap": False, "bucket": 65536.0}))
    found = exchanges_by_launch(case)
    assert len(found) == 3
    for step, fits in found:
        assert step == pytest.approx(0.15, rel=0.01)
        assert [fit.startup for fit in fits] == pytest.approx([275e-6, 350e-6, 500e-6])
        assert [fit.exposed for fit in fits] == pytest.approx([step / 5] * 3)


def spans(*exchanges: tuple[float, float], step: int = 0, rank: int = 0) -> list[Span]:
    """A backward pass from 1 to 5 s and exchanges by start and seconds."""
    made = [Span(rank, step, "backward", "w", 1.0, 4.0, 8), Span(rank, step, "forward", "w", 0.0, 9.0, 8)]
    return made + [Span(rank, step, "aggregate", "b", at, seconds, 8) for at, seconds in exchanges]


def test_hidden_is_what_exchanges_cover_before_the_last_gradient() -> None:
    assert hidden_by_rank(spans((2.0, 1.0), (2.5, 1.5), (4.5, 2.0))) == {0: pytest.approx(2.0 + 0.5)}
    assert hidden_by_rank(spans((6.0, 1.0))) == {0: 0.0}
    assert hidden_by_rank(spans()) == {}
    three = [*spans((2.0, 1.0)), *spans((2.0, 2.0), step=1), *spans((2.0, 3.0), step=2), *spans((4.0, 9.0), rank=1)]
    assert hidden_by_rank(three) == {0: pytest.approx(2.0), 1: pytest.approx(1.0)}


def test_an_error_of_either_side_is_one_of_the_difference() -> None:
    ours, steady = [1.0, 1.1, 1.2, 2.0], [5.0] * 4
    own = amount_interval(ours)
    below, above = own.value - own.low, own.high - own.value
    assert below != pytest.approx(above)
    found = difference(ours, steady, -3.0)
    assert (found.value, found.low, found.high) == (-3.0, pytest.approx(-3.0 - below), pytest.approx(-3.0 + above))
    found = difference(steady, ours, 3.0)
    assert (found.low, found.high) == (pytest.approx(3.0 - above), pytest.approx(3.0 + below))
    both = difference(ours, ours, 0.0)
    assert both.high == pytest.approx((below**2 + above**2) ** 0.5)
    assert both.low == pytest.approx(-both.high)


def bars(root: Path, slow: Made, fast: Made) -> dict[str, float]:
    (gap,) = find_gaps(evidence(root, slow, fast))
    assert sum(bar.seconds for bar in gap.bars) == pytest.approx(gap.seconds)
    return {bar.cause: bar.seconds for bar in gap.bars}


def test_a_gap_is_split_into_differences_of_phases(tmp_path: Path) -> None:
    slow = Made(framework="jax/data_parallel", forward=0.06, backward=0.1, aggregate=0.02, update=0.03)
    fast = Made(forward=0.04, backward=0.07, aggregate=0.02, update=0.01)
    found = bars(tmp_path, slow, fast)
    assert found["kernels"] == pytest.approx(0.05, rel=0.01)
    assert found["update"] == pytest.approx(0.02, rel=0.01)
    assert found["unexplained"] == pytest.approx(0.0, abs=1e-3)


def test_the_bars_of_the_exchange_change_buckets_first_and_overlap_second(tmp_path: Path) -> None:
    slow = Made(aggregate=0.06, strategy={"name": "slow", "overlap": False, "bucket": 0.0})
    fast = Made(aggregate=0.02, strategy={"name": "fast", "bucket": 250_000.0})
    (gap,) = find_gaps(evidence(tmp_path, slow, fast))
    found = {bar.cause: bar for bar in gap.bars}
    # Twenty exchanges become four: sixteen start-ups of 350 us less.
    assert found["fusion"].seconds == pytest.approx(16 * 350e-6, rel=1e-3)
    assert found["overlap"].seconds > 0.02
    assert found["fusion"].trial.strategy == {"bucket": 250_000}
    assert found["fusion"].reverse.strategy == {"bucket": 0}
    assert (found["overlap"].trial.strategy, found["overlap"].reverse.strategy) == (
        {"overlap": True},
        {"overlap": False},
    )
    exchange = sum(found[name].seconds for name in ("fusion", "overlap", "link and start-up"))
    assert exchange == pytest.approx(0.04, rel=0.01)


def test_fixed_compute_is_told_where_both_sides_have_several_batches(tmp_path: Path) -> None:
    def at(batch: int, fixed: float, **more: object) -> Made:
        return Made(ranks=1, batch=batch, forward=fixed + 0.001 * batch, backward=0.002 * batch, **more)  # type: ignore[arg-type]

    cases = [at(n, 0.05, framework="jax/data_parallel") for n in (8, 16)] + [at(n, 0.02) for n in (8, 16)]
    gaps = find_gaps(evidence(tmp_path, *cases))
    assert len(gaps) == 2, "one for each batch"
    for gap in gaps:
        found = {bar.cause: bar.seconds for bar in gap.bars}
        assert found["fixed overhead"] == pytest.approx(0.03, rel=0.01)
        assert found.get("kernels", 0.0) == pytest.approx(0.0, abs=2e-4)
