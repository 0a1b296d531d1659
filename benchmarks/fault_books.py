"""Whether steps and samples were each committed once, by what all ranks wrote."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fault_jobs import Job, Record

from paceline.runtime.samples import epoch_order

Steps = dict[int, list[Record]]


@dataclass(frozen=True)
class Absence:
    """A rank that suffered a fault, and from when to when."""

    name: str
    began: float
    ended: float


def books(job: Job, absences: Sequence[Absence]) -> dict[str, int]:
    """The books of one group.

    Every record says from which parameters a step went to which. Followed backwards from the last step these are one
    history; what is not in it was undone. A rank that dies, hangs or is cut off within a step may have finished it
    while the others did not, who then do it again: such a step is `unfinished`. Anything else that was undone was
    committed and `lost`. Step n of an epoch uses the n-th stretch of the epoch's order, whoever takes part: each
    sample in it once, all of them where every rank of the step lived to write its line.
    """
    by_step: Steps = defaultdict(list)
    for name in job.names:
        for record in job.steps(name):
            by_step[record["step"]].append({**record, "name": name})
    kept = _history(by_step)
    undone = [record for step, records in by_step.items() for record in records if record not in kept.get(step, [])]
    misused = [_misused(job, step, records) for step, records in kept.items()]
    return {
        "steps": max(by_step),
        "lost_steps": max(by_step) - len(kept) + sum(not _excused(record, absences) for record in undone),
        "unfinished": sum(_excused(record, absences) for record in undone),
        "samples_used_twice": sum(twice for twice, _ in misused),
        "samples_left_out": sum(left for _, left in misused),
    }


def _history(by_step: Steps) -> Steps:
    """The records of every step of the history that leads to the last one; steps that nobody wrote are missing."""
    newest = by_step[max(by_step)]
    votes = Counter(record["hash"] for record in newest)
    wanted = max(newest, key=lambda record: votes[record["hash"]])["hash"]
    kept: Steps = {}
    for step in range(max(by_step), 0, -1):
        records = [record for record in by_step.get(step, []) if record["hash"] == wanted]
        if not records:
            break
        kept[step] = records
        wanted = max(records, key=lambda record: int(record["size"]))["from"]
    return kept


def _excused(record: Record, absences: Sequence[Absence]) -> bool:
    """Whether it was written by one that suffered a fault just then."""
    return any(
        absence.name == record["name"] and absence.began <= record["at"] <= absence.ended for absence in absences
    )


def _misused(job: Job, step: int, records: list[Record]) -> tuple[int, int]:
    """Samples of a step that were used twice or belong to another, and those that were left out."""
    per_epoch = job.samples // job.batch
    epoch, place = divmod(step - 1, per_epoch)
    due = set(epoch_order(job.samples, seed=0, epoch=epoch)[place * job.batch : (place + 1) * job.batch].tolist())
    used = Counter(sample for record in records for sample in record["samples"])
    wrong = sum(count - 1 for count in used.values()) + len(set(used) - due)
    whole = len(records) == max(record["size"] for record in records)
    return wrong, len(due - set(used)) if whole else 0


def syncer_books(job: Job) -> dict[str, Any]:
    """The books of groups around a syncer: a version that a group has seen never comes back as an older one."""
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
        "lost_steps": backwards,
        "unfinished": 0,
        "samples_used_twice": sum(count > 1 for count in uses.values()),
        "samples_left_out": sum((epoch, sample) not in uses for epoch in ended for sample in range(job.samples)),
    }
