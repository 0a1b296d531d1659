"""A fixed global batch: the samples of each device, and what they leave unanswered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.errors import InputError
from paceline.model.question import Question, check_question

__all__ = ["check_shares", "question_on", "share_notes", "with_global_batch"]


def with_global_batch(question: Question, samples: int | None, batch: int | None) -> Question:
    """The question with these samples per step of all devices; `batch` is what was asked for each device."""
    if samples is not None and batch is not None:
        raise InputError(f"batch {batch} per device and global batch {samples}: expected one of them")
    if samples is not None and samples < 1:
        raise InputError(f"a global batch of {samples} is no batch", hint="a batch is at least 1 sample")
    return replace(question, global_batch=samples, assumed=question.assumed and samples is None)


def question_on(question: Question, count: int) -> Question:
    """The question with the samples that a number of devices leaves for each of them: the largest share."""
    if question.global_batch is None:
        return question
    return replace(question, batch=-(-question.global_batch // (count * question.strategy.accumulate)))


def check_shares(question: Question, counts: tuple[int, ...]) -> None:
    """Refuse what cannot be answered: each device needs a sample, and memory for its share."""
    if question.global_batch is None:
        check_question(question, counts)
        return
    passes = question.strategy.accumulate
    if counts and question.global_batch < counts[-1] * passes:
        asked = f"a global batch of {question.global_batch} for {counts[-1]} devices" + f" and {passes} passes" * (
            passes > 1
        )
        raise InputError(f"{asked}: each needs a sample", hint="ask for fewer devices, or for a larger global batch")
    for count in counts:
        try:
            check_question(question_on(question, count), (count,))
        except InputError as error:
            hint = "more devices leave less for each, as does --set strategy.accumulate=2: two passes to a step"
            raise InputError(f"{count} device{'s' * (count > 1)}: {error.message}", hint=hint) from None


def share_notes(question: Question, counts: Sequence[int]) -> list[str]:
    """The samples of each device at each number of devices; none without a global batch."""
    if question.global_batch is None:
        return []
    each = [(count, question_on(question, count).batch) for count in counts]
    said = ", ".join(f"{batch} on {count}" for count, batch in each)
    passes = question.strategy.accumulate
    uneven = any(batch * count * passes != question.global_batch for count, batch in each)
    notes = [f"samples per device: {said} devices" + "; the largest share, where it does not divide" * uneven]
    try:
        check_question(question_on(question, 1), (1,))
    except InputError:
        notes.append("efficiency: one device does not hold the whole batch; its step is predicted as if it did")
    return notes
