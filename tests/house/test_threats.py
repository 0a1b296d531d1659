"""Every finding of the review names tests that exist and the commits that mended it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs/explanation/threats.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| (\d+|race:) ", line)
]
FINDINGS, RACES = 100, 6


def test_all_findings_and_races_are_there() -> None:
    numbers = [int(row[0].split()[0]) for row in ROWS if row[0][0].isdigit()]
    assert numbers == list(range(1, FINDINGS + 1))
    assert len(ROWS) == FINDINGS + RACES


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_named_tests_exist(row: list[str]) -> None:
    file = ""
    for name in re.findall(r"`((?:test_\w+\.py)?(?:::test_\w+)?)`", row[1]):
        file, _, test = (name if name.startswith("test_") else file + name).partition("::")
        texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob(file)]
        assert any(f"def {test}(" in text if test else text for text in texts), name
    assert file, "no test is named"


def test_named_commits_exist() -> None:
    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)

    named = {commit for row in ROWS for commit in row[2].split(", ")}
    assert all(re.fullmatch("[0-9a-f]{7,}", commit) for commit in named)
    if git("rev-parse", "--is-shallow-repository").stdout.strip() == "false":
        assert not [commit for commit in named if git("merge-base", "--is-ancestor", commit, "HEAD").returncode]
