"""Bounds of the replay: who is replayed one by one, what waits for what, and what takes how long without stragglers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from paceline.explain.replay import Replay, replay
from paceline.measurements.foreign.operations import read_operations
from paceline.report.terminal.watched import replay_lines
from tests.unit.imports.test_replay import _write

F = 0.010
Row = tuple[object, ...]


def replayed(path: Path, *rows: tuple[int, str, float, float]) -> Replay:
    """Operations of ranks of one stage, by rank, kind, begin and end."""
    full: list[Row] = [
        (rank, 0, kind, number, begin, end, 0, 0 if "compute" in kind else -1)
        for number, (rank, kind, begin, end) in enumerate(rows)
    ]
    return replay(read_operations(_write(path / "p.parquet", full, 1)))


@pytest.mark.parametrize(("ranks", "told"), [(256, 256), (257, 256)])
def test_up_to_256_ranks_are_replayed_one_by_one(tmp_path: Path, ranks: int, told: int) -> None:
    found = replayed(tmp_path, *((rank, "forward-compute", 0.0, F) for rank in range(ranks)))
    assert (len(found.by_rank), len(found.by_dp_rank), len(found.by_stage)) == (told, ranks, 1)


def test_without_stragglers_a_computation_takes_the_mean_and_an_exchange_the_median(tmp_path: Path) -> None:
    ends = (0.002, 0.003, 0.010)
    rows = [(rank, "forward-compute", 0.0, F + 0.003 * rank) for rank in range(3)]
    rows += [(rank, "grads-reduce-scatter", F + 0.003 * rank, F + 0.006 + end) for rank, end in enumerate(ends)]
    found = replayed(tmp_path, *rows)
    assert found.replayed_s == pytest.approx(F + 0.006 + 0.010)
    assert found.ideal_s == pytest.approx(F + 0.003 + 0.003)
    assert found.slowdown == pytest.approx(found.replayed_s / found.ideal_s)
    assert replace(found, ideal_s=0.0).slowdown == 1.0


@pytest.mark.parametrize(
    ("kind", "begin", "expected"),
    [
        ("forward-compute", 0.0500, 0.0504 + F),  # within half a millisecond of the end of the gather
        ("forward-compute", 0.0498, 0.0504),  # it had begun before
        ("backward-compute", 0.0504, 0.0504),
    ],
    ids=["after", "beside", "backward"],
)
def test_a_forward_pass_waits_for_the_gather_that_had_ended(
    tmp_path: Path, kind: str, begin: float, expected: float
) -> None:
    found = replayed(tmp_path, (0, "params-all-gather", 0.0, 0.0504), (0, kind, begin, begin + F))
    assert found.replayed_s == pytest.approx(expected)


def test_an_exchange_waits_for_the_computation_before_it(tmp_path: Path) -> None:
    rows = (0, "backward-compute", 0.0, F), (0, "grads-reduce-scatter", F + 0.02, F + 0.03)
    assert replayed(tmp_path, *rows).replayed_s == pytest.approx(F + 0.01), "the pause between them is gone"


@pytest.mark.parametrize(
    ("stages", "ranks", "replicas", "blamed"),
    [
        ((1.0301,), (1.0,), (1.0,), ("stage", "0")),
        ((1.0299,), (1.0,), (1.0,), None),
        ((1.0,), (1.0,), (1.0301, 1.0), ("data-parallel rank", "0")),
        ((1.0,), (1.0,), (1.0299, 1.0), None),
        ((1.05,), (1.0,), (1.051, 1.0), ("data-parallel rank", "0")),
        ((1.05, 1.0), (1.0,), (1.049, 1.0), ("stage", "0")),
        ((1.28,), (1.28, 1.0), (1.28, 1.0), ("data-parallel rank", "0")),  # the only stage is that of every rank
        ((1.28,), (1.2, 1.2), (1.2, 1.2), None),
        ((1.0,), (1.0,), (1.1, 1.051), None),  # the second is half of the first
        ((1.0,), (1.0,), (1.1, 1.049), ("data-parallel rank", "0")),
        ((1.10, 1.0), (1.091, 1.0), (1.0, 1.0), ("rank", "0")),  # nine tenths of its stage
        ((1.10, 1.0), (1.089, 1.0), (1.0, 1.0), ("stage", "0")),
        ((1.0, 1.0), (1.0301, 1.0), (1.0, 1.0), ("rank", "0")),
        ((1.0,), (1.0299, 1.0), (1.0, 1.0), None),
        ((1.02,), (1.025, 1.0), (1.0, 1.0), None),
        ((1.10, 1.0), (1.2, 1.0), (1.0,), ("stage", "0")),  # without replicas a rank is its stage
        ((1.10, 1.0), (1.2, 1.11), (1.0, 1.0), ("stage", "0")),
        ((1.10,), (1.2, 1.0), (1.2, 1.0), ("data-parallel rank", "0")),  # and without stages it is its replica
        ((1.10, 1.0), (1.2, 1.09), (1.0, 1.0), ("rank", "0")),
    ],
)
def test_who_is_blamed_at_the_bounds(
    stages: tuple[float, ...], ranks: tuple[float, ...], replicas: tuple[float, ...], blamed: tuple[str, str] | None
) -> None:
    by = [{str(number): value for number, value in enumerate(group)} for group in (stages, ranks, replicas)]
    assert Replay(1, 1.1, 1.1, 1.0, *by, {}).blame == blamed


@pytest.mark.parametrize(
    ("replayed", "stages", "blamed"),
    [
        (1.0299, (1.1, 1.06), None),
        (1.0301, (1.1, 1.06), ("stage", "0")),
        (1.0299, (1.1, 1.04), ("stage", "0")),  # unlike the others, although little of the step is lost
    ],
)
def test_slow_steps_of_everybody_blame_nobody(
    replayed: float, stages: tuple[float, float], blamed: tuple[str, str] | None
) -> None:
    by_stage = {str(number): value for number, value in enumerate(stages)}
    assert Replay(1, replayed, replayed, 1.0, by_stage, {"0": 1.0}, {"0": 1.0}, {}).blame == blamed


@pytest.mark.parametrize(
    ("slow", "steps", "blame"),
    [
        ((1.04, 1.04, 1.04, 1.04, 1.04, 1.04), 6, ("stage", "1")),
        ((1.08, 1.0, 1.07, 1.0, 1.09, 1.01), 6, None),
        ((1.08, 1.0, 1.07), 3, ("stage", "1")),
    ],
    ids=["in every step", "in some, as others in others", "in few steps"],
)
def test_a_stage_that_is_first_by_chance_is_not_named(
    slow: tuple[float, ...], steps: int, blame: tuple[str, str] | None
) -> None:
    """Its mean is above the others', which are slow in other steps; nothing stands out."""
    each = {str(n): {"by_stage": {"1": value, "0": 1.045 - (value - 1.0), "2": 1.03}, "by_dp_rank": {"0": 1.01}}
            for n, value in enumerate(slow)}  # fmt: skip
    means = {key: fmean(step["by_stage"][key] for step in each.values()) for key in ("1", "2", "0")}
    means["0"] = min(means["0"], means["1"])
    found = Replay(steps, 1.1, 1.1, 1.0, by_stage=means, by_rank={}, by_dp_rank={"0": 1.01}, by_kind={}, by_step=each)
    assert found.blame == blame


