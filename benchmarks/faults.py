"""Faults at random moments of running jobs: what they cost, and whether every step and sample is committed once.

    .venv/bin/python benchmarks/faults.py --fault kill,hang --times 20

The jobs train a transformer of 24 layers with AdamW. What happens at a random moment to a random rank of three:

    kill         SIGKILL; it is started again and joins
    aggregation  SIGKILL of itself in the middle of an all-reduce
    recovery     a second SIGKILL while the group forms anew, or while the state is handed to the one that comes back
    last         SIGKILL of all but one at once
    hang         SIGSTOP until the others go on, then SIGCONT
    slow         its device becomes five times slower for a while
    late         a fourth rank that was never there joins, and is killed later
    outsider     connections without the secret: wrong proof, noise, an endless frame, silence
    delay        0.1 s there and back on all links for a while (virtual cluster, root)
    cut          its link drops everything, or resets all connections as a firewall does, until the others go on, then
                 works again (virtual cluster, root)
    syncer       two groups, two shards: SIGKILL of a shard, which is started again
    group        two groups that wait for each other at every exchange: SIGKILL or SIGSTOP of one, which comes back
    payload      its link lets small packets through, with which connections open or even log in, and drops the others
                 until the rest goes on, then works again (virtual cluster, root)
    imposter     SIGKILL, and an outsider on its port: noise, silence, or what a survivor says, relayed to a survivor
    disk         no space is left for checkpoints, half of the times with a SIGKILL meanwhile; then there is space again
    between      as `syncer`, but at any moment between two messages of the shard, also while a group starts
    stuck        user code that does not return until the rank was named with its step and seconds
    crowd        SIGKILL while a thousand unauthenticated peers call the others, who form a group anew
    pause        SIGSTOP for half of the deadline at most, or for up to three of them, then SIGCONT

Detection is from the fault to the first moment at which a survivor knows of it; a process that hangs or is cut off is
known by its silence, here one second. Going on is from detection to the next step that survivors commit. Returning is
from the call of `join` (or SIGCONT, or the mended link) to the first step of all ranks. The audit at the end of a job:
every step number is committed once, parameters are equal after every step on all ranks that were in it and in the end
on all, no sample of an epoch is used twice, and none is left out of an epoch that ended. Turns in which a third of a
second was too little for a thread of a rank to wake up are `starved`: their steps are audited, their times are not
counted. A rank that the machine suspends for longer than the heartbeat timeout waits for ever if the others die
meanwhile, as it must: they may have gone on without it. Such a job counts as failed, and among those that `slept`.

Up to twenty faults of a kind happen in one job, then its audit is added to --results as one line. A run that was
interrupted continues from there; --anew starts again.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lib.commit_audit import Absence, audit_commits, audit_leases
from lib.fault_groups import RoundsJob, SyncerJob
from lib.fault_jobs import DiskJob, Failed, Job, VirtualJob
from lib.fault_kinds import KINDS
from lib.fault_turns import RECENT, STARVED, Cost, lag_of, usual_gap
from lib.result import Figure, parser_of, publish, stamp

TOGETHER = 20
"""Faults of one job."""
GO_ON = 2.0
"""Seconds within which survivors must go on once they know, ..."""
STEPS = 10
"""... or the time that this number of steps usually takes, where a machine is so busy that it is longer."""
BAD = ("lost_steps", "samples_used_twice", "samples_left_out", "unequal_ends")
JOBS: dict[str, type[Job]] = {
    "delay": VirtualJob, "cut": VirtualJob, "payload": VirtualJob, "disk": DiskJob,
    "syncer": SyncerJob, "between": SyncerJob, "group": RoundsJob,
}  # fmt: skip


def main() -> None:
    """Run what is missing of each fault and print what all of them cost."""
    parser = parser_of(__doc__)
    parser.add_argument("--fault", default=",".join(KINDS), help="one or several of the above")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--results", type=Path, default=Path("results/faults.jsonl"))
    parser.add_argument("--anew", action="store_true", help="forget earlier results of these faults")
    args = parser.parse_args()
    kinds = args.fault.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    if args.anew:
        forget(args.results, kinds)
    found = {}
    done = {kind: sum(job["times"] for job in known(args.results) if job["fault"] == kind) for kind in kinds}
    progress = Progress(sum(max(0, args.times - count) for count in done.values()))
    for kind in kinds:
        complete(kind, args.times, args.results, progress)
        found[kind] = summary([job for job in known(args.results) if job["fault"] == kind])
        print(line(kind, found[kind]), flush=True)
    named = {"times": "turns", "starved": "turns on a starved machine, not timed", "seconds": "seconds of all jobs"}
    figures = [Figure(name, sum(item[key] for item in found.values())) for key, name in named.items()]
    figures += [figure for kind, item in found.items() for figure in figures_of(kind, item)]
    stamps = [job["stamp"] for job in known(args.results) if job["fault"] in kinds]
    sys.exit(publish(args, figures, turns=found, passed=all(item["passed"] for item in found.values()), stamps=stamps))


class Progress:
    """Says after each turn how long the others will take."""

    def __init__(self, turns: int) -> None:
        self._turns, self._done, self._began = turns, 0, time.monotonic()

    def turn(self, kind: str) -> None:
        """One is over."""
        self._done += 1
        each = (time.monotonic() - self._began) / self._done
        left = each * max(0, self._turns - self._done) / 60
        print(f"{kind}: turn {self._done} of {self._turns}, {each:.1f} s each, {left:.0f} min left", file=sys.stderr)


def figures_of(kind: str, item: dict[str, Any]) -> list[Figure]:
    """What a fault of one kind cost: medians and the largest of all times."""
    meanings = {"fault_to_next_step_s": "fault to next step", "back_s": "return to first step of all"}
    return [
        Figure(
            f"{kind}: {meaning}", item[key]["median"], "s", item[key]["median"], item[key]["max"], "median to largest"
        )
        for key, meaning in meanings.items()
        if item[key]
    ] + [
        Figure(f"{kind}: turns", item["times"]),
        Figure(f"{kind}: jobs that hung or failed", item["failed"]),
        *([Figure(f"{kind}: of them with a rank that did not run for a second", item["slept"])] * (item["failed"] > 0)),
        Figure(f"{kind}: lost steps, samples twice or left out, unequal ends", sum(item[key] for key in BAD)),
    ]


def known(results: Path) -> list[dict[str, Any]]:
    """Jobs that were run."""
    return [json.loads(text) for text in results.read_text().splitlines()] if results.exists() else []


def forget(results: Path, kinds: list[str]) -> None:
    """Drop the jobs of some faults."""
    kept = [job for job in known(results) if job["fault"] not in kinds]
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text("".join(json.dumps(job) + "\n" for job in kept))


def complete(kind: str, times: int, results: Path, progress: Progress) -> None:
    """Run jobs until there were so many faults."""
    results.parent.mkdir(parents=True, exist_ok=True)
    while (done := sum(job["times"] for job in known(results) if job["fault"] == kind)) < times:
        job = suffer(kind, min(TOGETHER, times - done), progress, seed=f"{kind} {done}")
        with results.open("a") as file:
            file.write(json.dumps(job) + "\n")


def suffer(kind: str, times: int, progress: Progress, seed: str) -> dict[str, Any]:
    """One job with so many faults of one kind; the first that is not survived is its last."""
    generator, costs, absences = random.Random(seed), list[Cost](), list[Absence]()
    began = started = time.monotonic()
    found: dict[str, Any] = {"fault": kind, "failed": None, "slept": 0.0, "audit": None}
    with tempfile.TemporaryDirectory() as name, contextlib.closing(JOBS.get(kind, Job)(Path(name))) as job:
        try:
            job.begin()
            for _ in range(times):
                began = time.monotonic()
                cost = KINDS[kind](job, generator)
                costs.append(replace(cost, lag=lag_of(job, began, cost.victims), usual=usual_gap(job)))
                absences += [Absence(victim, began, time.monotonic()) for victim in costs[-1].victims]
                progress.turn(kind)
            job.end()
            found["audit"] = audit_leases(job) if isinstance(job, SyncerJob) else audit_commits(job, absences)
        except (Failed, subprocess.TimeoutExpired) as error:
            found["failed"] = str(error)
            found["slept"] = max(job.slept(name, since=began - RECENT) for name in job.names)
    tried = len(costs) + (found["failed"] is not None and len(costs) < times)
    seconds = time.monotonic() - started
    spent = {"times": tried, "seconds": seconds, "costs": [asdict(cost) for cost in costs], "stamp": stamp(seconds)}
    return {**found, **spent}


def summary(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """What all jobs of one fault say together."""
    costs = [cost for job in jobs for cost in job["costs"]]
    closed = [job["audit"] for job in jobs if job["audit"]]
    totals = {key: sum(book[key] for book in closed) for key in ("steps", "unfinished", *BAD)}
    failed = sum(job["failed"] is not None for job in jobs)
    timed = [cost for cost in costs if cost["lag"] < STARVED]
    quick = all((cost["go_on"] or 0.0) < max(GO_ON, STEPS * cost["usual"]) for cost in timed)
    passed = not failed and not any(totals[key] for key in BAD) and quick
    parts = {f"{part}_s": spread([cost[part] for cost in timed]) for part in ("detect", "go_on", "back")}
    whole = [cost["detect"] + cost["go_on"] for cost in timed if None not in (cost["detect"], cost["go_on"])]
    count = {"times": sum(job["times"] for job in jobs), "failed": failed, "passed": passed}
    count |= {"slept": sum(job.get("slept", 0.0) > 0.0 for job in jobs)}
    count |= {"starved": len(costs) - len(timed), "seconds": round(sum(job["seconds"] for job in jobs))}
    return {**count, **totals, **parts, "fault_to_next_step_s": spread(whole)}


def spread(given: list[float | None]) -> dict[str, float] | None:
    """Median and largest; None where this kind of fault has no such part."""
    values = [value for value in given if value is not None]
    if not values:
        return None
    return {"median": round(statistics.median(values), 3), "max": round(max(values), 3)}


def line(kind: str, found: dict[str, Any]) -> str:
    """One row of the table."""
    times = [
        f"{key.removesuffix('_s').replace('_', ' ')} {value['median']:.2f} s (max {value['max']:.2f})"
        for key, value in found.items()
        if key.endswith("_s") and value
    ]
    counts = ", ".join(f"{key} {value}" for key, value in found.items() if isinstance(value, int) and key != "passed")
    return f"{kind:12} {'ok ' if found['passed'] else 'BAD'} {'; '.join(times)}; {counts}"


if __name__ == "__main__":
    main()
