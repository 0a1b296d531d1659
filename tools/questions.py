"""Executes the commands of docs/how-to/questions.md, and writes or compares what they print.

A block begins with ```console; `lines=N` keeps the first lines of its output, `measured` says that the output depends
on the machine: it is not compared. Commands of measured blocks need a store with the study `demo`.

    python tools/questions.py --store results     # write the outputs of all blocks
    python tools/questions.py --check             # compare those that do not depend on the machine
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "questions.md"
BLOCK = re.compile(
    r"```console(?P<options>[^\n]*)\n\$ (?P<command>(?:[^\n]*\\\n)*[^\n]*)\n(?P<output>.*?)```", re.DOTALL
)
POINTS = re.compile(r"```csv\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One command of the page with the output that the page shows."""

    command: str
    output: str
    options: str

    @property
    def measured(self) -> bool:
        """Whether the output depends on the machine."""
        return "measured" in self.options.split()

    @property
    def lines(self) -> int | None:
        """Number of lines that are shown; all if not stated."""
        stated = re.search(r"lines=(\d+)", self.options)
        return int(stated.group(1)) if stated else None


def blocks_of(text: str) -> list[Block]:
    """All blocks of the page."""
    return [Block(one["command"], one["output"], one["options"]) for one in BLOCK.finditer(text)]


def run_block(block: Block, points: str, store: Path | None = None) -> str:
    """What the command prints at 80 columns, in an empty directory with the points of the page."""
    words = shlex.split(block.command.replace("\\\n", " "))
    environment = {**os.environ, "COLUMNS": "80", **({"PACELINE_STORE": str(store.absolute())} if store else {})}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "points.csv").write_text(points, encoding="utf-8")
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{block.command}\n{done.stderr}")
    shown = [line.rstrip() for line in done.stdout.splitlines()]
    more = ["..."] if block.lines and len(shown) > block.lines else []
    return "\n".join([*shown[: block.lines], *more]) + "\n"


def points_of(text: str) -> str:
    """The CSV file that the page shows."""
    found = POINTS.search(text)
    return found.group(1) if found else ""


def written(text: str, store: Path | None) -> str:
    """The page with the outputs of this version; measured blocks stay as they are without a store."""
    points = points_of(text)

    def replaced(match: re.Match[str]) -> str:
        block = Block(match["command"], match["output"], match["options"])
        output = block.output if block.measured and store is None else run_block(block, points, store)
        return f"```console{block.options}\n$ {block.command}\n{output}```"

    return BLOCK.sub(replaced, text)


def main() -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--store", type=Path)
    asked = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    now = written(text, asked.store)
    if not asked.check:
        PAGE.write_text(now, encoding="utf-8")
    elif now != text:
        raise SystemExit(f"{PAGE.name} shows other outputs than this version prints: run tools/questions.py")


if __name__ == "__main__":
    main()
