"""Every export: EXPORTS lists its name, what it is, and the function that writes it."""

from __future__ import annotations

import functools
import html
import io
import itertools
import json
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from paceline.errors import InputError, UnknownName
from paceline.explain.cases.step import measured_step, predicted_step
from paceline.explain.explanation import CaseExplanation, Explanation
from paceline.files import printable, write_output
from paceline.measurements.run import Span
from paceline.measurements.store import Store
from paceline.measurements.tables import launch_table
from paceline.measurements.trace import wire
from paceline.measurements.trace.chakra import to_chakra
from paceline.measurements.trace.chrome import to_chrome
from paceline.measurements.trace.horovod import to_horovod
from paceline.measurements.trace.kineto import to_kineto
from paceline.report.html import render_page
from paceline.report.tables import Table, make_table, results_table
from paceline.report.words import file_name
from paceline.units import format_share

__all__ = [
    "EXPORTS",
    "Export",
    "export",
    "markdown_lines",
    "markdown_report",
    "plain_markdown",
    "write_page",
]


_POLYNOMIAL = 0x82F63B78
"""Polynomial of CRC-32C, the checksum of TensorBoard's records."""


@dataclass(frozen=True)
class Export:
    """One kind of export."""

    suffix: str
    """Suffix of the file; empty for a directory."""
    what: str
    write: Callable[[Explanation, Store, Path], None]


def export(explanation: Explanation, store: Store, kind: str, target: Path | None = None) -> Path:
    """Write one export; by default into the working directory under the name of the study."""
    if kind not in EXPORTS:
        raise UnknownName("export", kind, EXPORTS)
    path = target or Path(f"{file_name(explanation.study)}-{kind}{EXPORTS[kind].suffix}")
    return _written(path, lambda: EXPORTS[kind].write(explanation, store, path))


def write_page(explanation: Explanation, store: Store, target: Path | None = None) -> Path:
    """Write the HTML page of a campaign; by default into `reports` of the store."""
    path = target or store.root / "reports" / f"{file_name(explanation.study)}.html"
    return _written(path, lambda: _text(path, render_page(explanation)))


def _written(path: Path, write: Callable[[], None]) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write()
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}", hint="choose another one with -o") from None
    return path


def _text(path: Path, text: str) -> None:
    write_output(path, text)


def _step_spans(
    explanation: Explanation, of: Callable[[Any], tuple[Span, ...]]
) -> list[tuple[CaseExplanation, tuple[Span, ...]]]:
    spans_by_case = [(case, of(case.evidence)) for case in explanation.good]
    chosen = [(case, spans) for case, spans in spans_by_case if spans]
    if not chosen:
        observed = any(case.evidence.run.is_observed for case in explanation.good)
        hint = "import a trace, or run it under `paceline watch`" if observed else "run it with protocol.phases = true"
        raise InputError("no case of this study was traced", hint=hint)
    return chosen


def _write_chrome(explanation: Explanation, path: Path, of: Callable[[Any], tuple[Span, ...]]) -> None:
    events: list[Any] = []
    first = 0
    for case, spans in _step_spans(explanation, of):
        events += to_chrome(spans, title=case.evidence.label, first_rank=first)["traceEvents"]
        first += case.evidence.run.ranks
    document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"producer": "paceline"}}
    _text(path, json.dumps(document))


def _write_by_rank(
    explanation: Explanation, folder: Path, suffix: str, convert: Callable[[tuple[Span, ...], int], bytes],
    of: Callable[[Any], tuple[Span, ...]] = predicted_step,
) -> None:  # fmt: skip
    for case, spans in _step_spans(explanation, of):
        place = folder / file_name(case.evidence.run.case_id)
        place.mkdir(parents=True, exist_ok=True)
        for rank in range(case.evidence.run.ranks):
            write_output(place / f"rank-{rank}{suffix}", convert(spans, rank))


def _measured_steps(store: Store) -> Callable[[Any], tuple[Span, ...]]:
    """All traced steps of a case one after the other, each from when it began, if that was recorded."""

    def of(evidence: Any) -> tuple[Span, ...]:
        rows = store.load(evidence.run.id).steps.to_pylist()
        starts = {(row["rank"], row["step"]): row["start_s"] for row in rows if row["pass_name"] == "clean"}
        if not any((span.rank, span.step) in starts for span in evidence.spans):
            starts = _in_a_row(evidence.spans)
        spans = [span for span in evidence.spans if (span.rank, span.step) in starts]
        return tuple(replace(span, start_s=span.start_s + starts[span.rank, span.step]) for span in spans)

    return of


