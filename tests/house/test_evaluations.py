"""Pages of docs/evaluations are what their commands write, from predictions and committed measurements."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli import program
from tests.house.test_rules import ROOT

PAGES = {
    page: next(
        line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("    paceline evaluate")
    )
    for page in sorted((ROOT / "docs" / "evaluations").glob("*.md"))
}
QUICK = ("caffe-tensorflow-singa", "unequal-devices")


@pytest.mark.parametrize(
    "page", [pytest.param(one, id=one.stem, marks=() if one.stem in QUICK else pytest.mark.full) for one in PAGES]
)
def test_a_page_is_what_its_command_writes(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text(encoding="utf-8")
    words = shlex.split(PAGES[page])[1:]
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "docs" / "evaluations", tmp_path / "docs" / "evaluations")
    page_here = tmp_path / words[words.index("--page") + 1]
    page_here.unlink()
    done = CliRunner().invoke(program, [*words, "--store", str(tmp_path / "results")])
    assert done.exit_code == 0, done.output
    assert page_here.read_text(encoding="utf-8") == text


def test_every_evaluation_has_a_page() -> None:
    assert {page.stem for page in PAGES} == {one.stem for one in (ROOT / "examples" / "evaluations").glob("*.toml")}
