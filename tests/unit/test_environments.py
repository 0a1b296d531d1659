"""Environments are there and work, or are not there at all."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paceline.bench import environments
from paceline.bench.environments import Recipe, environment_python, find_environment, prepare, worker_path
from paceline.bench.recipes import EnvironmentBuild
from paceline.errors import EnvironmentFailed, UnknownName


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny package of our own, so that nothing is downloaded."""
    package = tmp_path_factory.mktemp("package")
    (package / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "tiny-thing"\nversion = "1"\n[project.scripts]\ntiny = "tiny_thing:main"\n'
    )
    (package / "tiny_thing.py").write_text("VALUE = 42\ndef main():\n    print(VALUE)\n")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(package)]
    subprocess.run(build, cwd=package, check=True, capture_output=True)
    return package / "tiny_thing-1-py2.py3-none-any.whl"


@pytest.fixture
def recipe(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """The environment of the package."""
    (tmp_path / "lock.txt").write_text("tiny-thing==1\n")
    found = Recipe("tiny", (str(wheel),), tmp_path / "lock.txt", "import tiny_thing")
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(environments.RECIPES, "tiny", found)
    return found


def left_behind(tmp_path: Path) -> list[str]:
    folder = tmp_path / "home" / "environments"
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_an_environment_is_made_once_and_what_a_killed_install_left_is_cleared_away(
    recipe: Recipe, tmp_path: Path
) -> None:
    left = tmp_path / "home" / "environments" / f"tiny-{recipe.digest}.tmp-killed"
    left.mkdir(parents=True)
    assert find_environment("tiny") is None
    assert left_behind(tmp_path) == [left.name]
    lines: list[str] = []
    folder = prepare("tiny", lines.append)
    assert find_environment("tiny") == folder
    assert left_behind(tmp_path) == [folder.name]
    assert any("tiny" in line for line in lines)
    output = subprocess.run(
        [environment_python(folder), "-c", "import tiny_thing; print(tiny_thing.VALUE)"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert output.stdout == "42\n"
    assert subprocess.run([folder / "bin" / "tiny"], check=True, capture_output=True, text=True).stdout == "42\n"
    again: list[str] = []
    prepare("tiny", again.append)
    assert again == []


@pytest.mark.parametrize("broken", ["smoke", "requirement"])
def test_a_failed_install_leaves_nothing(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    smoke, wanted = ("1 / 0", recipe.requirements) if broken == "smoke" else (recipe.smoke, ("./no-such-wheel.whl",))
    monkeypatch.setitem(environments.RECIPES, "tiny", Recipe("tiny", wanted, recipe.lock, smoke))
    with pytest.raises(EnvironmentFailed):
        prepare("tiny")
    assert left_behind(tmp_path) == []
    assert find_environment("tiny") is None


@pytest.mark.full
def test_a_step_that_fails_half_way_leaves_nothing_and_can_be_tried_again(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a framework that is built from source: its packages are there already when the build fails."""

    def build(workshop: EnvironmentBuild) -> None:
        assert (workshop.packages / "tiny_thing.py").exists()
        workshop.run([str(workshop.python), "-c", "print('compiling'); raise SystemExit(3)"])

    monkeypatch.setitem(environments.RECIPES, "tiny", dataclasses.replace(recipe, steps=(build,)))
    with pytest.raises(EnvironmentFailed, match="compiling"):
        prepare("tiny")
    assert left_behind(tmp_path) == []
    monkeypatch.setitem(environments.RECIPES, "tiny", recipe)
    made = prepare("tiny")
    assert left_behind(tmp_path) == [made.name]


@pytest.mark.full
def test_two_at_once_do_not_collide(recipe: Recipe, tmp_path: Path) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(prepare("tiny"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert len(found) == 2
    assert len(set(found)) == 1
    assert left_behind(tmp_path) == [found[0].name]


def test_an_unknown_environment_is_named() -> None:
    with pytest.raises(UnknownName, match="pytorhc"):
        prepare("pytorhc")


def test_workers_see_paceline_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    assert [path.name for path in worker_path().iterdir()] == ["paceline"]
    code = "import paceline.bench.frameworks.harness, sys; print(sorted(m for m in sys.modules if 'pydantic' in m))"
    output = subprocess.run(
        ["/usr/bin/env", "python3", "-S", "-c", code],
        env={"PYTHONPATH": str(worker_path()), "PATH": "/usr/bin:/bin:/usr/local/bin"},
        capture_output=True,
        text=True,
    )
    assert output.stdout == "[]\n", output.stderr


def test_builds_for_another_python_are_installed_with_that_python(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert dataclasses.replace(recipe, version=own).base == recipe.base == Path(sys.executable)
    assert dataclasses.replace(recipe, version=own).digest == recipe.digest
    other = dataclasses.replace(recipe, version="3.99")
    monkeypatch.setitem(environments.RECIPES, "tiny", other)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert other.digest != recipe.digest
    assert environments.missing_programs("tiny") == ["python3.99"]
    with pytest.raises(EnvironmentFailed, match=r"tiny environment needs python3\.99"):
        prepare("tiny")
    (tmp_path / "python3.99").symlink_to(sys.executable)
    assert environments.missing_programs("tiny") == []
    assert other.base == tmp_path / "python3.99"


def test_an_interrupted_install_ends_its_command(tmp_path: Path) -> None:
    seen: list[int] = []

    def interrupt(line: str) -> None:
        seen.append(int(line))
        raise KeyboardInterrupt

    workshop = EnvironmentBuild(tmp_path, tmp_path, None, interrupt)
    with pytest.raises(KeyboardInterrupt):
        workshop.run([sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"])
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)
