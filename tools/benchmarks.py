"""Runs benchmarks and writes docs/benchmarks.md from their results.

    .venv/bin/python tools/benchmarks.py [--quick] [--only utilisation,equal]    run, then write the page
    .venv/bin/python tools/benchmarks.py --page                                  write the page from benchmarks/results
    .venv/bin/python tools/benchmarks.py --check                                 exit 1 if the page is out of date

A benchmark that fails or runs too long is recorded with the end of its output, and the others go on. `--quick` runs the
shortest form of each and writes results and page beneath results/benchmarks; figures of quick runs are not for quoting,
so that a figure that misses its target is no failure of a quick run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
QUICK = ROOT / "results" / "benchmarks"
LONGEST_S = 5400.0
HEAD = """# Benchmarks

Every figure that the README and the documentation quote, with its interval, the command that produced it, the commit
and the machine. `make benchmarks` runs all of them (root, hours) and writes this page from `benchmarks/results/`, which
also holds the settings and every single turn; `make benchmarks ONLY=equal,drift` runs some. What a benchmark does and
under which conditions is said at the top of its file, or by its `--help`.
"""


@dataclass(frozen=True)
class Entry:
    """One benchmark as `make benchmarks` runs it."""

    name: str
    """Of its result."""
    script: str
    full: str = ""
    """Arguments of the figure that is quoted."""
    quick: str = ""
    """Arguments of the shortest form that still runs everything once."""


ENTRIES = (
    Entry("validate", "validate"),
    Entry("form_weights", "form_weights"),
    Entry("published_devices", "published_devices"),
    Entry("published_hosts", "published_hosts"),
    Entry("predict_speed", "predict_speed"),
    Entry("straggler_job", "straggler_job"),
    Entry("interval_coverage", "interval_coverage", "", "--trials 300"),
    Entry("report_speed", "report_speed", "", "--runs 200"),
    Entry("bit_flips", "bit_flips", "", "--flips 20"),
    Entry("fuzz_inputs", "fuzz_inputs", "", "--count 500"),
    Entry("harness_overhead", "harness_overhead", "--pairs 12", "--pairs 1 --steps 10"),
    Entry("watch_overhead", "watch_overhead", "--turns 30 --steps 1", "--quick"),
    Entry("watch_overhead-ddp", "watch_overhead", "--turns 30 --steps 1 --ranks 2", "--quick --ranks 2"),
    Entry("watched_causes", "watched_causes", "--anew", "--only input --store results/benchmarks/watched"),
    Entry("trace_breakdown", "trace_breakdown"),
    Entry("predict_own", "predict_own", "--rounds 4", "--quick"),
    Entry("against_native", "against_native", "--pairs 6", "pytorch --pairs 1 --steps 20"),
    Entry("conformance", "conformance", "", "pytorch/ddp"),
    Entry("predict_ddp", "predict_ddp", "--rounds 4", "--rounds 1 --only resnet20 --store results/benchmarks/ddp"),
    Entry(
        "oversubscribed",
        "oversubscribed",
        "--rounds 3",
        "--rounds 1 --only own-mlp own-cnn --ranks 1,2 --store results/benchmarks/shared",
    ),
    Entry("shaping", "shaping", "", "--rates 100e6 --trips 1"),
    Entry("allreduce_fit", "allreduce_fit", "", "--ranks 2"),
    Entry("emulated_ddp", "emulated_ddp", "", "--only 2,1,1 4,1,8"),
    Entry("planted_causes", "planted_causes", "--anew", "--only input --store results/benchmarks/planted"),
    Entry("utilisation", "utilisation", "--speeds 4,1 --turns 5", "--speeds 4,1 --turns 1 --steps 10"),
    Entry(
        "utilisation-keras",
        "utilisation",
        "--framework keras --speeds 4,1 --turns 5",
        "--framework keras --speeds 4,1 --turns 1 --steps 10",
    ),
    Entry("trainers", "trainers", "", "--quick"),
    Entry("keras_digits", "keras_digits", "", "--times 1"),
    Entry("utilisation-four", "utilisation", "--speeds 4,2,1,1 --turns 5", "--speeds 4,2,1,1 --turns 1 --steps 10"),
    Entry("fsdp_group", "fsdp_group", "--turns 5", "--quick"),
    Entry("throttled", "throttled", "--turns 5", "--turns 1 --steps 5"),
    Entry("slow_loader", "slow_loader", "--turns 5", "--quick"),
    Entry("hybrid_step", "hybrid_step", "--turns 5", "--quick"),
    Entry("mpi_transport", "mpi_transport", "--turns 5", "--quick"),
    Entry("equal", "equal", "--turns 7", "--turns 1 --steps 20"),
    Entry("best_bucket", "best_bucket", "--turns 3", "--turns 1 --steps 4"),
    Entry("drift", "drift", "--turns 5", "--turns 1"),
    Entry("plan_accuracy", "plan_accuracy", "", "--only 0"),
    Entry("plan_train", "plan_train", "", "--quick"),
    Entry("message_effort", "message_effort"),
    Entry("channel_cost", "channel_cost", "", "--turns 1"),
    Entry("asynchrony_price", "asynchrony_price", "", "--seeds 1"),
    Entry("slow_link", "slow_link", "--seeds 0,1,2,3,4", "--seeds 0 --epochs 2"),
    Entry("stragglers", "stragglers", "--seeds 0,1,2", "--seeds 0 --epochs 1 --devices 2"),
    Entry("staleness_rules", "staleness_rules", "", "--seeds 0 --quick --problems digits"),
    Entry("faults", "faults", "--times 20 --anew", "--times 1 --anew --results results/benchmarks/faults.jsonl"),
    Entry("membership_schedules", "membership_schedules", "", "--schedules 500"),
    Entry(
        "membership_planted",
        "membership_schedules",
        "--schedules 1000 --plant majority",
        "--schedules 50 --plant majority",
    ),
    Entry("membership_states", "membership_states", "", "--members 2 --views 2"),
    Entry(
        "membership_states_planted",
        "membership_states",
        "--plant majority",
        "--members 2 --plant majority",
    ),
    Entry("soak", "soak", "--minutes 60", "--minutes 0.5 --kills 4"),
    Entry("membership_scale", "membership_scale", "", "--real 4 --simulated 100,1000"),
    Entry("peers-utilisation", "peers", "--what utilisation", "--what utilisation --steps 5"),
    Entry("peers-kill", "peers", "--what kill --repeats 10", "--what kill --repeats 1"),
)


def main() -> int:
    """Run what was asked, or only write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", metavar="NAME,...", help=", ".join(entry.name for entry in ENTRIES))
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if args.check:
        return 0 if PAGE.read_text(encoding="utf-8") == page(RESULTS) else 1
    results, target = (QUICK, QUICK / "benchmarks.md") if args.quick else (RESULTS, PAGE)
    results.mkdir(parents=True, exist_ok=True)
    failed = [] if args.page else [entry.name for entry in _chosen(args.only) if not run(entry, results, args.quick)]
    target.write_text(page(results), encoding="utf-8")
    say(f"wrote {target.relative_to(ROOT)}" + (f"; not passed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def say(line: str) -> None:
    """For whoever waits."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _chosen(only: str) -> list[Entry]:
    names = set(filter(None, only.split(",")))
    chosen = [entry for entry in ENTRIES if not names or names & {entry.name, entry.script}]
    if unknown := names - {name for entry in chosen for name in (entry.name, entry.script)}:
        raise SystemExit(f"no such benchmark: {', '.join(sorted(unknown))}")
    return chosen


def run(entry: Entry, results: Path, quick: bool) -> bool:
    """Run one benchmark, and tell whether it is in order; its result, or how it failed, is in the folder afterwards."""
    path = results / f"{entry.name}.json"
    path.unlink(missing_ok=True)
    words = [f"benchmarks/{entry.script}.py", *(entry.quick if quick else entry.full).split()]
    say(f"== {' '.join(words)}")
    begin = time.monotonic()
    code, output = _ran([sys.executable, *words, "--json", str(path)])
    finished = path.exists()
    if not finished:
        tail = "\n".join(output.splitlines()[-12:])
        failure = {"command": " ".join([".venv/bin/python", *words]), "failed": tail, "figures": [], "passed": False}
        path.write_text(json.dumps(failure, indent=1) + "\n", encoding="utf-8")
    outcome = "passed" if code == 0 else "misses its target" if finished else "FAILED"
    say(f"   {outcome} after {time.monotonic() - begin:.0f} s")
    return code == 0 or (quick and finished)


def _ran(argv: list[str]) -> tuple[int, str]:
    """The exit status and what was printed, which is shown as it comes."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    lines: list[str] = []
    with subprocess.Popen(argv, cwd=ROOT, text=True, start_new_session=True, **streams) as process:
        timer = threading.Timer(LONGEST_S, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        try:
            for line in process.stdout:
                say(f"   {line.rstrip()}")
                lines.append(line)
            return process.wait(), "".join(lines)
        finally:  # also when this program is interrupted: nothing that a benchmark started stays behind
            timer.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def page(results: Path) -> str:
    """The whole page, in the order of ENTRIES; what has no result yet is listed at the end."""
    known = {entry.name: results / f"{entry.name}.json" for entry in ENTRIES}
    parts = [section(entry, json.loads(path.read_text(encoding="utf-8"))) for entry in ENTRIES
             if (path := known[entry.name]).exists()]  # fmt: skip
    missing = [f"`{name}`" for name, path in known.items() if not path.exists()]
    if missing:
        parts.append(f"## Not measured yet\n\n{', '.join(missing)}\n")
    return "\n".join([HEAD, *parts])


def section(entry: Entry, result: dict[str, Any]) -> str:
    """One benchmark."""
    lines = [f"## {entry.name}", "", title_of(entry), "", f"    {result['command']}", ""]
    if result.get("failed"):
        lines += ["It failed:", "", *(f"    {line}" for line in result["failed"].splitlines()), ""]
    if figures := [figure for figure in result["figures"] if figure["value"] == figure["value"]]:  # not a NaN
        lines += ["| figure | value | interval |", "|---|---|---|", *map(row, figures), ""]
    if "commit" in result:
        target = "" if result["passed"] else "Misses its target. "
        pieces = f" in {len(result['pieces'])} pieces" if "pieces" in result else ""
        lines += [f"{target}Commit {result['commit']}, {result['started_at']}, {result['seconds']:.0f} s{pieces} on "
                  f"{result['machine']}.", ""]  # fmt: skip
    return "\n".join(lines)


def title_of(entry: Entry) -> str:
    """The first line of the benchmark's docstring, linked to its file."""
    text = (ROOT / "benchmarks" / f"{entry.script}.py").read_text(encoding="utf-8")
    title = text.splitlines()[0].strip('"')
    return f"[{title}](../benchmarks/{entry.script}.py)"


def row(figure: dict[str, Any]) -> str:
    """One figure of the table."""
    unit = f" {figure['unit']}" if figure["unit"] else ""
    between = "" if figure["low"] is None else f"{number(figure['low'])} to {number(figure['high'])}"
    kind = f" ({figure['interval']})" if between and figure["interval"] else ""
    return f"| {figure['name']} | {number(figure['value'])}{unit} | {between}{kind} |"


def number(value: float) -> str:
    """Four digits are more than any of these is known to."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
