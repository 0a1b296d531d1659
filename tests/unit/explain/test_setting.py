"""What the setting of a watched training says about its causes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.explain.setting import Setting, exchange_reason, setting_of
from paceline.explain.watched import StepCause, judge_steps
from paceline.measurements.trace.observed import ObservedStep
from paceline.report.terminal.watched import advice_for, title_of, verdict_lines
from tests.unit.explain.test_watched import EXCHANGE, USUAL, first, train

MIB = 1024 * 1024
DDP = {"hosts": ["a", "a"], "ddp": {"find_unused_parameters": False, "unused": 0, "buckets": [MIB, 8 * MIB]}}


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (Setting(), "link"),
        (Setting(buckets=(MIB, 25 * MIB)), "link"),
        (Setting(buckets=(4096,) * 8), "buckets"),
        (Setting(buckets=(4096,) * 7), "link"),
        (Setting(buckets=(256 * 1024,) * 8), "link"),
        (Setting(buckets=(256 * 1024 - 1,) * 8), "buckets"),
        (Setting(buckets=(MIB,)), "overlap"),
        (Setting(buckets=(MIB - 1,)), "link"),
        (Setting(by_hand=True), "overlap"),
        (Setting(by_hand=True, served=True), "server"),
        (Setting(searches=True, buckets=(4096,) * 8), "unused"),
        (Setting(sharded=True), "shards"),
        (Setting(staged=True, sharded=True), "stages"),
    ],
)
def test_an_exposed_exchange_has_a_reason(setting: Setting, reason: str) -> None:
    assert exchange_reason(setting) == reason
    cause = first(judge_steps(exchanging(), setting))
    assert (cause.kind, cause.reason) == ("aggregate", reason)
    waits = {"shards": "exchanges: ranks gather", "stages": "other stages of the pipeline"}
    assert title_of(cause).startswith(f"the step waits for {waits.get(reason, 'the exchange of gradients')}")
    assert advice_for(cause)


def test_a_search_for_unused_parameters_is_named_where_the_exchange_is_small() -> None:
    """A twentieth of the step is exchange: nothing to name, unless a search that finds nothing is part of it."""
    assert judge_steps(train(), Setting()).causes == ()
    cause = first(judge_steps(train(), Setting(searches=True)))
    assert (cause.kind, cause.reason) == ("aggregate", "unused")
    assert 0.03 < cause.share.value < 0.1


def exchanging() -> list[ObservedStep]:
    """Steps of which a third is exchange."""
    return [
        replace(step, seconds=step.seconds + 0.05, phases={**step.phases, "aggregate": step.phases["aggregate"] + 0.05})
        for step in train()
    ]


def changed(**ddp: Any) -> dict[str, Any]:
    return {**DDP, "ddp": {**DDP["ddp"], **ddp}}  # type: ignore[dict-item]


def test_facts_of_a_run_are_its_setting() -> None:
    assert setting_of({}, 8, 2, 2) == Setting(), "an imported run says nothing"
    assert setting_of(DDP, 1, 2, 2) == Setting(buckets=(MIB, 8 * MIB), crowding=1.0)
    assert setting_of({**DDP, "hosts": ["a", "b"]}, 4, 2, 2).crowding == 2.0
    assert setting_of(DDP, None, 2, 2).crowding == 0.0
    assert setting_of(changed(find_unused_parameters=True), 1, 2, 2).searches
    assert not setting_of(changed(find_unused_parameters=True, unused=1), 1, 2, 2).searches, "the search is needed"
    assert setting_of({"hosts": ["a", "a"], "ddp": {}}, 1, 2, 2).by_hand
    assert not setting_of({"hosts": ["a"], "ddp": {}}, 1, 2, 1).by_hand, "one rank exchanges nothing"
    assert not setting_of({"hosts": ["a", "a"], "ddp": {}, "sharded": True}, 1, 2, 2).by_hand, (
        "FSDP exchanges by itself"
    )
    assert setting_of({"hosts": ["a", "a"], "ddp": {}, "sharded": True}, 1, 2, 2).sharded
    collected = setting_of({**DDP, "gc_share": 0.1, "gc_steps": [[12, 0.2]], "served": True}, 1, 2, 2)
    assert (collected.collecting, collected.collected, collected.served) == (0.1, {12: 0.2}, True)


def test_stalls_that_garbage_collection_explains_are_its_own() -> None:
    steps = train(lambda rank, step: {"other": 0.2} if step % 10 == 5 else {})
    pauses = dict.fromkeys(range(5, 200, 10), 0.2)
    assert first(judge_steps(steps)).kind == "stalls"
    judgement = judge_steps(steps, Setting(collecting=0.15, collected=pauses))
    (cause,) = judgement.causes
    assert (cause.kind, cause.every, cause.since) == ("collections", 10, 5)
    assert "every 10 steps" in title_of(cause)
    small = dict.fromkeys(pauses, 0.1)
    assert first(judge_steps(steps, Setting(collected=small))).kind == "stalls", "half of the stall is something else"


@pytest.mark.parametrize(("added", "kinds"), [(0.0, []), (0.010, []), (0.014, ["batch"])])
def test_an_update_that_is_long_beside_the_compute_asks_for_a_larger_batch(added: float, kinds: list[str]) -> None:
    judgement = judge_steps(train(lambda rank, step: {"update": added}))
    assert [cause.kind for cause in judgement.causes] == kinds
    if kinds:
        each = USUAL["update"] + added + EXCHANGE
        assert judgement.causes[0].share.value == pytest.approx(each / judgement.step_s, rel=0.1)


def test_more_threads_than_cores_come_first_at_an_unknown_cost() -> None:
    steps = train(lambda rank, step: {"io": 0.08})
    kinds = [cause.kind for cause in judge_steps(steps, Setting(crowding=1.5)).causes]
    assert kinds == ["threads", "io"]
    assert [cause.kind for cause in judge_steps(steps, Setting(crowding=1.49)).causes] == ["io"]
    lines = "\n".join(verdict_lines(judge_steps(steps, Setting(crowding=4.0)), "mine"))
    assert "costs an unknown part of the" in lines


def test_a_cause_without_a_reason_has_words() -> None:
    cause: StepCause = first(judge_steps(exchanging()))
    assert cause.reason == "link"
    assert "half precision" in advice_for(cause)
