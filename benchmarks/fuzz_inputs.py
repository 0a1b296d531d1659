"""Mutated input files of every kind: each is read as its command would, or refused by an error that names the file.

.venv/bin/python benchmarks/fuzz_inputs.py --count 100000

No mutant may end in a traceback, in a number that is negative or not finite, or take longer than 60 s of processor.
Every 200th goes through the whole command, whose exit code must be 0 or 2. Failures are printed and written to --keep.

The mutants come in parts of 5,000, each with a seed of its own. With --parts FILE each part that ended is one line of
that file, parts that are in it are not run again, and --at-most says how many parts this run adds.
"""

from __future__ import annotations

import functools
import json
import math
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from lib.result import Figure, parser_of, publish, stamp

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.property.inputs import KINDS, fuzz  # noqa: E402

from paceline.cli import program  # noqa: E402
from paceline.errors import PacelineError  # noqa: E402

EVERY = 200
PART = 5_000
"""Files of one part."""
LONGEST_S = 60.0
"""Seconds of processor for one file; none of the sound ones takes a second."""


def command_outcome(words: tuple[str, ...], path: Path) -> str | None:
    """What is wrong with the command's end, if anything is."""
    done = CliRunner().invoke(program, [word.replace("{}", str(path)) for word in words])
    error = done.exception
    code = error.exit_code if isinstance(error, PacelineError) else done.exit_code
    if isinstance(error, PacelineError | SystemExit) or error is None:
        return None if code in (0, 2) else f"exit {code}: {done.output[-200:]}"
    return f"command: {type(error).__name__}: {error}"


class Endless(Exception):
    """A file that a command reads for too long."""


def too_long(number: int, frame: object) -> None:
    """The alarm of a mutant."""
    raise Endless(f"longer than {LONGEST_S:.0f} s of processor")


def timed(given: Iterable[tuple[bytes, str]]) -> Iterator[tuple[bytes, str]]:
    """The same, with an alarm that starts again for each."""
    signal.signal(signal.SIGVTALRM, too_long)
    each = iter(given)
    while True:
        signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
        item = next(each, None)
        if item is None:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            return
        yield item


def fuzz_kind(name: str, count: int, folder: Path, seed: int, keep: Path | None) -> Counter[str]:
    """Outcomes of one kind; failures are printed."""
    outcomes: Counter[str] = Counter()
    kind = KINDS[name]
    for number, (data, outcome) in enumerate(timed(fuzz(name, count, folder / name, seed=seed))):
        if number % EVERY == 0 and kind.words:
            outcome = command_outcome(kind.words, folder / name / f"given{kind.suffix}") or outcome
        short = outcome if outcome in ("valid", "refused") else "failed"
        outcomes[short] += 1
        if short == "failed":
            print(f"{name} {number} of seed {seed}: {outcome[:200]}", flush=True)
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{name}-{seed}-{number}{kind.suffix}").write_bytes(data)
    return outcomes


def part(number: int, count: int, args: Any) -> dict[str, Any]:
    """Outcomes of one part, by kind, and what it took."""
    began, seed = time.monotonic(), args.seed + number
    each = math.ceil(count / len(args.only))
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(args.processes) as pool:
        of_kind = functools.partial(fuzz_kind, count=each, folder=Path(folder), seed=seed, keep=args.keep)
        found = dict(zip(args.only, pool.map(of_kind, args.only), strict=True))
    outcomes = {name: dict(counts) for name, counts in found.items()}
    return {"seed": seed, "count": count, "outcomes": outcomes, "stamp": stamp(time.monotonic() - began)}


def known(path: Path | None) -> list[dict[str, Any]]:
    """Parts that ended in earlier runs."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path is not None and path.exists() else []


def total(parts: list[dict[str, Any]], names: list[str]) -> dict[str, Counter[str]]:
    """Outcomes of all parts, by kind."""
    return {name: sum((Counter(each["outcomes"].get(name)) for each in parts), Counter()) for name in names}


def main() -> int:
    """Print how many mutants of each kind were read, refused, and failed."""
    parser = parser_of(__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="of all kinds together")
    parser.add_argument("--seed", type=int, default=0, help="of the first part; the next one has the next seed")
    parser.add_argument("--only", choices=sorted(KINDS), nargs="*", default=sorted(KINDS))
    parser.add_argument("--keep", type=Path, help="folder for the files that failed")
    parser.add_argument("--processes", type=int, default=2, help="kinds that are mutated at one time")
    parser.add_argument("--parts", type=Path, help="file of the parts that ended")
    parser.add_argument("--at-most", type=int, help="parts that this run adds")
    args = parser.parse_args()
    parts, added = known(args.parts), 0
    seeds = {each["seed"] for each in parts}
    for number in range(math.ceil(args.count / PART)):
        if args.seed + number in seeds or added == args.at_most:
            continue
        parts.append(part(number, min(PART, args.count - number * PART), args))
        added += 1
        if args.parts is not None:
            with args.parts.open("a") as file:
                file.write(json.dumps(parts[-1]) + "\n")
    return report(args, parts)


def report(args: Any, parts: list[dict[str, Any]]) -> int:
    """Print and store what all parts found."""
    found = total(parts, args.only)
    for name, outcomes in found.items():
        print(f"{name:12} {outcomes['valid']:7} read {outcomes['refused']:7} refused {outcomes['failed']:5} failed")
    failed = sum(outcomes["failed"] for outcomes in found.values())
    figures = [
        Figure("mutated files", sum(outcomes.total() for outcomes in found.values())),
        Figure("tracebacks, nonsense, other exit codes", failed),
    ]
    return publish(args, figures, turns=parts, passed=failed == 0, stamps=[each["stamp"] for each in parts])


if __name__ == "__main__":
    sys.exit(main())
