"""The worker for a user's command: converts its output to the events of a worker.

Paceline's line protocol: `paceline: {"seconds": 0.0123}` for each step, or `paceline: {"throughput": 5200.0}` in
samples per second of all ranks; all other output is kept in the log.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from paceline import variables
from paceline.bench.frameworks.harness import Events, Job

__all__ = ["command_of", "main", "reading_of"]

PREFIX = "paceline: "


def main() -> None:
    """Run the command to its end; without any measurement the run has failed."""
    with open(os.environ[variables.JOB], encoding="utf-8") as file:
        job = json.load(file)
    paths = [os.environ[variables.EVENTS].replace("rank-0", f"rank-{rank}") for rank in range(job["ranks"])]
    ranks = [Events(path) for path in paths]
    for events in ranks:
        events.write("phase", phase="measure")
    rows, code = _measure(job)
    if code:  # the log says why; a signal as a shell passes it on
        sys.exit(code if code > 0 else 128 - code)
    if not rows:
        reason = "no line of its output could be read as a speed"
        ranks[0].write("error", kind="Script", message=reason, at=time.time())
        sys.exit(1)
    for events in ranks:
        events.write("facts", versions={}, labels=["own script: Paceline does not know what it computes"])
        events.write("pass", name="clean", warmup=0, rows=rows)
        events.write("done")


def _measure(job: Job) -> tuple[list[list[float]], int]:
    rows: list[list[float]] = []
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", variables.PARENT)}
    process = subprocess.Popen(
        command_of(job), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=env
    )
    start = time.perf_counter()
    for line in _lines(process):
        seconds = reading_of(line, job)
        if seconds is not None:
            rows.append([time.perf_counter() - start, seconds])
    return rows, process.wait()


def _lines(process: Any) -> Iterator[str]:
    for line in process.stdout:
        sys.stdout.write(line)
        yield line


def command_of(job: Job) -> list[str]:
    """The command with its placeholders substituted."""
    folder = os.environ.get(variables.BIN, "")
    blanks = {"ranks": job["ranks"], "batch": job["batch"], "threads": job["threads"], "bin": folder}
    blanks["here"] = os.environ[variables.HERE]
    blanks["python"] = os.path.join(folder, "python") if folder else sys.executable
    return [part.format(**blanks) for part in job["script"]["command"]]


def reading_of(line: str, job: Job) -> float | None:
    """Seconds of a step according to a line of output, or None."""
    samples = job["ranks"] * job["batch"]
    if job["script"]["pattern"] is None:
        if not line.startswith(PREFIX):
            return None
        values = json.loads(line[len(PREFIX) :])
    else:
        match = re.search(job["script"]["pattern"], line)
        if match is None:
            return None
        values = {name: float(value) for name, value in match.groupdict().items() if value is not None}
    if "seconds" in values:
        return float(values["seconds"])
    total = values.get("throughput", values.get("per_rank", 0.0) * job["ranks"])
    return samples / total if total else None


if __name__ == "__main__":
    main()
