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
QUOTED = re.compile(r"([-+]?[\d,]*\.?\d+(?:e-?\d+)?)(?: %| times| s)?\s?<!-- ([\w-]+): ([^>]*?) -->")
REFERENCE = re.compile(r"<!-- [\w-]+: [^>]*? -->")


def stored(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def figure_of(result: dict[str, Any], name: str) -> float | None:
    """A figure by its name; `: count`, `: number`, `: low` and `: high` are what its interval says."""
    figures = {figure["name"]: figure for figure in result["figures"]}
    if name in figures:
        return float(figures[name]["value"])
    base, _, part = name.rpartition(": ")
    if part == "count":
        return float(figures[f"{base}: mean error"]["interval"].split()[-1])
    if part == "number" and base in figures:
        return float(re.findall(r"\d+", figures[base]["interval"])[0])
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
    for found in QUOTED.finditer("".join(path.read_text(encoding="utf-8") for path in PAGES)):
        assert wrong(found[0]) == []
        for place, digit in enumerate(found[1]):
            if digit.isdigit():
                changed = found[1][:place] + str((int(digit) + 1) % 10) + found[1][place + 1 :]
                assert len(wrong(changed + found[0][len(found[1]) :])) == 1, found[0]


RUN = re.compile(r"benchmarks/(\w+\.py)([^`\n]*)")
COMMANDS = {
    path.stem: stored(path.stem)["command"].split() for path in (ROOT / "benchmarks" / "results").glob("*.json")
}


def unquoted(text: str) -> list[str]:
    """Commands that paragraphs, items and rows with figures name, and whose stored results they do not quote."""
    found = []
    for part in re.split(r"\n\n|\n(?=[-|] ?)", text):
        said = re.sub(r"`[^`]*`|<!--.*?-->|\[[^\]]*\]\([^)]*\)", "", part, flags=re.S)
        quoted = {result for _, result, _ in QUOTED.findall(part)}
        for script, options in RUN.findall(part) if re.search(r"\d\.\d|\d %", said) else []:
            words = {f"benchmarks/{script}", *options.split()}
            there = {name for name, command in COMMANDS.items() if words <= set(command)}
            found += [script] if there and not there & quoted else []
    return found


def test_what_has_a_stored_result_quotes_it() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(QUOTED.findall(readme)) >= 20
    assert unquoted(readme.split("## Accuracy")[1].split("Not evidence")[0]) == [], "quote: `1.07<!-- name: figure -->`"
    assert unquoted("| a | `benchmarks/equal.py` | 1.07 |") == ["equal.py"]
    assert unquoted("| a | `benchmarks/utilisation.py --speeds 8,1` | 0.96 |") == []
    assert unquoted("`benchmarks/equal.py` prints 1.07<!-- equal: throughput over DDP -->") == []


DATED = ("docs/decisions", "docs/evaluations", "docs/benchmarks.md", "docs/reference/hardware.md")
"""Decisions quote what was measured when they were made; the other pages are written from results."""


def test_pages_quote_what_is_stored() -> None:
    pages = [path for path in PAGES[1:] if not path.relative_to(ROOT).as_posix().startswith(DATED)]
    found = {path.name: unquoted(path.read_text(encoding="utf-8")) for path in pages}
    assert {name: results for name, results in found.items() if results} == {}


COMMIT = re.compile(r"\bcommits? [0-9a-f]{7,}\b|^\| finding \|", flags=re.M)


def undated(text: str) -> list[str]:
    """Headings of the sections with figures of a benchmark that has no stored result, and without their commit."""
    found = []
    for section in re.split(r"\n(?=#+ )", text):
        said = re.sub(r"`[^`]*`|<!--.*?-->|\[[^\]]*\]\([^)]*\)", "", section, flags=re.S)
        named = [{f"benchmarks/{script}", *options.split()} for script, options in RUN.findall(section)]
        stored_ = all(any(words <= set(command) for command in COMMANDS.values()) for words in named)
        if named and not stored_ and re.search(r"\d\.\d|\d %", said) and not COMMIT.search(section):
            found.append(section.splitlines()[0])
    return found


def test_figures_without_a_stored_result_name_their_commit() -> None:
    pages = [path for path in PAGES if not path.relative_to(ROOT).as_posix().startswith(DATED)]
    found = {path.name: undated(path.read_text(encoding="utf-8")) for path in pages}
    assert {name: sections for name, sections in found.items() if sections} == {}
    assert undated("# A\n\n`benchmarks/not_stored.py` 3.5 %\n\n# B\n\n`benchmarks/equal.py` 1.07") == ["# A"]


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
