"""Mutated studies through the real command: exit 2 with file and field, or a plan; nothing is written."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.property.mutations import mutants

EXAMPLES = Path(__file__).parents[2] / "examples"


def written(folder):
    """Every file beneath a folder with its content."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def run(path, home):
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
    command = [sys.executable, "-m", "paceline", "run", "--dry-run", str(path)]
    return subprocess.run(command, capture_output=True, cwd=home, env=environment, timeout=60, check=False)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [4, pytest.param(40, marks=pytest.mark.full)])
def test_mutated_studies_through_the_command(tmp_path, count):
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    home = tmp_path / "home"
    home.mkdir()
    texts = [path.read_bytes() for path in sorted((EXAMPLES / "studies").glob("*.toml"))]
    path = tmp_path / "examples" / "studies" / "given.toml"
    codes = set()
    for data in [texts[0], *mutants(texts, count, seed=4)]:
        path.write_bytes(data)
        before = written(tmp_path)
        done = run(path, home)
        said = done.stderr.decode()
        codes.add(done.returncode)
        assert done.returncode in (0, 2), said
        assert "Traceback" not in said
        assert written(tmp_path) == before
        if done.returncode == 2:
            assert re.search(r"given\.toml(:\d+)?: [^:\s]+: got ", said) or "given.toml: not a file" in said, said
        else:
            assert b"cases" in done.stdout
    assert codes == {0, 2}
