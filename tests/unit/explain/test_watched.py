"""Verdicts on generated steps with known causes: what is named, since when, at what cost, and what is not named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from paceline.explain import watched
from paceline.explain.setting import Setting
from paceline.explain.watched import FEWEST_STEPS, StepCause, StepVerdict, judge_steps
from paceline.measurements.summary import Interval
from paceline.measurements.trace.observed import ObservedStep
from paceline.report.terminal.watched import advice_for, title_of, verdict_document, verdict_lines

USUAL = {"io": 0.001, "forward": 0.03, "backward": 0.06, "update": 0.004}
EXCHANGE = 0.006
Plant = Callable[[int, int], dict[str, float]]
"""By rank and step, the seconds added to each phase."""


def train(
    plant: Plant = lambda rank, step: {}, *, ranks: int = 2, steps: int = 200, noise: float = 0.03, seed: int = 0
) -> list[ObservedStep]:
    """Synchronous steps: every rank waits for the slowest one in the exchange."""
    chance = np.random.default_rng(seed)
    found = []
    for step in range(steps):
        own = []
        for rank in range(ranks):
            added = plant(rank, step)
            own.append(
                {name: s * (1 + noise * chance.standard_normal()) + added.get(name, 0.0) for name, s in USUAL.items()}
            )
            own[-1]["other"] = 0.001 + added.get("other", 0.0)
        slowest = max(sum(phases.values()) for phases in own)
        for rank, phases in enumerate(own):
            wait = EXCHANGE + slowest - sum(phases.values())
            known = {name: value for name, value in phases.items() if name != "other"}
            found.append(ObservedStep(rank, step, 0.1 * step, slowest + EXCHANGE, {**known, "aggregate": wait}))
    return found


def mean_step(steps: list[ObservedStep]) -> float:
    return float(np.mean([step.seconds for step in steps]))


def first(judgement: StepVerdict) -> StepCause:
    assert judgement.causes, judgement
    return judgement.causes[0]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_calm_run_has_no_cause(ranks: int, seed: int) -> None:
    judgement = judge_steps(train(ranks=ranks, seed=seed))
    assert judgement.causes == ()
    assert judgement.num_steps == 200
    assert sum(judgement.shares.values()) == pytest.approx(1, abs=1e-6)
    assert judgement.waiting < 0.06 * (ranks > 1) + 1e-9


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("phase", ["forward", "backward", "update", "io", "other"])
def test_a_rank_that_becomes_slow_is_named_with_its_step_and_phase(phase: str, seed: int) -> None:
    steps = train(lambda rank, step: {phase: 0.03} if rank == 1 and step >= 100 else {}, seed=seed)
    judgement = judge_steps(steps)
    cause = first(judgement)
    assert (cause.kind, cause.rank, cause.phase, cause.until) == ("slow_rank", 1, phase, None)
    assert cause.since is not None
    assert abs(cause.since - 100) <= 1
    assert cause.pattern == "persistent"
    assert cause.share.value == pytest.approx(0.5 * 0.03 / mean_step(steps), rel=0.15)
    assert cause.share.low <= cause.share.value <= cause.share.high
    assert len(judgement.causes) == 1


@pytest.mark.parametrize(("begin", "end"), [(150, 200), (60, 100)])
@pytest.mark.parametrize("rank", [1, None])
def test_without_noise_shares_and_steps_are_exact(begin: int, end: int, rank: int | None) -> None:
    slow = (0, 1) if rank is None else (rank,)
    steps = train(lambda one, n: {"backward": 0.05} if begin <= n < end and one in slow else {}, noise=0.0)
    cause = first(judge_steps(steps))
    assert (cause.kind, cause.rank, cause.phase) == ("slowdown" if rank is None else "slow_rank", rank, "backward")
    assert (cause.since, cause.until, cause.count) == (begin, None if end == 200 else end - 1, end - begin)
    expected = pytest.approx((end - begin) / 200 * 0.05 / mean_step(steps), rel=1e-6)
    assert (cause.share.low, cause.share.value, cause.share.high) == (expected, expected, expected)


def test_a_rank_that_is_always_slow_is_persistent_from_the_beginning() -> None:
    cause = first(judge_steps(train(lambda rank, step: {"backward": 0.02} if rank == 3 else {}, ranks=4)))
    assert (cause.kind, cause.rank, cause.phase, cause.since, cause.until) == ("slow_rank", 3, "backward", None, None)


@pytest.mark.parametrize(("slow", "ranks", "begin"), [((3, 5), 8, 0), ((2, 3), 4, 100), (tuple(range(8, 16)), 64, 0)])
def test_ranks_that_are_slow_alike_are_named_together(slow: tuple[int, ...], ranks: int, begin: int) -> None:
    """As those of one slow host: mending one of them alone would not shorten a step."""
    steps = train(lambda rank, n: {"backward": 0.03} if rank in slow and n >= begin else {}, ranks=ranks)
    (cause,) = judge_steps(steps).causes
    assert (cause.kind, cause.rank, cause.ranks, cause.phase) == ("slow_rank", slow[0], slow, "backward")
    assert title_of(cause).startswith(f"ranks {', '.join(map(str, slow))} hold up the others, mostly in backward")
    assert f"the host of ranks {slow[0]}" in advice_for(cause)


@pytest.mark.parametrize(("ranks", "rank", "kind"), [((0, 1), None, "slowdown"), ((1,), 1, "slow_rank")])
def test_a_slowdown_that_grows_is_one_cause_since_its_begin(
    ranks: tuple[int, ...], rank: int | None, kind: str
) -> None:
    """As memory that fragments or a device that heats up: it does not end where it becomes worse."""
    steps = train(lambda one, n: {"backward": 0.0008 * max(0, n - 50)} if one in ranks else {})
    (cause,) = judge_steps(steps).causes
    assert (cause.kind, cause.rank, cause.until, cause.pattern) == (kind, rank, None, "persistent")
    assert 50 <= (cause.since or 0) <= 80


def test_ranks_that_are_slow_one_after_the_other_are_named_one_by_one() -> None:
    slow = lambda rank, n: {"backward": 0.03} if rank == (3 if n < 100 else 5) else {}  # noqa: E731
    assert {(cause.rank, cause.ranks) for cause in judge_steps(train(slow, ranks=8)).causes} == {(3, ()), (5, ())}


def test_a_rank_that_recovers_is_transient() -> None:
    cause = first(judge_steps(train(lambda rank, step: {"forward": 0.05} if rank == 0 and 60 <= step < 120 else {})))
    assert (cause.rank, cause.pattern) == (0, "transient")
    assert cause.since is not None
    assert cause.until is not None
    assert abs(cause.since - 60) <= 1
    assert abs(cause.until - 119) <= 1


def test_a_short_stretch_of_slow_steps_has_an_interval() -> None:
    cause = first(judge_steps(train(lambda rank, step: {"forward": 0.3} if rank == 0 and 60 <= step < 69 else {})))
    assert (cause.rank, cause.since, cause.until, cause.count) == (0, 60, 68, 9)
    assert 0 < cause.share.low < cause.share.value < cause.share.high


@pytest.mark.parametrize("seed", range(5))
def test_irregular_stalls_in_every_phase_are_one_cause(seed: int) -> None:
    chance = np.random.default_rng(seed)
    struck = {step: chance.choice(["forward", "backward", "update", "io"]) for step in chance.choice(200, 60, False)}
    steps = train(lambda rank, step: {struck[step]: 0.15} if step in struck else {}, seed=seed)
    judgement = judge_steps(steps)
    assert (first(judgement).kind, first(judgement).phase) == ("stalls", "any")
    assert first(judgement).share.value == pytest.approx(60 * 0.15 / 200 / mean_step(steps), rel=0.1)
    assert len(judgement.causes) == 1


@pytest.mark.parametrize("seed", range(5))
def test_an_input_stall_in_every_tenth_step_is_found_with_its_period(seed: int) -> None:
    steps = train(lambda rank, step: {"io": 0.2} if step % 10 == 0 else {}, seed=seed)
    judgement = judge_steps(steps)
    cause = first(judgement)
    assert (cause.kind, cause.phase, cause.rank, cause.every) == ("stalls", "io", None, 10)
    assert cause.share.value == pytest.approx(0.02 / mean_step(steps), rel=0.1)
    assert cause.pattern == "transient"
    assert len(judgement.causes) == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_period_is_found_among_irregular_stalls(seed: int) -> None:
    """As of a script that sleeps after every tenth batch, on a machine with other load."""
    chance = np.random.default_rng(seed)
    others = set(chance.choice(200, 20, replace=False).tolist())

    def plant(rank: int, step: int) -> dict[str, float]:
        return {"other": 0.2 * (step % 10 == 3) + 0.1 * (step in others)}

    judgement = judge_steps(train(plant, ranks=1, seed=seed))
    assert (first(judgement).kind, first(judgement).phase, first(judgement).every) == ("stalls", "other", 10)
    assert first(judgement).since == 3


def test_a_period_that_begins_anew_with_each_epoch_is_found() -> None:
    judgement = judge_steps(
        train(lambda rank, step: {"other": 0.2} if step % 125 % 10 == 0 else {}, ranks=1, steps=250)
    )
    assert (first(judgement).kind, first(judgement).every, first(judgement).count) == ("stalls", 10, 26)


def test_stalls_of_most_steps_are_not_transient() -> None:
    struck = np.random.default_rng(0).choice(["forward", "backward", "update", "io", ""], 200, p=[0.18] * 4 + [0.28])
    judgement = judge_steps(train(lambda rank, step: {struck[step]: 0.2} if struck[step] else {}))
    assert first(judgement).phase == "any"
    assert first(judgement).count > 100
    assert first(judgement).pattern == "persistent"


def test_stalls_of_one_rank_name_it() -> None:
    often = (11, 19, 31, 46, 59, 77, 90, 101, 118, 139, 150, 167, 188)
    cause = first(judge_steps(train(lambda rank, step: {"update": 0.3} if rank == 1 and step in often else {})))
    assert (cause.kind, cause.phase, cause.rank, cause.every, cause.count) == ("stalls", "update", 1, None, 13)
    assert cause.since == 11


def test_three_long_steps_may_be_chance() -> None:
    assert judge_steps(train(lambda rank, step: {"forward": 0.3} if step in (31, 77, 150) else {})).causes == ()


def test_all_ranks_slower_from_a_step_on() -> None:
    cause = first(judge_steps(train(lambda rank, step: {"backward": 0.03} if step >= 80 else {})))
    assert (cause.kind, cause.phase, cause.rank) == ("slowdown", "backward", None)
    assert cause.since is not None
    assert abs(cause.since - 80) <= 1


def test_one_rank_alone_becomes_slower() -> None:
    cause = first(judge_steps(train(lambda rank, step: {"forward": 0.02} if step >= 120 else {}, ranks=1)))
    assert (cause.kind, cause.phase, cause.rank) == ("slowdown", "forward", 0)


@pytest.mark.parametrize(("phase", "kind"), [("io", "io"), ("other", "other")])
def test_what_every_step_waits_for(phase: str, kind: str) -> None:
    judgement = judge_steps(train(lambda rank, step: {phase: 0.04}))
    assert first(judgement).kind == kind
    assert first(judgement).share.value == pytest.approx(0.041 / judgement.step_s, rel=0.1)


def test_an_exchange_that_is_not_waiting_is_a_cause_of_its_own() -> None:
    slow = [
        replace(step, seconds=step.seconds + 0.05, phases={**step.phases, "aggregate": 0.05 + step.phases["aggregate"]})
        for step in train()
    ]
    assert first(judge_steps(slow)).kind == "aggregate"


def test_garbage_collection_counts_from_three_percent() -> None:
    assert first(judge_steps(train(), Setting(collecting=0.05))).kind == "collections"
    assert judge_steps(train(), Setting(collecting=0.02)).causes == ()


def test_stalls_of_one_moment_may_be_chance_and_are_not_named() -> None:
    def at(*places: int) -> set[str]:
        steps = train(lambda rank, step: {"forward": 0.5} if step in places else {})
        return {cause.kind for cause in judge_steps(steps).causes}

    assert at(10, 13, 17) == set()
    assert at(*range(5, 200, 13)) == {"stalls"}


def test_too_few_steps_have_no_verdict_and_say_so() -> None:
    judgement = judge_steps(train(lambda rank, step: {"io": 0.5}, steps=FEWEST_STEPS - 1))
    assert judgement.causes == ()
    assert "too few" in judgement.why_not
    assert any("too few" in line for line in verdict_lines(judgement, "run"))
    assert not judge_steps(train(steps=FEWEST_STEPS)).why_not
    assert judge_steps([]).num_steps == 0


def test_steps_that_a_rank_lacks_are_left_out() -> None:
    steps = [step for step in train() if not (step.rank == 1 and step.step >= 150)]
    assert judge_steps(steps).num_steps == 150


def test_the_words_name_rank_step_cost_and_advice() -> None:
    judgement = judge_steps(train(lambda rank, step: {"backward": 0.03} if rank == 1 and step >= 100 else {}))
    text = "\n".join(verdict_lines(judgement, "mine-1"))
    assert "rank 1 holds up the others, mostly in backward, since step 100 (persistent)" in text
    assert "of every day" in text
    assert "do: look at" in text
    document = verdict_document(judgement, "mine-1", "")
    assert document["causes"][0]["since"] == 100
    low, high = document["causes"][0]["interval"]
    assert low < document["causes"][0]["share"] < high
    cause = replace(judgement.causes[0], share=Interval(0.25, -0.1, 1.2), ranks=tuple(range(8)))
    text = "\n".join(verdict_lines(replace(judgement, causes=(cause,)), "mine-1"))
    assert "costs 25.0 % of the time (95 %: 0.0 % to 100.0 %), 6.00 h of every day" in text
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 7 hold up the others" in text, "eight are named, more are not"
    crowd = replace(judgement, causes=(replace(cause, ranks=tuple(range(9))),))
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 7 ... hold" in "\n".join(verdict_lines(crowd, "mine-1"))
    assert verdict_document(None, "", "why") == {"campaign": None, "note": "why"}


# Thresholds, on steps without noise: 0.102 s, of which 0.096 s are work.


def kinds(plant: Plant, setting: Setting | None = None, *, exchange: float = 0.0) -> list[str]:
    steps = [
        replace(
            step,
            seconds=step.seconds + exchange,
            phases={**step.phases, "aggregate": step.phases["aggregate"] + exchange},
        )
        for step in train(plant, noise=0.0)
    ]
    return [cause.kind for cause in judge_steps(steps, setting).causes]


@pytest.mark.parametrize(
    ("phase", "below", "above", "kind"),
    [
        ("io", 0.0042, 0.0044, "io"),  # (0.001 + x) / (0.102 + x) = 5 %
        ("other", 0.0101, 0.0104, "other"),  # (0.001 + x) / (0.102 + x) = 10 %
        ("update", 0.0121, 0.0124, "batch"),  # (0.004 + x) / (0.096 + x) = 15 %
    ],
)
def test_a_phase_of_every_step_is_a_cause_from_its_share_on(phase: str, below: float, above: float, kind: str) -> None:
    assert kinds(lambda rank, step: {phase: below}) == []
    assert kinds(lambda rank, step: {phase: above}) == [kind]


def test_an_exchange_is_a_cause_from_a_fifth_of_the_step_on() -> None:
    assert kinds(lambda rank, step: {}, exchange=0.0178) == []  # (0.006 + x) / (0.102 + x) = 20 %
    assert kinds(lambda rank, step: {}, exchange=0.0182) == ["aggregate"]


def test_a_rank_is_slow_from_three_percent_of_the_step_on() -> None:
    assert kinds(lambda rank, step: {"forward": 0.0031 * rank}) == []  # x / (0.102 + x) = 3 %
    assert kinds(lambda rank, step: {"forward": 0.0032 * rank}) == ["slow_rank"]


def test_all_ranks_are_slower_from_eight_percent_of_their_work_on() -> None:
    assert kinds(lambda rank, step: {"forward": 0.0076 * (step >= 100)}) == []  # 8 % of 0.096
    assert kinds(lambda rank, step: {"forward": 0.0078 * (step >= 100)}) == ["slowdown"]


def test_a_stall_adds_at_least_three_tenths_of_a_mean_step_and_is_no_more_than_a_third_of_the_steps() -> None:
    assert kinds(lambda rank, step: {"forward": 0.0326 * (step % 4 == 1)}) == []  # x = 0.3 (0.102 + x / 4)
    assert kinds(lambda rank, step: {"forward": 0.0336 * (step % 4 == 1)}) == ["stalls"]
    assert kinds(lambda rank, step: {"forward": 0.2 * (step % 3 == 1)}) == ["stalls"]
    assert kinds(lambda rank, step: {"forward": 0.2 * (step % 2 == 1)}) == []


@pytest.mark.parametrize(("seconds", "kind"), [(0.119, "stalls"), (0.121, "collections")])
def test_garbage_collection_explains_stalls_from_six_tenths_of_them_on(seconds: float, kind: str) -> None:
    collected = dict.fromkeys(range(0, 200, 10), seconds)
    assert kinds(lambda rank, step: {"io": 0.2 * (step % 10 == 0)}, Setting(collected=collected)) == [kind]


def test_too_many_threads_come_first_from_three_for_two_cores_on() -> None:
    assert kinds(lambda rank, step: {"io": 0.3}, Setting(crowding=1.49)) == ["io"]
    assert kinds(lambda rank, step: {"io": 0.3}, Setting(crowding=1.5)) == ["threads", "io"]


def test_what_a_setting_costs_is_what_every_rank_has_in_every_step() -> None:
    steps = train(lambda rank, step: {"update": 0.02 + 0.01 * (rank == 1) * (step % 2)}, noise=0.0)
    (found,) = [cause for cause in judge_steps(steps).causes if cause.kind == "batch"]
    assert (found.count, found.since, found.until, found.rank) == (200, None, None, None)
    # 0.024 s of update and 0.006 s of exchange; steps of 0.122 and 0.132 s.
    assert found.share.value == pytest.approx(0.03 / 0.127)
    (crowd,) = [cause for cause in judge_steps(steps, Setting(crowding=2.0)).causes if cause.kind == "threads"]
    assert (crowd.count, crowd.share.value) == (200, pytest.approx(0.09 / 0.127))


def test_the_others_wait_for_a_rank_as_long_as_the_slowest_of_them_does() -> None:
    steps = train(lambda rank, step: {"forward": (0.0, 0.03, 0.05)[rank]}, ranks=3, noise=0.0)
    (cause,) = [one for one in judge_steps(steps).causes if one.kind == "slow_rank"]
    assert (cause.rank, cause.share.value) == (2, pytest.approx(0.02 / mean_step(steps)))


def exchanged(seconds: Callable[[int], float], *, seed: int = 0) -> list[ObservedStep]:
    """Steps in which the exchange that nothing hides takes so long on every rank."""
    return [
        replace(one, seconds=one.seconds + seconds(one.step),
                phases={**one.phases, "aggregate": one.phases["aggregate"] + seconds(one.step)})
        for one in train(ranks=4, seed=seed)
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("begin", "end", "since", "until"), [(80, 200, 80, None), (0, 70, None, 69), (50, 120, 50, 119)]
)
def test_an_exchange_that_becomes_slow_is_named_with_its_steps(
    begin: int, end: int, since: int | None, until: int | None, seed: int
) -> None:
    steps = exchanged(lambda step: 0.03 if begin <= step < end else 0.0, seed=seed)
    judgement = judge_steps(steps)
    (cause,) = judgement.causes
    assert (cause.kind, cause.rank) == ("aggregate", None)
    for found, planted in ((cause.since, since), (cause.until, until)):
        assert (found is None) == (planted is None)
        assert abs((found or 0) - (planted or 0)) <= 1
    assert cause.share.value == pytest.approx(0.03 * (end - begin) / 200 / mean_step(steps), rel=0.15)


@pytest.mark.parametrize("seed", range(4))
def test_an_exchange_that_compute_no_longer_hides_is_no_slow_link(seed: int) -> None:
    """Each step takes as long as before: what backward lost, the exchange shows."""
    steps = [
        replace(one, phases={**one.phases, "backward": one.phases["backward"] - 0.02,
                             "aggregate": one.phases["aggregate"] + 0.02}) if one.step >= 100 else one
        for one in train(ranks=4, seed=seed)
    ]  # fmt: skip
    assert all(cause.since is None for cause in judge_steps(steps).causes)


def test_single_long_exchanges_are_stalls() -> None:
    judgement = judge_steps(exchanged(lambda step: 0.1 if step % 20 == 7 else 0.0))
    (cause,) = judgement.causes
    assert (cause.kind, cause.phase, cause.every, cause.since) == ("stalls", "aggregate", 20, 7)
    assert "link" in advice_for(cause)


def test_few_stalls_of_each_phase_are_one_cause() -> None:
    """Two in each of three phases: no phase has three."""
    places = {(0, 11): "forward", (1, 25): "forward", (0, 46): "backward", (1, 58): "backward", (0, 90): "update",
              (0, 131): "update"}  # fmt: skip
    judgement = judge_steps(train(lambda rank, step: {places[rank, step]: 0.6} if (rank, step) in places else {}))
    (cause,) = judgement.causes
    assert (cause.kind, cause.phase, cause.count, cause.since) == ("stalls", "any", 6, 11)
    fewer = dict(list(places.items())[:5])
    assert judge_steps(train(lambda r, s: {fewer[r, s]: 0.6} if (r, s) in fewer else {})).causes == ()


def test_ranks_that_are_slow_together_cost_what_the_slowest_of_them_does() -> None:
    """Ranks 2 and 3 of one host: every step waits for rank 3, and mending that alone would leave rank 2."""
    steps = train(lambda rank, step: {"forward": {2: 0.03, 3: 0.034}.get(rank, 0.0)}, ranks=4, noise=0.0)
    (cause,) = [one for one in judge_steps(steps).causes if one.kind == "slow_rank"]
    assert (cause.ranks, cause.share.value) == ((2, 3), pytest.approx(0.034 / mean_step(steps)))


def test_a_typical_step_is_the_median_and_as_long_as_on_its_slowest_rank() -> None:
    steps = train(lambda rank, step: {"other": 1.0} if step < 20 else {}, noise=0.0)
    judgement = judge_steps(steps)
    assert judgement.step_s == pytest.approx(0.102)
    assert mean_step(steps) > 0.19


def test_a_cause_whose_interval_begins_near_nothing_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        StepCause("slow_rank", "forward", 1, Interval(value, low, 0.2), None, None, count=100)
        for value, low in ((0.03, 0.015), (0.03, 0.0149), (0.0299, 0.015), (0.1, 0.0))
    ]
    monkeypatch.setattr(watched, "_slow_ranks", lambda series: found)
    assert judge_steps(train(noise=0.0)).causes == (found[0],)
