"""Kills of ranks of real jobs, one after the other for as long as asked: nothing lost, nothing that grows.

    .venv/bin/python benchmarks/soak.py [--minutes 60] [--kills 100] [--beside 2] [--seed 0]

Two jobs of three ranks beside each other train the transformer of `faults.py`. Kills come at random moments, in the
middle of an all-reduce, while the group forms anew or hands its state over, and two at once. Whoever was killed is
started again, from a process that has torch loaded, so that it joins within tenths of a second. One rank of each job,
another one in each, survives all its kills: its threads and descriptors are counted when all step together again. The
least of the last third of a job may not exceed the least of the second (in the first the survivor may begin to lead,
which takes threads; a connection that was abandoned has its own for some seconds). After `--kills` a job is
audited as by `faults.py`: every step committed once and never undone, every sample of an epoch in one step, and
parameters that are equal in the end.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lib.commit_audit import Absence, audit_commits
from lib.fault_jobs import Failed, Job, the_nursery
from lib.fault_kinds import KINDS
from lib.result import Figure, median_figure, parser_of, publish

KILLS = ("kill", "aggregation", "recovery", "last")
BAD = ("lost_steps", "samples_used_twice", "samples_left_out", "unequal_ends")
HASTE = 4.0
"""By how much the time between two kills is shorter than between two turns of `faults.py`."""
LOOKS = 4
"""Looks at a survivor, of which the least counts: a thread that is about to end is none too many."""
FLAT = 1
"""Threads or descriptors of difference between two moments that say nothing."""


def main() -> int:
    """Run jobs until the time is over."""
    parser = parser_of(__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--kills", type=int, default=100, help="of one job")
    parser.add_argument("--beside", type=int, default=2, help="jobs at one time")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    the_nursery()  # before the time counts, and before two threads ask for it at once
    until, began = time.monotonic() + 60 * args.minutes, time.monotonic()

    def row(number: int) -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = []
        while time.monotonic() < until:
            jobs.append(soak(random.Random(f"{args.seed} {number} {len(jobs)}"), args.kills, until))
            print(f"{(time.monotonic() - began) / 60:.0f} min: {_line(jobs[-1])}", flush=True)
        return jobs

    with ThreadPoolExecutor(args.beside) as pool:
        jobs = [job for row_of_jobs in pool.map(row, range(args.beside)) for job in row_of_jobs]
    return publish(args, figures_of(jobs), turns=jobs, passed=all(_passed(job) for job in jobs))


def soak(generator: random.Random, kills: int, until: float) -> dict[str, Any]:
    """One job, and what it went through."""
    absences, seconds, counted = list[Absence](), list[float](), list[tuple[int, int]]()
    found: dict[str, Any] = {"failed": None, "audit": dict.fromkeys(BAD, 0) | {"steps": 0}}
    with tempfile.TemporaryDirectory() as name, contextlib.closing(Job(Path(name))) as job:
        survivor, job.haste = generator.choice(job.names), HASTE
        job.spared = {survivor}
        try:
            job.begin()
            while len(absences) < kills and (time.monotonic() < until or len(counted) < 1):
                began = time.monotonic()
                cost = KINDS[generator.choice(KILLS)](job, generator)
                absences += [Absence(victim, began, time.monotonic()) for victim in cost.victims]
                seconds.append((cost.detect or 0.0) + (cost.go_on or 0.0))
                counted.append(_count(job, survivor))
            job.end()
            found["audit"] = audit_commits(job, absences)
        except (Failed, subprocess.TimeoutExpired) as error:
            found["failed"] = str(error)
    threads, descriptors = zip(*counted, strict=True) if counted else ((), ())
    return {
        **found, "survivor": survivor, "kills": len(absences), "to next step": seconds,
        "threads": threads, "descriptors": descriptors,
    }  # fmt: skip


def _count(job: Job, name: str) -> tuple[int, int]:
    """Threads and descriptors of a rank."""
    folder = Path(f"/proc/{job.processes[name].pid}")
    looks = []
    for _ in range(LOOKS):
        looks.append([len(list((folder / kind).iterdir())) for kind in ("task", "fd")])
        time.sleep(0.05)
    return min(threads for threads, _ in looks), min(files for _, files in looks)


def growth(counts: Sequence[int]) -> int:
    """From the second third of a job to its last, by the least of each: what was taken and not given back."""
    third = len(counts) // 3
    return min(counts[-third:]) - min(counts[third : 2 * third]) if third else 0


def _passed(job: dict[str, Any]) -> bool:
    flat = all(growth(job[kind]) <= FLAT for kind in ("threads", "descriptors"))
    return job["failed"] is None and flat and not any(job["audit"][key] for key in BAD)


def _line(job: dict[str, Any]) -> str:
    bad = ", ".join(f"{key.replace('_', ' ')} {job['books'][key]}" for key in BAD)
    grown = ", ".join(f"{kind} {job[kind][0]} to {job[kind][-1]}" for kind in ("threads", "descriptors") if job[kind])
    return f"{'ok ' if _passed(job) else 'BAD'} {job['kills']} kills, {bad}; {grown} {job['failed'] or ''}"


def figures_of(jobs: Sequence[dict[str, Any]]) -> list[Figure]:
    """Of all jobs together."""
    seconds = [second for job in jobs for second in job["to next step"]]
    return [
        Figure("kills", sum(job["kills"] for job in jobs)),
        Figure("jobs", len(jobs)),
        Figure("jobs that hung or failed", sum(job["failed"] is not None for job in jobs)),
        Figure("steps", sum(job["audit"]["steps"] for job in jobs)),
        *(Figure(key.replace("_", " "), sum(job["audit"][key] for job in jobs)) for key in BAD),
        *([median_figure("kill to next step", seconds, "s", of="kills")] if seconds else []),
        *(
            Figure(f"{kind} of a survivor, last third less second", max(growth(job[kind]) for job in jobs))
            for kind in ("threads", "descriptors")
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
