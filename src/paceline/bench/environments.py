"""Isolated, pinned Python environments of frameworks, created at first use.

    HOME/environments/<name>-<digest>/      a virtual environment; the digest identifies its requirements
    HOME/environments/<name>-<digest>.lock  locked during creation, so that two studies do not collide
    HOME/cache/<name>-<digest>/             downloads and built wheels that outlive a failed attempt
    HOME/worker-path/<digest>/paceline      a link to this package: workers import Paceline, a plug-in, nothing else

HOME is $PACELINE_HOME, else $XDG_CACHE_HOME/paceline, else ~/.cache/paceline. An environment is created under a
temporary name, tested, and renamed: an existing environment works, a failed one leaves no files.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import paceline
from paceline import variables
from paceline.bench.plugins import plugin_recipes
from paceline.bench.recipes import EnvironmentBuild, Progress, Recipe
from paceline.bench.recipes.table import RECIPES
from paceline.errors import EnvironmentFailed, UnknownName

__all__ = [
    "RECIPES",
    "CacheFolder",
    "Recipe",
    "cache_folders",
    "clear_cache",
    "environment_python",
    "environment_variables",
    "find_environment",
    "home",
    "missing_programs",
    "prepare",
    "recipe_of",
    "remove",
    "worker_path",
]

CACHES = {
    "environments": "frameworks, made again at their next use",
    "cache": "downloads and built wheels",
    "data": "generated data sets",
    "worker-path": "links to this package",
}
"""The directories of HOME that can be cleared."""


def home() -> Path:
    """The directory of environments, data sets and virtual clusters."""
    if variables.HOME in os.environ:
        return Path(os.environ[variables.HOME])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "paceline"


@dataclass(frozen=True)
class CacheFolder:
    """One directory of the cache: contents, path, size."""

    name: str
    holds: str
    path: Path
    size_bytes: int
    num_files: int


def cache_folders() -> tuple[CacheFolder, ...]:
    """The directories of the cache, with their sizes; the store of runs is none of them."""
    return tuple(_measured(name, holds) for name, holds in CACHES.items())


def _measured(name: str, holds: str) -> CacheFolder:
    path = home() / name
    sizes = []
    for folder, _, files in os.walk(path):
        for file in files:
            with contextlib.suppress(OSError):
                sizes.append(os.lstat(os.path.join(folder, file)).st_size)
    return CacheFolder(name, holds, path, sum(sizes), len(sizes))


def clear_cache(folder: CacheFolder) -> None:
    """Remove a directory of the cache; an environment that a study is creating is left alone."""
    if folder.name == "environments":
        for path in sorted(folder.path.glob("*.lock")):
            with path.open("a") as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise EnvironmentFailed(
                        f"{path.stem} is being created by another process", hint="wait for it, then clean again"
                    ) from None
    shutil.rmtree(folder.path, ignore_errors=True)


def find_environment(name: str) -> Path | None:
    """The folder of an environment, if it exists."""
    folder = _folder(recipe_of(name))
    return folder if folder.is_dir() else None


def environment_python(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / "bin" / "python"


def prepare(name: str, progress: Progress = lambda line: None) -> Path:
    """The folder of an environment; creates the environment if necessary."""
    recipe = recipe_of(name)
    folder = _folder(recipe)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock"), progress, name):
        if not folder.is_dir():
            _make(recipe, folder, progress)
    return folder


def environment_variables(name: str) -> dict[str, str]:
    """Variables that processes of an environment need."""
    recipe = recipe_of(name)
    return recipe.variables(_folder(recipe))


def missing_programs(name: str) -> list[str]:
    """Missing programs that the creation of an environment needs."""
    recipe = recipe_of(name)
    missing = [program for program in recipe.needs if shutil.which(program) is None]
    return missing if recipe.base else [*missing, f"python{recipe.version}"]


def remove(name: str) -> bool:
    """Delete an environment; return whether it existed."""
    folder = _folder(recipe_of(name))
    with _locked(folder.with_suffix(".lock"), lambda line: None, name) if folder.is_dir() else contextlib.nullcontext():
        there = folder.is_dir()
        shutil.rmtree(folder, ignore_errors=True)
    return there


def worker_path(*packages: Path) -> Path:
    """A directory with nothing in it but this package, and a plug-in's, for the PYTHONPATH of workers."""
    linked = [Path(paceline.__file__).resolve().parent, *(package.resolve() for package in packages)]
    digest = hashlib.sha256(":".join(str(package) for package in linked).encode()).hexdigest()[:10]
    folder = home() / "worker-path" / digest
    folder.mkdir(parents=True, exist_ok=True)
    for package in linked:
        with contextlib.suppress(FileExistsError):
            (folder / package.name).symlink_to(package, target_is_directory=True)
    return folder


def recipe_of(name: str) -> Recipe:
    """How an environment is made, by its name."""
    recipes = RECIPES if name in RECIPES else {**RECIPES, **plugin_recipes()}
    if name not in recipes:
        raise UnknownName("environment", name, recipes)
    return recipes[name]


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
    missing = missing_programs(recipe.name)
    if missing:
        hint = f"install {', '.join(missing)} with this machine's package manager"
        raise EnvironmentFailed(f"the {recipe.name} environment needs {', '.join(missing)}", hint=hint)
    for left in folder.parent.glob(f"{folder.name}.tmp-*"):  # of an install that was killed: the lock is ours now
        shutil.rmtree(left, ignore_errors=True)
    building = Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
    workshop = EnvironmentBuild(building, home() / "cache" / folder.name, recipe.lock, progress)
    try:
        progress(f"creating the {recipe.name} environment")
        workshop.run([str(recipe.base), "-m", "venv", str(building)])
        if recipe.requirements:
            workshop.pip(*recipe.requirements)
        for step in recipe.steps:
            step(workshop)
        progress("trying it out")
        workshop.run([str(building / recipe.python), "-c", recipe.smoke], env=recipe.variables(building))
        _readdress(building, folder)
        building.rename(folder)
    except OSError as error:
        raise EnvironmentFailed(f"cannot make the {recipe.name} environment: {error}") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _readdress(building: Path, folder: Path) -> None:
    """Replace the temporary path of the environment in its programs by the final path."""
    for program in (building / "bin").iterdir():
        if program.is_file() and not program.is_symlink():
            content = program.read_bytes()
            if content.startswith(b"#!") or program.name.lower().startswith("activate"):
                program.write_bytes(content.replace(bytes(building), bytes(folder)))