def stepwise(*effects: float, replayed: float = 1.2, **given: Any) -> Replay:
    """A job of two stages whose first one lengthens each step by this much, and by their mean all of them."""
    by_step = {
        str(number): {"by_stage": {"0": 1 + effect, "1": 1.0}, "by_dp_rank": {"0": 1.0}, "ideal_s": 1.0,
                      "replayed_s": 1 + effect, "measured_s": 2.0}
        for number, effect in enumerate(effects, start=1)
    }  # fmt: skip
    found = Replay(len(effects), 2.0, replayed, 1.0, {"0": 1.2, "1": 1.0}, {"0": 1.2, "1": 1.0}, {"0": 1.0},
                   {"forward-compute": 1.2}, by_step=by_step)  # fmt: skip
    return replace(found, **given)


@pytest.mark.parametrize(
    ("effects", "slow", "since", "pattern"),
    [
        ((0.125, 0.25, 0.1875, 0.25), (2, 3, 4), 2, "persistent"),  # more than half of the largest
        ((0.25, 0.125, 0.125, 0.125, 0.125), (1,), None, "transient"),
        ((0.0, 0.0, 0.0, 0.0, 0.2), (5,), 5, "transient"),  # one step tells nothing of the next
        ((0.0, 0.2, 0.2, 0.2, 0.2), (2, 3, 4, 5), None, "persistent"),  # four of five are most of them
        ((0.2, 0.0, 0.2, 0.0, 0.2), (1, 3, 5), None, "transient"),
        ((0.0, 0.0, 0.2, 0.0, 0.2), (3, 5), None, "transient"),
    ],
)
def test_a_cause_acts_in_the_steps_with_more_than_half_of_its_largest_effect(
    effects: tuple[float, ...], slow: tuple[int, ...], since: int | None, pattern: str
) -> None:
    found = stepwise(*effects)
    assert (found.blame, found.slow_steps) == (("stage", "0"), slow)
    assert (found.since, found.pattern) == (since, pattern)
    assert found.document["slow_steps"] == list(slow)


