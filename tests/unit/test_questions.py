"""The commands of docs/how-to/questions.md print what the page shows, where that does not depend on the machine."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from tests.made import Made, write

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("questions", ROOT / "tools" / "questions.py")
assert SPEC is not None
assert SPEC.loader is not None
questions = importlib.util.module_from_spec(SPEC)
sys.modules["questions"] = questions
SPEC.loader.exec_module(questions)
TEXT = questions.PAGE.read_text(encoding="utf-8")
BLOCKS = questions.blocks_of(TEXT)


def test_twenty_questions_are_answered() -> None:
    assert len(re.findall(r"^### .*\?", TEXT, flags=re.MULTILINE)) >= 20
    assert len(BLOCKS) >= 20
    assert all(block.output.strip() for block in BLOCKS)


@pytest.mark.full
@pytest.mark.parametrize("block", [one for one in BLOCKS if not one.measured], ids=lambda one: one.command[:60])
def test_the_page_shows_what_the_command_prints(block: object) -> None:
    assert questions.run_block(block, questions.points_of(TEXT)) == block.output  # type: ignore[attr-defined]


@pytest.mark.full
@pytest.mark.parametrize(
    "block",
    [one for one in BLOCKS if one.measured and not one.command.endswith("demo")],
    ids=lambda one: one.command[:60],
)  # the demo itself: tests/integration/test_docs_commands.py
def test_commands_on_measurements_run(block: object, tmp_path: Path) -> None:
    cases = [Made(ranks=1), Made(ranks=2, aggregate=0.03)]
    store = write(tmp_path / "results", cases, study="demo", campaign="demo-1")
    assert questions.run_block(block, "", store.root).strip()
