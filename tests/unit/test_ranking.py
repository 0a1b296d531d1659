"""Who is faster: rankings of launches."""

from __future__ import annotations

import math

import pytest

from paceline.measurements.ranking import _inverse, rank_launches
from paceline.measurements.results import Launches
from paceline.measurements.summary import compare
from tests.unit.test_store import make_run


def launches(framework: str, rates: tuple[float, ...], **changes: object) -> Launches:
    runs = tuple(
        make_run(f"demo-1-{framework.replace('/', '-')}-{number:03}", framework=framework, launch=number, **changes)
        for number in range(len(rates))
    )
    return Launches(runs, runs, rates, tuple(1 / rate for rate in rates), (), 5 * len(rates))


FAST, SLOW = (200.0, 202.0, 198.0, 201.0), (100.0, 101.0, 99.0, 100.5)


def test_the_fastest_median_comes_first_and_wins_if_all_others_are_shown_slower() -> None:
    (ranking,) = rank_launches([launches("jax/pmap", SLOW), launches("pytorch/ddp", FAST)])
    assert [place.name for place in ranking.places] == ["pytorch/ddp", "jax/pmap"]
    assert ranking.winner == ranking.places[0]
    assert ranking.winner.behind is None
    assert (ranking.verdict, ranking.equals) == ("faster", ())
    expected = compare(FAST, SLOW, rounds=(range(4), range(4))).ratio
    assert ranking.lead is not None
    assert ranking.lead.value == pytest.approx(expected.value)
    assert (ranking.lead.low, ranking.lead.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_what_is_not_shown_to_be_slower_is_equal() -> None:
    near = (199.0, 204.0, 196.0, 200.0)
    (ranking,) = rank_launches([launches("pytorch/ddp", FAST), launches("jax/pmap", near), launches("keras/jax", SLOW)])
    assert ranking.winner is None
    assert [place.name for place in ranking.equals] == ["jax/pmap"]
    assert ranking.verdict == "no difference shown"


def test_one_launch_each_ranks_without_a_verdict_and_with_an_endless_interval() -> None:
    (ranking,) = rank_launches([launches("pytorch/ddp", FAST[:1]), launches("jax/pmap", SLOW[:1])])
    assert (ranking.winner, ranking.verdict) == (None, "too few launches")
    assert ranking.lead is not None
    assert ranking.lead.value == 2.0
    assert math.isinf(ranking.lead.low)
    assert math.isinf(ranking.lead.high)


def test_other_batches_ranks_and_networks_are_other_rankings() -> None:
    cases = [
        launches("pytorch/ddp", FAST), launches("pytorch/ddp", FAST, batch=16), launches("pytorch/ddp", FAST, ranks=4),
        launches("pytorch/ddp", FAST, network="alexnet"), launches("jax/pmap", SLOW), launches("jax/pmap", ()),
    ]  # fmt: skip
    rankings = rank_launches(cases)
    assert [len(ranking.places) for ranking in rankings] == [2, 1, 1, 1]
    assert rankings[0].label == "lenet, batch 8 x 2 ranks"
    assert rankings[1].lead is None
    assert rankings[1].verdict == ""


def test_on_one_rank_strategies_of_a_framework_do_not_compete() -> None:
    cases = [launches("pytorch/ddp", SLOW, ranks=1), launches("pytorch/ddp", FAST, ranks=1, strategy="large buckets")]
    (ranking,) = rank_launches(cases)
    assert [place.throughput.value for place in ranking.places] == [pytest.approx(100.25)]
    (both,) = rank_launches([launches("pytorch/ddp", SLOW), launches("pytorch/ddp", FAST, strategy="large buckets")])
    assert len(both.places) == 2


def test_bounds_of_an_inverse() -> None:
    assert [_inverse(bound) for bound in (4.0, 0.5, 0.0, -math.inf, math.inf)] == [
        0.25,
        2.0,
        math.inf,
        math.inf,
        -math.inf,
    ]


def test_the_label_says_what_is_not_usual() -> None:
    plain, far = rank_launches(
        [launches("pytorch/ddp", FAST, ranks=1), launches("pytorch/ddp", FAST, cluster="rack", input="files", batch=4)]
    )
    assert plain.label == "lenet, batch 8 x 1 rank"
    assert far.label == "lenet, batch 4 x 2 ranks, rack, files input"
    assert plain.winner is None, "nobody wins alone"


def test_the_interval_of_a_contender_knows_after_which_launch_it_could_stop() -> None:
    rates = (150.0, 250.0, 199.0, 200.0, 201.0, 200.0)
    (fixed,), (adaptive,) = (
        rank_launches([launches("pytorch/ddp", rates, **more)])[0].places for more in ({}, {"pilot": 2})
    )
    assert adaptive.throughput.width > 1.5 * fixed.throughput.width


def test_contenders_are_paired_by_round() -> None:
    noisy = (100.0, 140.0, 80.0, 120.0)
    better = tuple(rate * 1.02 for rate in noisy)
    (ranking,) = rank_launches([launches("jax/pmap", noisy), launches("pytorch/ddp", better)])
    assert ranking.winner is not None
    assert ranking.places[1].behind is not None
    assert ranking.places[1].behind.num_pairs == 4
    assert ranking.lead is not None
    assert ranking.lead.value == pytest.approx(1.02)
