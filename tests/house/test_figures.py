"""A quoted figure equals its result: `4.5 %<!-- RESULT: FIGURE -->` is in benchmarks/results/RESULT.json."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.cli import program

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUOTED = re.compile(r"([-+]?[\d,]*\.?\d+(?:e-?\d+)?)(?: %| times)?\s?<!-- ([\w-]+): ([^>]*?) -->")
REFERENCE = re.compile(r"<!-- [\w-]+: [^>]*? -->")


def stored(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def figure_of(result: dict[str, Any], name: str) -> float | None:
    """A figure by its name; `: count`, `: low` and `: high` are what its interval says."""
    figures = {figure["name"]: figure for figure in result["figures"]}
    if name in figures:
        return float(figures[name]["value"])
    base, _, part = name.rpartition(": ")
    if part == "count":
        return float(figures[f"{base}: mean error"]["interval"].split()[-1])
    return float(figures[base][part]) if base in figures and part in ("low", "high") else None


def wrong(text: str) -> list[str]:
    """What a page says otherwise than the stored results."""
    found = []
    for shown, result, name in QUOTED.findall(text):
        value, decimals = figure_of(stored(result), name), len(shown.partition(".")[2])
        if value is None or f"{value:.{decimals}f}" != shown.replace(",", "").lstrip("+"):
            found.append(f"{shown}: {result} has {value} as {name!r}")
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_quoted_figures_are_those_of_the_stored_results(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert wrong(text) == []
    assert len(QUOTED.findall(text)) == len(REFERENCE.findall(text)), "a reference follows its figure"


def test_every_digit_counts() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    quoted = list(QUOTED.finditer(text))
    assert len(quoted) >= 10
    for found in quoted:
        for place in range(*found.span(1)):
            if text[place].isdigit():
                changed = text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]
                assert len(wrong(changed)) == 1, found[0]


def test_what_has_a_stored_result_quotes_it() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    accuracy = text.split("## Accuracy")[1].split("\n## ")[0]
    unquoted = []
    for bullet in re.split(r"\n- ", accuracy.split("Not evidence")[0])[1:]:
        named = set(re.findall(r"benchmarks/(\w+)\.py", bullet))
        there = {name for name in named if (ROOT / "benchmarks" / "results" / f"{name}.json").exists()}
        unquoted += sorted(there - {result for _, result, _ in QUOTED.findall(bullet)})
    assert unquoted == [], "results are stored: quote them as `1.07<!-- name: figure -->`"


def test_the_readme_shows_what_its_commands_print() -> None:
    """A block begins with its command, or follows it; it may leave lines out, and a plot."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```\n(.*?)^```", text, flags=re.M | re.S))
    assert len(blocks) == 2
    for block in blocks:
        before = re.findall(r"`(paceline [^`]*)`", text[: block.start()].replace("\n", " "))[-1]
        command, _, shown = block[1].partition("\n") if block[1].startswith("$ ") else (before, "", block[1])
        words = shlex.split(re.sub(r" --plot \S+", "", command.removeprefix("$ ")))[1:]
        done = CliRunner().invoke(program, words, env={"COLUMNS": "140"})
        printed = {line.rstrip() for line in done.output.splitlines()}
        assert [line for line in shown.splitlines() if line.rstrip() not in printed] == [], command
