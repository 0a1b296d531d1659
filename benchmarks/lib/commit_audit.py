"""An audit of a job: whether every step and every sample was committed once, from the lines that all ranks wrote."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lib.fault_jobs import Job, Record
from paceline.runtime.samples import epoch_order

Steps = dict[int, list[Record]]


@dataclass(frozen=True)
class Absence:
    """A rank that suffered a fault, and from when to when."""

    name: str
    began: float
    ended: float


def audit_commits(job: Job, absences: Sequence[Absence]) -> dict[str, int]:
    """Count steps and samples of one group that were not committed exactly once.

    Every record says from which parameters a step went to which. Followed backwards from the last step these are one
    history; what is not in it was undone. A rank that dies, hangs or is cut off within a step may have finished it
    while the others did not, who then do it again: such a step is `unfinished`. Anything else that was undone was
    committed and `lost`. Step n of an epoch uses the n-th range of the epoch's order, whoever takes part: each
    sample in it once, all of them where every rank of the step lived to write its line.
    """
    by_step: Steps = defaultdict(list)
    for name in job.names:
        for record in job.steps(name):
            by_step[record["step"]].append({**record, "name": name})
    kept = _history(by_step)
    undone = [record for step, records in by_step.items() for record in records if record not in kept.get(step, [])]
    misused, last = [_misused(job, step, records) for step, records in kept.items()], max(by_step)
    return {
        "steps": last,
        "lost_steps": last - len(kept) + sum(not _excused(record, absences) for record in undone),
        "unfinished": sum(_excused(record, absences) for record in undone),
        "samples_used_twice": sum(twice for twice, _ in misused),
        "samples_left_out": sum(left for _, left in misused),
        "unequal_ends": len({(end["last"], end["final"]) for end in _ends(job)} - {(last, kept[last][0]["hash"])}),
    }


def _ends(job: Job) -> list[Record]:
    """What each rank had in the end."""
    return [record for name in job.names for record in job.lines(name) if "final" in record]


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
    # A rank of size 0 took the step over: what it had computed for it is not in it.
    committed = [record for record in records if record["size"]]
    used = Counter(sample for record in committed for sample in record["samples"])
    wrong = sum(count - 1 for count in used.values()) + len(set(used) - due)
    whole = len(committed) == max(record["size"] for record in records)
    return wrong, len(due - set(used)) if whole else 0


def audit_leases(job: Job) -> dict[str, int]:
    """Count steps and samples of groups around a syncer that were not committed exactly once.

    The samples of a lease count once the group has the next lease, for which it asks together with its progress. The
    syncer may or may not have the progress of a group that died: it leases these samples again, or counts them. A group
    that was declared failed skips a number, because its progress was refused. A version that a group has seen is never
    followed by an older one.
    """
    done: Counter[tuple[int, int]] = Counter()
    open_ones: set[tuple[int, int]] = set()
    wrong = backwards = 0
    for name in job.names:
        records = job.steps(name)
        for before, after in pairwise(records):
            backwards += any(new < old for old, new in zip(before["versions"], after["versions"], strict=True))
        for life in _lives(job, name):
            committed, last = _leases(life)
            done.update((epoch, place) for _, epoch, begin, end in committed for place in range(begin, end))
            open_ones |= {(last[1], place) for place in range(last[2], last[3])}
            wrong += sum(_misplaced(job, lease, life) for lease in committed)
    ended = range(min(job.steps(name)[-1]["epoch"] for name in job.names))
    places = [(epoch, place) for epoch in ended for place in range(job.samples)]
    return {
        "steps": sum(len(job.steps(name)) for name in job.names),
        "lost_steps": backwards,
        "unfinished": sum(place not in done for place in places),
        "samples_used_twice": sum(count > 1 for count in done.values()) + wrong,
        "samples_left_out": sum(place not in done and place not in open_ones for place in places),
        "unequal_ends": 0,
    }


def _lives(job: Job, name: str) -> list[list[Record]]:
    """The steps of a group from each start of its process to its end."""
    lives: list[list[Record]] = []
    for record in job.lines(name):
        if "joins" in record:
            lives.append([])
        elif "step" in record and record["at"] < job.stopped:
            lives[-1].append(record)
    return [life for life in lives if life]


def _leases(life: list[Record]) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """The leases whose progress the syncer has, and the one after them."""
    taken = list(dict.fromkeys(tuple(record["lease"]) for record in life))
    return [one for one, following in pairwise(taken) if following[0] == one[0] + 1], taken[-1]


def _misplaced(job: Job, lease: tuple[int, ...], life: list[Record]) -> int:
    """Samples that were used for a lease and are not in it, or the other way round."""
    _, epoch, begin, end = lease
    due = Counter(epoch_order(job.samples, seed=0, epoch=epoch)[begin:end].tolist())
    used = Counter(sample for record in life if tuple(record["lease"]) == lease for sample in record["samples"])
    return sum(((due - used) + (used - due)).values())