def _in_a_row(spans: Sequence[Span]) -> dict[tuple[int, int], float]:
    """The start of each step, where none is known: as soon as the step before has ended on every rank."""
    starts: dict[tuple[int, int], float] = {}
    reached = 0.0
    for _, group in itertools.groupby(sorted(spans, key=lambda span: span.step), key=lambda span: span.step):
        inside = list(group)
        starts |= {(span.rank, span.step): reached for span in inside}
        reached += max(span.start_s + span.seconds for span in inside)
    return starts


def _chrome_steps(explanation: Explanation, store: Store) -> Callable[[Any], tuple[Span, ...]]:
    """All steps of a watched or imported run; of a study, the last one of each case."""
    observed = any(case.evidence.run.is_observed for case in explanation.good)
    return _measured_steps(store) if observed else measured_step


def _table(explanation: Explanation, store: Store) -> Any:
    return launch_table(store.root, campaign=explanation.campaign)


def _write_csv(path: Path, table: pa.Table) -> None:
    """Texts that a spreadsheet would take for a formula get an apostrophe: names and logs come from other people."""
    for number, column in enumerate(table.columns):
        if pa.types.is_string(column.type):
            plain = pc.replace_substring_regex(column, r"^([=+@\t\r-])", r"'\1")
            table = table.set_column(number, table.column_names[number], plain)
    buffer = io.BytesIO()
    pyarrow.csv.write_csv(table, buffer)
    write_output(path, buffer.getvalue())


def _write_parquet(path: Path, table: pa.Table) -> None:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer)
    write_output(path, buffer.getvalue())


MOST_FINDINGS = 5


def markdown_report(explanation: Explanation) -> str:
    """Summary, results, and the first findings."""
    lines = [f"### {plain_markdown(explanation.title or explanation.study)}", ""]
    lines += [f"- {plain_markdown(sentence)}" for sentence in explanation.summary]
    results = results_table([case.evidence.result for case in explanation.good])
    rows = [
        (f"{finding.title} ({finding.case})", format_share(finding.gain.value), finding.change.what)
        for finding in explanation.findings[:MOST_FINDINGS]
    ]
    findings = make_table(["finding", ">predicted gain", "change"], rows)
    for table in (results, findings):
        lines += ["", *markdown_lines(table)] if table.rows else []
    return "\n".join(lines) + "\n"


def markdown_lines(table: Table) -> list[str]:
    """The lines of a table in Markdown."""
    align = "|".join("---:" if column.startswith(">") else "---" for column in table.columns)
    rows = [
        [column.lstrip(">") for column in table.columns],
        *([plain_markdown(cell.text) for cell in row] for row in table.rows),
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], f"|{align}|", *lines[1:]]


def plain_markdown(text: str) -> str:
    """Text with escaped tags, links, cell separators and line breaks."""
    one_line = printable(" ".join(html.escape(text, quote=False).split()))
    return re.sub(r"([\\`*_{}\[\]()#|!~])", r"\\\1", one_line)


def _write_scalars(explanation: Explanation, store: Store, folder: Path) -> None:
    """TensorBoard's event files, a directory per case: throughput and step of launch n at step n, phases at step 0.

    A record is its length, a checksum of the length, the data, and a checksum of the data.
    """
    for case in explanation.good:
        run = case.evidence.run
        place = folder / file_name(case.evidence.label)
        place.mkdir(parents=True, exist_ok=True)
        at = datetime.fromisoformat(run.started_at).timestamp()
        path = place / f"events.out.tfevents.{int(at)}.{file_name(run.case_id)}"
        write_output(path, b"".join(_record(event) for event in _events(case, at)))


def _events(case: CaseExplanation, at: float) -> list[bytes]:
    launches = case.evidence.launches
    events = [wire.double(1, at) + wire.text(3, "brain.Event:2")]
    for step, rate, seconds in zip(launches.rounds, launches.throughputs, launches.steps, strict=True):
        events.append(_scalar(at, step, "samples_per_s", rate))
        events.append(_scalar(at, step, "step_s", seconds))
    for name, seconds in case.evidence.result.phases.items():
        events.append(_scalar(at, 0, f"phase/{name}_s", seconds))
    return events


