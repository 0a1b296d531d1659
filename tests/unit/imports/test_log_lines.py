"""What the lines of a training log say together, by hand: facts, starts, and the seconds of steps."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.measurements.foreign import logs


def test_ranks_without_a_number_are_rank_zero() -> None:
    """Rank 1's counting from a former step begins anew; that of rank 0, with or without its number, does not."""
    steps = [logs.LoggedStep(step, rank) for rank, step in ((1, 5), (None, 3), (0, 4), (1, 6), (1, 2), (None, 1))]
    assert [step.start for step in logs._started(steps, set())] == [0, 0, 0, 0, 1, 1]
    assert [step.start for step in logs._started(steps, {2})] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"local": 8, "global": 128}, {"world": 16}),
        ({"local": 8, "accumulation": 2, "global": 128}, {"world": 8}),
        ({"local": 8, "accumulation": 2, "world": 4}, {"global": 64}),
        ({"local": 8, "global": 100}, {}),
        ({"local": 8, "global": 128, "world": 4}, {}),
        ({"accumulation": 2, "global": 128}, {}),
        ({"accumulation": 2, "world": 4}, {}),
        ({"local": 8}, {}),
    ],
)
def test_batches_and_devices_follow_from_each_other(facts: dict[str, int], found: dict[str, int]) -> None:
    known = dict(facts)
    logs._note_devices(known)
    assert known == {**facts, **found}


def test_the_first_sensible_fact_counts() -> None:
    facts: dict[str, int] = {}
    assert logs._note_facts("world size: 0", facts)
    assert logs._note_facts("global batch size: 0, sequence length: 512", facts)
    assert facts == {"sequence": 512}
    assert logs._note_facts("global batch size: 64, seq_len=1024, world_size=8", facts)
    assert facts == {"sequence": 512, "global": 64, "world": 8}
    assert not logs._note_facts("step: 3  loss: 1.0", facts)


def test_of_two_bars_the_longer_is_the_training() -> None:
    steps = [logs.LoggedStep(2, None, total=100), logs.LoggedStep(1, 0, total=100), logs.LoggedStep(1, None, total=5),
             logs.LoggedStep(1, 1, total=100), logs.LoggedStep(2, 0, seconds=7.0, total=100)]  # fmt: skip
    assert [(step.rank, step.step, step.seconds) for step in logs._once(steps)] == [
        (0, 1, None), (0, 2, 7.0), (1, 1, None)]  # fmt: skip
    assert logs._once([]) == []


@pytest.mark.parametrize(
    ("before", "after", "seconds"),
    [
        ({"step": 4, "at_s": 10.0}, {"step": 6, "at_s": 13.0}, 1.5),
        ({"step": 4, "at_s": 10.0}, {"step": 4, "at_s": 13.0}, None),
        ({"step": 5, "at_s": 10.0}, {"step": 4, "at_s": 13.0}, None),
        ({"step": 4}, {"step": 6, "at_s": 13.0}, None),
        ({"step": 4, "at_s": 10.0}, {"step": 6}, None),
        ({"step": 4, "at_s": 10.0, "rank": 1}, {"step": 6, "at_s": 13.0}, None),
        ({"step": 4, "at_s": 10.0}, {"step": 6, "at_s": 13.0, "start": 1}, None),
    ],
)
def test_seconds_between_two_lines(before: dict[str, Any], after: dict[str, Any], seconds: float | None) -> None:
    assert logs._from_times(logs.LoggedStep(**before), logs.LoggedStep(**after)) == seconds
    assert logs._from_times(None, logs.LoggedStep(**after)) is None


def test_what_a_line_says_counts_before_tokens_and_tokens_before_times() -> None:
    facts = {"sequence": 1000, "local": 4}
    lines = [logs.LoggedStep(1, at_s=0.0), logs.LoggedStep(2, at_s=9.0, tokens_per_s=2000.0),
             logs.LoggedStep(3, at_s=12.0), logs.LoggedStep(4, at_s=90.0, seconds=0.5, tokens_per_s=1.0)]  # fmt: skip
    assert [(step.step, step.seconds) for step in logs._timed(lines, facts)] == [(2, 2.0), (3, 3.0), (4, 0.5)]
    assert logs._timed([logs.LoggedStep(1, seconds=1e6), logs.LoggedStep(2, seconds=999_999.0)], {})[0].step == 2


@pytest.mark.parametrize(("mfu", "kept"), [((0.5, 1.0), (0.5, 1.0)), ((0.5, 1.01, None), (None, None, None))])
def test_no_share_of_the_peak_is_above_one(mfu: tuple[float | None, ...], kept: tuple[float | None, ...]) -> None:
    steps, notes = logs._without_impossible([logs.LoggedStep(n, mfu=share) for n, share in enumerate(mfu)])
    assert tuple(step.mfu for step in steps) == kept
    assert len(notes) == (kept[0] is None)
    if notes:
        assert "an MFU of 101.0 % in step 1" in notes[0]


def test_the_moment_of_a_line() -> None:
    one, other = (logs._moment(f"[x] 2024-05-23{sign}12:00:0{second}{rest} - INFO")
                  for sign, second, rest in ((" ", 1, ",250"), ("T", 3, "")))  # fmt: skip
    assert one is not None
    assert other is not None
    assert other - one == pytest.approx(1.75)
    assert logs._moment("no time") is None
    assert logs._moment("2024-13-23 12:00:00") is None
    assert logs._moment("1900-01-01 12:00:00") is None, "before 1970"
