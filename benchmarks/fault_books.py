"""Whether steps and samples were each committed once, by what all ranks wrote."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

from fault_jobs import Job, Record

from paceline.runtime.samples import epoch_order

Steps = dict[int, list[Record]]


def books(job: Job) -> dict[str, Any]:
    """The books of one group.

    A rank that dies or is cut off within a step may have finished it while the others did not; they do it again. What
    counts is the history that goes on. Step n of an epoch uses the n-th stretch of the epoch's order, whoever takes
    part: each sample in it once, all of them where every rank of the step lived to write its line.
    """
    by_step: Steps = defaultdict(list)
    for name in job.names:
        for record in job.steps(name):
            by_step[record["step"]].append(record)
    kept = {step: _agreed(records) for step, records in by_step.items()}
    misused = [_misused(job, step, records) for step, records in kept.items()]
    return {
        "steps": max(by_step),
        "lost_steps": sum(step not in by_step for step in range(1, max(by_step) + 1)),
        "done_again": sum(len(records) - len(kept[step]) for step, records in by_step.items()),
        "split_steps": sum(_split(by_step, kept, step) for step in by_step),
        "samples_used_twice": sum(twice for twice, _ in misused),
        "samples_left_out": sum(left for _, left in misused),
    }


def _agreed(records: list[Record]) -> list[Record]:
    """Those who had the same parameters after a step as the most, or the latest."""
    votes = Counter(record["hash"] for record in records)
    chosen = max(records, key=lambda record: (votes[record["hash"]], record["at"]))["hash"]
    return [record for record in records if record["hash"] == chosen]


def _misused(job: Job, step: int, records: list[Record]) -> tuple[int, int]:
    """Samples of a step that were used twice or belong to another, and those that were left out."""
    per_epoch = job.samples // job.batch
    epoch, place = divmod(step - 1, per_epoch)
    due = set(epoch_order(job.samples, seed=0, epoch=epoch)[place * job.batch : (place + 1) * job.batch].tolist())
    used = Counter(sample for record in records for sample in record["samples"])
    wrong = sum(count - 1 for count in used.values()) + len(set(used) - due)
    whole = len(records) == records[0]["size"]
    return wrong, len(due - set(used)) if whole else 0


def _split(by_step: Steps, kept: Steps, step: int) -> bool:
    """Whether two histories went on from a step: somebody with another result took a further step from it."""
    others = {record["hash"] for record in by_step[step]} - {kept[step][0]["hash"]}
    after = {record["hash"] for record in by_step.get(step + 1, [])}
    return bool(others) and len(after) > 1


def syncer_books(job: Job) -> dict[str, Any]:
    """The books of groups around a syncer."""
    uses: Counter[tuple[int, int]] = Counter()
    backwards = 0
    for name in job.names:
        records = job.steps(name)
        uses.update((record["epoch"], sample) for record in records for sample in record["samples"])
        for before, after in pairwise(records):
            backwards += any(new < old for old, new in zip(before["versions"], after["versions"], strict=True))
    ended = range(min(job.steps(name)[-1]["epoch"] for name in job.names))
    return {
        "steps": sum(len(job.steps(name)) for name in job.names),
        "versions_that_went_back": backwards,
        "samples_used_twice": sum(count > 1 for count in uses.values()),
        "samples_left_out": sum((epoch, sample) not in uses for epoch in ended for sample in range(job.samples)),
    }
