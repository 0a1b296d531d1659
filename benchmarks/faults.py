"""Faults at random moments, again and again, in running jobs; what they cost and whether the books still balance.

    python benchmarks/faults.py --kinds kill,hang --repeats 20 --json

What happens at a random moment to a random rank of a job of three:

    kill         SIGKILL; it is started again and joins
    aggregation  SIGKILL of itself in the middle of an all-reduce
    recovery     a second SIGKILL while the group forms anew, or while the state is handed to the one that comes back
    last         SIGKILL of all but one at once
    hang         SIGSTOP until the others go on, then SIGCONT
    slow         its device becomes five times slower for a while
    late         a fourth rank that was never there joins, and is killed later
    stranger     connections without the secret: wrong proof, noise, an endless frame, silence
    delay        0.1 s there and back on all links for a while (virtual cluster, root)
    cut          its link drops everything until the others go on, then works again (virtual cluster, root)
    syncer       two groups, two shards: SIGKILL of a shard, which is started again

Detection is from the fault to the first moment at which a survivor knows of it; a process that hangs or is cut off is
known by its silence, here one second. Going on is from detection to the next step that survivors commit. Returning is
from the call of `join` (or SIGCONT, or the mended link) to the first step with everybody. The books: every step number
is committed, parameters are equal after every step on all ranks that were in it, and no sample of an epoch is used
twice, none is left out of an epoch that ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from fault_books import books, syncer_books
from fault_jobs import Job, SyncerJob, VirtualJob
from fault_kinds import KINDS, Cost


def main() -> None:
    """Run rounds of faults of each kind and print what they cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON document in place of a table")
    args = parser.parse_args()
    results = {}
    for kind in args.kinds.split(","):
        results[kind] = rounds(kind, args.repeats, args.seed)
        if not args.json:
            print(line(kind, results[kind]), flush=True)
    if args.json:
        print(json.dumps(results))


def rounds(kind: str, repeats: int, seed: int) -> dict[str, Any]:
    """One job with so many faults of one kind."""
    generator = random.Random(f"{kind} {seed}")
    made = {"delay": VirtualJob, "cut": VirtualJob, "syncer": SyncerJob}.get(kind, Job)
    with tempfile.TemporaryDirectory() as name, contextlib.closing(made(Path(name))) as job:
        job.begin()
        costs = [KINDS[kind](job, generator) for _ in range(repeats)]
        found: dict[str, Any] = {"repeats": repeats, "exit_codes": job.end()}
        found |= syncer_books(job) if isinstance(job, SyncerJob) else books(job)
    return found | {f"{part}_s": spread(costs, part) for part in ("detect", "go_on", "back")}


def spread(costs: list[Cost], part: str) -> dict[str, float] | None:
    """Median and largest of one part of the costs; None where this kind of fault has no such part."""
    values = [value for cost in costs if (value := getattr(cost, part)) is not None]
    if not values:
        return None
    return {"median": round(statistics.median(values), 3), "max": round(max(values), 3)}


def line(kind: str, found: dict[str, Any]) -> str:
    """One row of the table."""
    times = [
        f"{part} {found[f'{part}_s']['median']:.2f} s (max {found[f'{part}_s']['max']:.2f})"
        for part in ("detect", "go_on", "back")
        if found[f"{part}_s"]
    ]
    rest = ", ".join(f"{key} {value}" for key, value in found.items() if not key.endswith("_s"))
    return f"{kind:12} {'; '.join(times)}; {rest}"


if __name__ == "__main__":
    main()
