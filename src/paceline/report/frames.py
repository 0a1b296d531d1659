"""Results for Python: each is data, a small table as text or HTML, and a data frame."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from paceline.errors import missing_extra
from paceline.measurements.trace.formats import busy_seconds
from paceline.report.tables import Table, make_table, plan_table
from paceline.report.words import baseline_words, dominant_words
from paceline.units import SECONDS, format_share

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from paceline.explain.explanation import Explanation
    from paceline.measurements.run import Span
    from paceline.model.plan.make import Plan
    from paceline.model.prediction import Curve

__all__ = ["FindingTable", "PlanTable", "PredictionTable", "ResultTable", "RunTable", "SpanTable"]

SHOWN_ROWS = 20
"""Maximum number of rows of a table; the data frame has all rows."""


class ResultTable(ABC):
    """A result with one record per row."""

    @abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """Every row as plain data, in SI units."""

    @abstractmethod
    def shown(self) -> Table:
        """The table that `str` and notebooks show."""

    def to_pandas(self) -> pd.DataFrame:
        """The records as a data frame; needs the extra `paceline[pandas]`."""
        return _pandas().DataFrame(self.records())

    def __str__(self) -> str:
        return "\n".join(_text_lines(self.shown()))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _html(self.shown())


@dataclass(frozen=True, repr=False)
class PredictionTable(ResultTable):
    """Predicted step time and throughput, a row for each curve and number of devices."""

    curves: tuple[Curve, ...]

    @property
    def curve(self) -> Curve:
        """The only curve, if there is one framework or series."""
        (curve,) = self.curves
        return curve

    def records(self) -> list[dict[str, Any]]:
        """Intervals as columns `..._low_90`, the terms of a step as columns `<term>_s`."""
        return [_prediction(curve.label, one.as_dict()) for curve in self.curves for one in curve.predictions]

    def shown(self) -> Table:
        """Step, throughput with its 90 % interval, efficiency, and the dominant terms."""
        several = len(self.curves) > 1
        rows = [
            (
                *([curve.label] if several else []),
                str(one.devices),
                SECONDS.format(one.step_s.value),
                f"{one.samples_per_s.value:,.1f}",
                "{:,.1f}-{:,.1f}".format(*one.samples_per_s.interval_90),
                format_share(one.efficiency),
                dominant_words(one),
            )
            for curve in self.curves
            for one in curve.predictions
        ]
        columns = (">devices", ">step", ">samples/s", ">90 %", ">efficiency", "dominant")
        first = self.curves[0]
        precision = [
            f"precision: {line}" for line in dict.fromkeys(c.detail.get("precision") for c in self.curves) if line
        ]
        notes = (
            precision
            if several
            else [*precision, *(f"rests on: {line}" for line in first.basis), f"to narrow it: {first.advice}"]
        )
        title = "predictions" if several else first.label
        return make_table(("series", *columns) if several else columns, rows, title=title, notes=notes)


def _prediction(label: str, plain: dict[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = {"series": label}
    for name, value in plain.items():
        if name == "terms":
            record |= {f"{term}_s": seconds for term, seconds in value.items()}
        elif isinstance(value, list):
            quantity, _, share = name.rpartition("interval_")
            head = quantity or "samples_per_s_"
            record |= {f"{head}low_{share}": value[0], f"{head}high_{share}": value[1]}
        else:
            record[name] = value
    return record


@dataclass(frozen=True, repr=False)
class PlanTable(ResultTable):
    """Candidate strategies for a cluster, best first."""

    plan: Plan

    def records(self) -> list[dict[str, Any]]:
        """A row for each candidate; `groups` and `shares` list ranks and their samples."""
        return [
            {**asdict(one), "num_groups": len(one.groups), "num_devices": _num_devices(one.shares)}
            for one in self.plan.ranked
        ]

    def shown(self) -> Table:
        """The candidates, and why the first is best."""
        table = plan_table(self.plan)
        best = self.plan.best
        basis = [f"rests on: {line}" for line in self.plan.basis]
        notes = [f"precision: {self.plan.precision}", *baseline_words(self.plan), self.plan.asynchrony, *basis]
        return replace(table, notes=(*notes, f"best: {best.kind}, because {best.reason}"))


def _num_devices(shares: Sequence[Sequence[int]]) -> int:
    return sum(1 for group in shares for samples in group if samples)


@dataclass(frozen=True, repr=False)
class FindingTable(ResultTable):
    """The explanation of a campaign: a row per finding, largest gain first."""

    explanation: Explanation

    def records(self) -> list[dict[str, Any]]:
        """Cause, case, predicted gain with its interval, and the exact change."""
        return [
            {
                "cause": one.cause,
                "title": one.title,
                "case_id": one.case_id,
                "case": one.case,
                "gain": one.gain.value,
                "gain_low": one.gain.low,
                "gain_high": one.gain.high,
                "kind": one.change.kind,
                "change": one.change.what,
            }
            for one in self.explanation.findings
        ]

    def shown(self) -> Table:
        """The findings and the summary."""
        rows = [
            (format_share(one.gain.value), one.cause, one.case, one.change.what) for one in self.explanation.findings
        ]
        about = self.explanation
        return make_table((">gain", "cause", "case", "change"), rows, title=about.campaign, notes=about.summary)


@dataclass(frozen=True, repr=False)
class RunTable(ResultTable):
    """Stored launches, including failed launches."""

    arrow: pa.Table
    """All columns as an Arrow table."""

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def records(self) -> list[dict[str, Any]]:
        """A row for each launch; see `measurements.tables.launch_table` for the columns."""
        rows: list[dict[str, Any]] = self.arrow.to_pylist()
        return rows

    def to_pandas(self) -> pd.DataFrame:
        """The launches as a data frame with Arrow's types; needs the extra `paceline[pandas]`."""
        _pandas()
        return self.arrow.to_pandas()

    def shown(self) -> Table:
        """Parameters and throughput of the launches."""
        columns = ("study", "network", "framework", "strategy", ">ranks", ">batch", "outcome", ">samples/s", ">step")
        rows = [
            (
                *(
                    str(row[name])
                    for name in ("study", "network", "framework", "strategy", "ranks", "batch", "outcome")
                ),
                "" if row["samples_per_s"] is None else f"{row['samples_per_s']:,.1f}",
                "" if row["step_s"] is None else SECONDS.format(row["step_s"]),
            )
            for row in self.arrow.slice(0, SHOWN_ROWS).to_pylist()
        ]
        return make_table(columns, rows, title=f"{len(self)} launches", notes=_left_out(len(self)))


