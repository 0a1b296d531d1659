"""One isolated Python environment per framework, pinned, made on first use, kept for the next.

    HOME/environments/<name>-<digest>/      a virtual environment; the digest is of what was asked to be installed
    HOME/environments/<name>-<digest>.lock  held while it is made, so that two studies do not collide
    HOME/worker-path/<digest>/paceline      a link to this package: workers see Paceline and nothing else of ours

HOME is $PACELINE_HOME, else $XDG_CACHE_HOME/paceline, else ~/.cache/paceline. An environment is made under a
temporary name, tried out, and renamed: one that is there works, one that failed leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paceline
from paceline.errors import EnvironmentFailed, UnknownName

__all__ = ["RECIPES", "Recipe", "environment_python", "find_environment", "home", "prepare", "worker_path"]

Progress = Callable[[str], None]
"""Told one line at a time what is going on."""

FRAMEWORKS = Path(__file__).parent / "frameworks"


@dataclass(frozen=True)
class Recipe:
    """How to make one environment."""

    name: str
    requirements: tuple[str, ...]
    """What pip is asked for."""
    lock: Path
    """Exact versions of everything that comes along; pip reads it as constraints."""
    smoke: str
    """Python code that must run in the new environment."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables that its processes need."""

    @property
    def digest(self) -> str:
        """Changes when what would be installed changes."""
        text = "\n".join([*self.requirements, self.lock.read_text(encoding="utf-8"), sys.version])
        return hashlib.sha256(text.encode()).hexdigest()[:10]


RECIPES: dict[str, Recipe] = {
    "pytorch": Recipe(
        name="pytorch",
        requirements=("torch==2.13.0", "numpy"),
        lock=FRAMEWORKS / "pytorch" / "lock.txt",
        smoke="import torch, torch.distributed; assert torch.ones(2).sum() == 2",
    ),
}


def home() -> Path:
    """Where environments are kept."""
    if "PACELINE_HOME" in os.environ:
        return Path(os.environ["PACELINE_HOME"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "paceline"


def find_environment(name: str) -> Path | None:
    """The environment's folder if it was made already."""
    folder = _folder(_recipe(name))
    return folder if folder.is_dir() else None


def environment_python(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / "bin" / "python"


def prepare(name: str, progress: Progress = lambda line: None) -> Path:
    """The environment's folder, made now if it is not there."""
    recipe = _recipe(name)
    folder = _folder(recipe)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock"), progress, name):
        if not folder.is_dir():
            _make(recipe, folder, progress)
    return folder


def worker_path() -> Path:
    """A directory with nothing in it but this package, for the PYTHONPATH of workers."""
    package = Path(paceline.__file__).resolve().parent
    digest = hashlib.sha256(str(package).encode()).hexdigest()[:10]
    folder = home() / "worker-path" / digest
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (folder / "paceline").symlink_to(package, target_is_directory=True)
    return folder


def _recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise UnknownName("environment", name, RECIPES)
    return RECIPES[name]


def _folder(recipe: Recipe) -> Path:
    return home() / "environments" / f"{recipe.name}-{recipe.digest}"


@contextlib.contextmanager
def _locked(path: Path, progress: Progress, name: str) -> Iterator[None]:
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"another process is making the {name} environment; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _make(recipe: Recipe, folder: Path, progress: Progress) -> None:
    building = Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
    try:
        progress(f"creating the {recipe.name} environment")
        _run([sys.executable, "-m", "venv", str(building)], progress)
        python = str(environment_python(building))
        pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "-c", str(recipe.lock)]
        _run([*pip, *recipe.requirements], progress)
        progress("trying it out")
        _run([python, "-c", recipe.smoke], progress)
        building.rename(folder)
    except EnvironmentFailed:
        raise
    except OSError as error:
        raise EnvironmentFailed(f"cannot make the {recipe.name} environment: {error}") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _run(argv: list[str], progress: Progress) -> None:
    """Run a command to its end, its output told line by line; a failure carries the end of the output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = subprocess.Popen(
        argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    tail: list[str] = []
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            tail = [*tail[-20:], line.rstrip()]
            progress(line.strip())
    if process.wait() != 0:
        command = " ".join(argv[:6])
        raise EnvironmentFailed(f"`{command} ...` failed:\n  " + "\n  ".join(tail), hint="is the network reachable?")