def _scalar(at: float, step: int, tag: str, value: float) -> bytes:
    summary = wire.message(1, wire.text(1, tag) + wire.float32(2, value))
    return wire.double(1, at) + wire.number(2, step) + wire.message(5, summary)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _masked(data: bytes) -> int:
    """CRC-32C, rotated and offset as TFRecord requires."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@functools.cache
def _crc_table() -> tuple[int, ...]:
    entries = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        entries.append(value)
    return tuple(entries)


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _crc_table()[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _mlperf_lines(cases: Iterable[CaseExplanation]) -> list[str]:
    """`:::MLLOG` lines as mlperf_logging's parser reads them, a run block for every launch of every case, in order.

    Launches that do not count have no figures.
    """
    return [line for case in cases for line in _case_lines(case)]


def _case_lines(case: CaseExplanation) -> list[str]:
    launches = case.evidence.launches
    figures = zip(launches.throughputs, launches.steps, strict=True)
    known = {run.id: found for run, found in zip(launches.counted, figures, strict=True)}
    lines: list[str] = []
    for run in launches.runs:
        begin = round(datetime.fromisoformat(run.started_at).timestamp() * 1000)
        end = begin + round(run.seconds * 1000)
        facts: list[tuple[str, Any]] = [
            ("submission_benchmark", run.network),
            ("submission_platform", f"{run.cluster} x {run.ranks}"),
            ("submission_division", "open"),
            ("submission_org", "paceline"),
            ("submission_status", "research"),
            ("global_batch_size", run.batch * run.ranks),
        ]
        lines += [_line("POINT_IN_TIME", key, value, begin) for key, value in facts]
        lines.append(_line("INTERVAL_START", "run_start", None, begin, framework=run.framework, run=run.id))
        if run.id in known:
            measured = dict(zip(("throughput", "step_s"), known[run.id], strict=True))
            lines.append(_line("POINT_IN_TIME", "tracked_stats", measured, end, step=run.launch))
        status = "success" if run.outcome == "ok" else "aborted"
        lines.append(_line("INTERVAL_END", "run_stop", None, end, status=status))
    return lines


def _line(event: str, key: str, value: Any, at: int, **metadata: Any) -> str:
    content = {
        "namespace": "",
        "time_ms": at,
        "event_type": event,
        "key": key,
        "value": value,
        "metadata": {"file": "paceline", "lineno": 0, **metadata},
    }
    return f":::MLLOG {json.dumps(content)}"


EXPORTS: dict[str, Export] = {
    "chrome": Export(".json", "measured steps, for Perfetto", lambda e, s, p: _write_chrome(e, p, _chrome_steps(e, s))),
    "chrome-predicted": Export(".json", "predicted steps", lambda e, s, p: _write_chrome(e, p, predicted_step)),
    "kineto": Export(
        "",
        "predicted steps as the PyTorch profiler writes them, a file per rank",
        lambda e, s, p: _write_by_rank(e, p, ".json", lambda x, rank: json.dumps(to_kineto(x, rank=rank)).encode()),
    ),
    "horovod": Export(
        "",
        "predicted exchanges as a Horovod timeline, a file per rank",
        lambda e, s, p: _write_by_rank(e, p, ".json", lambda x, rank: json.dumps(to_horovod(x, rank=rank)).encode()),
    ),
    "chakra": Export(
        "",
        "predicted steps as Chakra execution traces, a file per rank",
        lambda e, s, p: _write_by_rank(e, p, ".et", lambda x, rank: to_chakra(x, rank=rank)),
    ),
    "chakra-measured": Export(
        "",
        "measured steps as Chakra execution traces, a file per rank; `import` reads them back",
        lambda e, s, p: _write_by_rank(e, p, ".et", lambda x, rank: to_chakra(x, rank=rank), _measured_steps(s)),
    ),
    "mlperf": Export(
        ".log", "MLPerf logging lines", lambda e, s, p: _text(p, "\n".join(_mlperf_lines(e.cases)) + "\n")
    ),
    "tensorboard": Export("", "TensorBoard scalars", _write_scalars),
    "markdown": Export(".md", "a table for a pull request", lambda e, s, p: _text(p, markdown_report(e))),
    "csv": Export(".csv", "one row per launch", lambda e, s, p: _write_csv(p, _table(e, s))),
    "parquet": Export(".parquet", "one row per launch", lambda e, s, p: _write_parquet(p, _table(e, s))),
}