@dataclass(frozen=True, repr=False)
class SpanTable(ResultTable):
    """Spans of a trace."""

    spans: tuple[Span, ...]

    def __len__(self) -> int:
        return len(self.spans)

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    def records(self) -> list[dict[str, Any]]:
        """A row for each span: rank, step, phase, name, start_s, seconds, size_bytes, source."""
        return [asdict(span) for span in self.spans]

    @property
    def breakdown(self) -> dict[int, dict[str, float]]:
        """Seconds in which each rank was busy with each phase; overlapping spans of a phase count once."""
        return busy_seconds(self.spans)

    def shown(self) -> Table:
        """Busy seconds by rank and phase."""
        ranks = self.breakdown
        phases = list(dict.fromkeys(phase for row in ranks.values() for phase in row))
        rows = [
            (str(rank), *(SECONDS.format(row[phase]) if phase in row else "" for phase in phases))
            for rank, row in list(ranks.items())[:SHOWN_ROWS]
        ]
        title = f"{len(self)} spans: busy time of each rank by phase"
        columns = (">rank", *(f">{phase}" for phase in phases))
        return make_table(columns, rows, title=title, notes=_left_out(len(ranks)))


def _left_out(count: int) -> list[str]:
    return [f"... {count - SHOWN_ROWS} more rows"] if count > SHOWN_ROWS else []


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise missing_extra("pandas", "pandas") from None
    return pandas


def _text_lines(table: Table) -> list[str]:
    cells = [[name.lstrip(">") for name in table.columns], *([cell.text for cell in row] for row in table.rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(table.columns))]
    rights = [name.startswith(">") for name in table.columns]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, rights, strict=True)
        ).rstrip()
        for row in cells
    ]
    return [table.title, *lines, *table.notes]


def _html(table: Table) -> str:
    head = "".join(f"<th>{html.escape(name.lstrip('>'))}</th>" for name in table.columns)
    rights = [' style="text-align: right"' if name.startswith(">") else "" for name in table.columns]
    cells = [
        "".join(f"<td{style}>{html.escape(cell.text)}</td>" for cell, style in zip(row, rights, strict=True))
        for row in table.rows
    ]
    rows = "".join(f"<tr>{row}</tr>" for row in cells)
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in table.notes)
    caption = f"<caption>{html.escape(table.title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{notes}"
