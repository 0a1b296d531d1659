"""A stock DDP script moves over in eight lines, and its losses stay the same to the last bit."""

from __future__ import annotations

import difflib
import os
import subprocess
from pathlib import Path

import pytest

from paceline.bench.environments import worker_path
from tests.conftest import ROOT

FOLDER = ROOT / "examples" / "training"
STOCK, MOVED = FOLDER / "images_ddp.py", FOLDER / "images_paceline.py"
PAGE = ROOT / "docs" / "how-to" / "from-ddp.md"


def body(path: Path) -> list[str]:
    """Lines of code behind the docstring."""
    lines = path.read_text(encoding="utf-8").split('"""', 2)[2].splitlines()
    return [line for line in lines if line.strip()]


def new_lines() -> list[str]:
    return [line[2:] for line in difflib.ndiff(body(STOCK), body(MOVED)) if line.startswith("+ ")]


def test_at_most_eight_lines_are_new_and_the_page_shows_them() -> None:
    assert 0 < len(new_lines()) <= 8
    page = PAGE.read_text(encoding="utf-8")
    assert [line for line in new_lines() if line.strip() not in page] == []


def losses(python: Path, script: Path, folder: Path) -> list[list[str]]:
    folder.mkdir()
    runner = Path(__file__).with_name("equal_losses.py")
    argv = [str(python), "-m", "torch.distributed.run", "--nproc-per-node", "2", str(runner), str(script), str(folder)]
    env = {**os.environ, "PYTHONPATH": str(worker_path()), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return [(folder / f"{rank}.txt").read_text().splitlines() for rank in range(2)]


@pytest.mark.full  # four processes of torchrun
def test_losses_equal_those_of_ddp_bit_for_bit(torch_python: Path, tmp_path: Path) -> None:
    stock, moved = (losses(torch_python, script, tmp_path / script.stem) for script in (STOCK, MOVED))
    assert stock == moved
    assert all(len(set(each)) == 8 for each in stock), "two epochs of four steps, and every loss another"
    assert stock[0] != stock[1], "each rank has its own samples"
