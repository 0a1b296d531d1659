"""A framework of another distribution: the files of docs/how-to/add-a-framework.md, installed and measured."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Command

PAGE = ROOT / "docs" / "how-to" / "add-a-framework.md"


def install(
    target: Path, *, name: str = "paceline-plain", point: str = "plain = paceline_plain.plugin:framework"
) -> None:
    """What pip writes of a distribution, without an index or a build."""
    info = target / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[paceline.frameworks]\n{point}\n")


@pytest.fixture
def outside(paceline: Command, tmp_path: Path) -> Path:
    """A directory of installed packages with the page's example in it, which the command sees."""
    target = tmp_path / "site-packages"
    for path, text in re.findall(r"^```\w+ file=(\S+)\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text(text)
    install(target)
    paceline.env |= {
        "PYTHONPATH": f"{target}:{ROOT / 'src'}",
        "PACELINE_HOME": str(tmp_path / "home"),
        "COLUMNS": "240",
    }
    return target


def test_the_page_registers_the_point_that_the_test_installs(outside: Path) -> None:
    assert 'plain = "paceline_plain.plugin:framework"' in (outside / "pyproject.toml").read_text()


def test_a_framework_from_outside_is_listed_and_measured(paceline: Command, outside: Path) -> None:
    row = next(row for row in paceline.json("frameworks")["frameworks"] if row["name"] == "plain")
    assert (row["status"], row["origin"], row["environments"]) == ("installable", "paceline-plain 1.0", ["plain"])
    document = paceline.json("run", str(outside / "study.toml"))
    cases = {case["network"]: case for case in document["cases"]}
    assert cases["dense"]["failed"] == 0
    assert cases["dense"]["samples_per_s"]["value"] > 0
    assert "dense layers only" in cases["lenet"]["failure"]["message"]
    assert cases["dense"]["labels"] == ["plain Python"]
    table = paceline("frameworks")
    assert re.search(r"plain\s+ready\s+paceline-plain 1\.0\s+single", table), table
    assert re.search(r"pytorch\s+\w+\s+built in", table), table


def test_a_broken_plugin_is_one_error_and_breaks_nothing_else(paceline: Command, outside: Path) -> None:
    (outside / "paceline_plain" / "plugin.py").write_text("import no_such_module\n")
    words = paceline("run", str(outside / "study.toml"), code=1)
    assert "framework 'plain' of distribution paceline-plain 1.0" in words
    assert "no_such_module" in words
    row = next(row for row in paceline.json("frameworks")["frameworks"] if row["name"] == "plain")
    assert row["status"] == "unavailable"
    assert "no_such_module" in row["reason"]
    assert paceline("predict", "--network", "lenet", "--cluster", "v100-10gbe-8x4", "--batch", "8", "--devices", "1,2")


def test_a_missing_record_names_its_distribution(paceline: Command, outside: Path) -> None:
    (outside / "paceline_plain" / "plain.toml").unlink()
    words = paceline("run", str(outside / "study.toml"), code=1)
    assert "paceline-plain 1.0" in words
    assert "plain.toml is missing" in words


@pytest.mark.parametrize("name", ["pytorch", "plain"])
def test_a_name_clash_is_one_error_that_names_the_distributions(paceline: Command, outside: Path, name: str) -> None:
    install(outside, name="rival", point=f"{name} = paceline_plain.plugin:framework")
    (outside / "study.toml").write_text((outside / "study.toml").read_text().replace('["plain"]', f'["{name}"]'))
    words = paceline("run", str(outside / "study.toml"), code=1)
    other = "Paceline itself" if name == "pytorch" else "paceline-plain 1.0"
    assert f"framework {name!r} is offered by" in words
    assert other in words
    assert "rival 1.0" in words
    row = next(row for row in paceline.json("frameworks")["frameworks"] if row["name"] == name)
    assert row["status"] == "unavailable"
    assert "rival 1.0" in row["origin"]
    assert paceline("catalog", "frameworks")


def test_the_example_is_python_that_the_environments_run(outside: Path) -> None:
    for path in sorted((outside / "paceline_plain").glob("*.py")):
        subprocess.run([sys.executable, "-m", "py_compile", str(path)], check=True)
