"""Installation of wheels for an older CPython whose extensions can still be loaded."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from paceline.bench.recipes.recipe import Workshop
from paceline.errors import EnvironmentFailed

__all__ = ["fetch_wheel", "unpack"]


def fetch_wheel(workshop: Workshop, requirement: str, *, python: str, sha256: str, pre: bool = False) -> Path:
    """The wheel of a requirement for another Python, downloaded once and checked."""
    downloads = workshop.cache / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    found = _checked(downloads, sha256)
    if found is None:
        pip = [str(workshop.python), "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        more = ["--pre"] if pre else []
        workshop.run([*pip, *more, "--python-version", python, "-d", str(downloads), requirement])
        found = _checked(downloads, sha256)
    if found is None:
        raise EnvironmentFailed(f"the wheel of {requirement} is not the one that was pinned (sha256 {sha256[:12]}...)")
    return found


def _checked(folder: Path, sha256: str) -> Path | None:
    files = (path for path in folder.glob("*.whl") if hashlib.sha256(path.read_bytes()).hexdigest() == sha256)
    return next(files, None)


def unpack(wheel: Path, folder: Path) -> None:
    """Unpack a wheel and remove the CPython tag of its extensions."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for path in folder.rglob("*.cpython-36m-x86_64-linux-gnu.so"):
        path.rename(path.with_name(path.name.replace(".cpython-36m-x86_64-linux-gnu", "")))
