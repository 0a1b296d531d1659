"""What every benchmark reports: figures with intervals for people, and one JSON document for docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Figure", "median_figure", "parser_of", "publish", "stamp"]

ROOT = Path(__file__).parents[2]
STARTED = time.time()
HIDDEN = ("json", "worker")


@dataclass(frozen=True)
class Figure:
    """One number that documentation may quote."""

    name: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    interval: str = ""
    """What low and high are, for example `range of 5 turns`."""

    def __str__(self) -> str:
        between = f" ({_short(self.low)} to {_short(self.high)}, {self.interval})" if self.low is not None else ""
        return f"{self.name:44} {_short(self.value)}{' ' + self.unit if self.unit else ''}{between}"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def median_figure(name: str, values: Sequence[float], unit: str = "", of: str = "turns") -> Figure:
    """The median of some turns with their range."""
    middle = statistics.median(values)
    return Figure(name, middle, unit, min(values), max(values), f"range of {len(values)} {of}")


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser that teaches with the module's docstring and takes `--json FILE`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write figures, settings and every turn to a file")
    return parser


def publish(
    args: argparse.Namespace, figures: Sequence[Figure], *, turns: Any, passed: bool = True,
    stamps: Sequence[dict[str, Any]] = (),
) -> int:  # fmt: skip
    """Print the figures, write the document if asked; the exit status.

    `stamps` are those of the runs that a benchmark in several pieces is put together from.
    """
    for figure in figures:
        print(figure)
    if args.json:
        settings = {key: value for key, value in vars(args).items() if key not in HIDDEN and value is not None}
        document = {
            **_about_this_run(),
            **_about_pieces(stamps),
            "passed": passed,
            "figures": [asdict(figure) for figure in figures],
            "settings": settings,
            "turns": turns,
        }
        args.json.write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")
    return 0 if passed else 1


def _about_this_run() -> dict[str, Any]:
    return {
        "command": _command(sys.argv),
        "commit": _commit(),
        "machine": _machine(),
        "started_at": _text(STARTED),
        "seconds": round(time.time() - STARTED, 1),
    }


def stamp(seconds: float) -> dict[str, Any]:
    """Commit, machine, start and duration of a piece of a benchmark that goes on in a later run; called at its end."""
    return {"commit": _commit(), "machine": _machine(), "started_at": _text(time.time() - seconds), "seconds": seconds}


def _about_pieces(stamps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What replaces the facts of the last run, if there were several."""
    if not stamps:
        return {}
    texts = {key: ", ".join(dict.fromkeys(one[key] for one in stamps)) for key in ("commit", "machine")}
    started, seconds = min(one["started_at"] for one in stamps), round(sum(one["seconds"] for one in stamps), 1)
    return {**texts, "started_at": started, "seconds": seconds, "pieces": list(stamps)}


def _text(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def _command(argv: Sequence[str]) -> str:
    """As a user types it from the root of the repository, without --json."""
    words = [str(Path(argv[0]).resolve().relative_to(ROOT)), *argv[1:]]
    if "--json" in words:
        at = words.index("--json")
        del words[at : at + 2]
    return " ".join([".venv/bin/python", *(f"'{word}'" if " " in word else word for word in words)])


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "benchmarks/*.py", "benchmarks/lib")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + (" with changes" if changed else "")


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kernel = platform.release().split("-")[0]
    cores = os.cpu_count()
    return f"{cores} cores of {model}, {memory:.0f} GiB, Linux {kernel}, Python {platform.python_version()}"
