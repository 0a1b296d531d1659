"""Random schedules of faults over simulated members that run the runtime's own decisions.

    .venv/bin/python benchmarks/membership_schedules.py [--schedules 100000] [--seed 0] [--plant majority]

Each schedule is a job of two to five ranks with crashes, restarts, pauses, cut and one-way links, and messages that are
lost, doubled, late or out of order; `lib/membership.py` says what is simulated. No schedule may commit one step in two
ways, lose a committed step, leave samples out, or stand still while a majority is connected. A seed that violates this
is printed, and `--seed SEED --schedules 1` repeats it. `--plant majority` turns the majority rule off, which the
simulator has to notice.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from lib.lineage import Violation
from lib.membership_faults import anybody_goes_on, run_schedule
from lib.result import Figure, parser_of, publish

from paceline.runtime.protocol.quorum import may_go_on

BLOCK = 250
"""Schedules that a process runs at a time."""
SHOWN = 20


def run_block(begin: int, end: int, planted: bool) -> tuple[Counter[str], list[tuple[int, str]]]:
    """Some schedules one after the other: what happened in them, and which went wrong."""
    logging.disable(logging.CRITICAL)
    rule = anybody_goes_on if planted else may_go_on
    happened: Counter[str] = Counter()
    wrong: list[tuple[int, str]] = []
    for seed in range(begin, end):
        try:
            happened.update(run_schedule(seed, rule=rule))
        except Violation as error:
            wrong.append((seed, str(error)))
    return happened, wrong


def main() -> int:
    """Run all schedules on all processors."""
    parser = parser_of(__doc__)
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule; the others count on from it")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--plant", choices=("majority",), help="a bug that has to be found")
    args = parser.parse_args()
    began, last = time.monotonic(), args.seed + args.schedules
    begins = range(args.seed, last, BLOCK)
    ends = [min(begin + BLOCK, last) for begin in begins]
    with ProcessPoolExecutor(args.processes) as pool:
        blocks = list(pool.map(run_block, begins, ends, [args.plant is not None] * len(ends)))
    happened = sum((block for block, _ in blocks), Counter[str]())
    wrong = sorted(item for _, found in blocks for item in found)
    for seed, why in wrong[:SHOWN]:
        print(f"seed {seed}: {why}")
    print(f"seeds {args.seed} to {last - 1}: {', '.join(f'{n:,} {kind}' for kind, n in sorted(happened.items()))}")
    figures = [
        Figure("schedules", args.schedules),
        Figure("violations", len(wrong)),
        *([Figure("schedules to the first violation", wrong[0][0] - args.seed + 1)] if wrong else []),
        Figure("committed steps", happened["settled"]),
        Figure("duration", time.monotonic() - began, "s"),
    ]
    passed = bool(wrong) if args.plant else not wrong
    return publish(args, figures, turns={"happened": happened, "wrong": wrong[:SHOWN]}, passed=passed)


if __name__ == "__main__":
    sys.exit(main())
