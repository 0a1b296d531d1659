"""A training while it runs, as a table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from paceline.report.tables import make_table
from paceline.report.terminal import print_table
from paceline.units import SECONDS

__all__ = ["show_running"]

COLUMNS = (
    "rank",
    ">step",
    ">steps/s",
    ">samples/s",
    ">share",
    ">compute",
    ">input wait",
    ">exchange",
    ">stale",
    ">ranks",
)
SILENT = 10.0
"""Seconds without a line after which a rank is marked."""


def show_running(lines: Sequence[dict[str, Any]]) -> None:
    """One row per rank; a rank that has been silent says since when."""
    rows = []
    for line in lines:
        silent = time.time() - line["time"]
        name = f"{line['group']} {line['rank']}" + (f", silent for {silent:.0f} s" if silent > SILENT else "")
        rates = [f"{line['steps_per_second']:.2f}", f"{line['samples_per_second']:,.1f}", line["share"]]
        spent = [SECONDS.format(line[f"{part}_seconds"]) for part in ("compute", "input", "exchange")]
        rows.append([name, line["step"], *rates, *spent, line["staleness"], line["ranks"]])
    print_table(make_table(COLUMNS, rows))
