"""The metrics of a rank: names and meanings, output for Prometheus, and readers for files and endpoints."""

from __future__ import annotations

import http.client
import json
import queue
import threading
import urllib.request
from pathlib import Path
from typing import Any

from paceline.errors import InputError
from paceline.files import read_regular

__all__ = ["METRICS", "Line", "prometheus_text", "read_metrics"]

Line = dict[str, Any]
"""One line of a rank's file: means since the previous line, and present values."""
METRICS = {
    "step": "Committed steps of the run.",
    "epoch": "Epoch of the samples.",
    "steps_per_second": "Committed steps per second.",
    "samples_per_second": "Samples of all ranks of the group per second.",
    "share": "Samples of this rank in the newest step.",
    "compute_seconds": "Seconds of a step until this rank's gradients were computed, without waiting for samples.",
    "input_seconds": "Seconds of a step in which this rank waited for samples.",
    "exchange_seconds": "Seconds of a step in which this rank waited for the exchange of gradients.",
    "staleness": "Updates by other groups since this group read the parameters of its newest exchange.",
    "view": "Number of the group's view; it grows with every rank that fails or joins.",
    "ranks": "Ranks that step together.",
}
"""The metrics of a line. A line also has `time`, `group`, the launched `rank`, and the `shares` of all ranks."""
TAIL = 1 << 16
"""Bytes that are read from the end of a file to find its newest line."""
LARGEST_NUMBER = 1e15
"""Largest value of a metric; a line with a larger value is not from a rank."""
LARGEST = 1 << 20
"""Bytes that an endpoint may answer."""
ANSWER = 10.0
"""Seconds for a whole answer."""


def prometheus_text(line: Line) -> str:
    """The newest line in Prometheus' text format."""
    labels = f'{{group="{_label(line["group"])}",rank="{line["rank"]}"}}' if line else ""
    rows = []
    for name, meaning in METRICS.items():
        if name in line:
            full = f"paceline_{name}"
            rows += [f"# HELP {full} {meaning}", f"# TYPE {full} gauge", f"{full}{labels} {float(line[name])!r}"]
    return "\n".join(rows) + "\n"


def _label(text: str) -> str:
    """An escaped label value: quotes and line ends would break the format."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def read_metrics(where: str) -> list[Line]:
    """The newest line of each rank, from a folder of JSON lines, or from endpoints separated by commas."""
    if where.startswith(("http://", "https://")):
        lines = [_fetch(url) for url in where.split(",")]
    else:
        folder = Path(where)
        if not folder.is_dir():
            raise InputError(
                f"{where} is no folder of metrics", hint="the folder of Settings(metrics=...), or an endpoint's URL"
            )
        lines = [_newest(path) for path in sorted(folder.glob("*.jsonl"))]
    found = [line for line in lines if line]
    if not found:
        raise InputError(f"{where} has no metrics yet", hint="ranks write the first ones after a step")
    return sorted(found, key=lambda line: (line["group"], line["rank"]))


def _newest(path: Path) -> Line:
    """The last complete line of a file; empty if there is none."""
    try:
        rows = read_regular(path, follow=True, tail=TAIL).splitlines()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    return next((line for line in map(_line, reversed(rows)) if line), {})


def _line(text: bytes) -> Line:
    """A line as data; empty if it is cut off or not valid."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and _is_sound(content) else {}


def _is_sound(line: Line) -> bool:
    numbers = [line.get(name) for name in ("time", *METRICS)]
    finite = all(isinstance(number, int | float) and abs(number) <= LARGEST_NUMBER for number in numbers)
    return finite and isinstance(line.get("group"), str) and isinstance(line.get("rank"), int)


def _fetch(url: str) -> Line:
    """The line that an endpoint answers, whose every byte may take seconds, but not all of them together."""
    answers: queue.Queue[Line | InputError] = queue.Queue()
    threading.Thread(target=lambda: answers.put(_asked(url)), daemon=True, name="paceline-fetch").start()
    try:
        found = answers.get(timeout=ANSWER)
    except queue.Empty:
        found = InputError(f"{url} does not answer within {ANSWER:g} s", hint="is it the port of a training job?")
    if isinstance(found, InputError):
        raise found
    return found


def _asked(url: str) -> Line | InputError:
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/line.json", timeout=5) as answer:
            return _line(answer.read(LARGEST))
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)  # of urllib, around what the system said
        reason = getattr(reason, "strerror", None) or reason
        return InputError(f"{url} does not answer: {reason}", hint="the port of Settings(metrics_port=...)")