def test_the_effect_of_a_rank_is_no_more_than_that_of_its_stage_or_its_replica() -> None:
    found = stepwise(0.2, 0.2, by_dp_rank={"0": 1.2, "1": 1.0})
    assert found.blame == ("rank", "0")
    found.by_step["1"]["by_dp_rank"] = {"0": 1.01, "1": 1.0}
    found.by_step["2"]["by_dp_rank"] = {"0": 1.15, "1": 1.0}
    assert found.slow_steps == (2,), "in the first step its replica was as fast as the other"


def test_the_cost_is_that_of_stragglers_and_not_of_delays() -> None:
    cost = stepwise(0.25, 0.25, 0.25, replayed=1.25).cost
    assert (cost.low, cost.value, cost.high) == pytest.approx((0.2, 0.2, 0.2)), "a step took 2 s by the clock"
    assert stepwise(0.25, 0.25, replayed=0.9).cost.value == 0.0
    wide = stepwise(0.1, 0.4, replayed=1.25).cost
    assert 0.0 <= wide.low < wide.value < wide.high


def test_unequal_micro_batches_are_blamed_only_where_forward_and_backward_agree() -> None:
    uneven = stepwise(0.2, 0.2, even_s=1.05, lengths=0.9)
    assert uneven.blame == ("micro-batches", "1.150")
    assert replace(uneven, lengths=0.89).blame == ("stage", "0")
    assert replace(uneven, even_s=1.15).blame == ("stage", "0"), "equal micro-batches would not help"
    assert replace(uneven, even_s=0.0).blame == ("stage", "0"), "stored before it was computed"
    none = replace(uneven, replayed_s=1.02, by_stage={"0": 1.02, "1": 1.015})
    assert none.blame is None, "a step as long as without stragglers"


def test_what_the_replay_says_in_words() -> None:
    delays = {"by_stage": {"0": 1.5, "1": 1.0}, "by_dp_rank": {"0": 1.25}, "by_kind": {"first-op": 1.125}}
    found = stepwise(0.25, 0.25, 0.25, replayed=1.25, delays=delays)
    text = "\n".join(replay_lines(found.document))
    assert (
        "a step takes 2.000 s; replayed without delays between operations 1.250 s, without stragglers 1.000 s" in text
    )
    assert "stragglers cost 20.0 % of the time, 4.80 h of every day" in text
    assert "delays between operations cost 37.5 % of the time" in text
    assert "by the delays of stage 0 1.500 x, data-parallel rank 0 1.250 x, operation first-op 1.125 x" in text
    blamed = "first cause: stage 0 alone makes the step 1.20 times as long, mostly by forward-compute, in all steps"
    assert f"{blamed} (persistent); give it fewer layers" in text
    link = replace(found, by_kind={"forward-pp-comm": 1.2})
    assert "(persistent); look at the links that it uses" in "\n".join(replay_lines(link.document))
    apart = "\n".join(replay_lines(replace(found, clock_s=0.0021).document))
    assert "the clocks of the ranks differ by about 2.10 ms" in apart
    assert "first cause" not in apart, "otherwise the slow rank is not known"
    late = stepwise(0.0, 0.25, 0.25, 0.25)
    assert "since step 2 (persistent)" in "\n".join(replay_lines(late.document))
