"""Recipes of environments: requirements, exact versions, and further steps."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import EnvironmentFailed

__all__ = ["EnvironmentBuild", "Progress", "Recipe", "Step"]

Progress = Callable[[str], None]
"""Receives progress messages, one line at a time."""


@dataclass(frozen=True)
class EnvironmentBuild:
    """The working directory of the creation of an environment, with pip and commands."""

    folder: Path
    """The virtual environment under its temporary name."""
    cache: Path
    """Downloads and built wheels that outlive this attempt."""
    lock: Path | None
    progress: Progress

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        """The directory of its packages."""
        return next((self.folder / "lib").glob("python3.*")) / "site-packages"

    def pip(self, *args: str) -> None:
        """Install with the environment's own pip, at the locked versions.

        Python compiles a module at its first import; pip would compile all, of which a rank imports a fifth.
        """
        command = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
        self.run([*command, *(["-c", str(self.lock)] if self.lock else []), *args])

    def run(self, argv: list[str], *, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
        """Run a command to its end and report its output line by line; an error contains the end of the output."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        process = subprocess.Popen(
            argv,
            env={**clean, **(env or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        tail: list[str] = []
        assert process.stdout is not None
        try:
            with process.stdout:
                for line in process.stdout:
                    tail = [*tail[-20:], line.rstrip()]
                    self.progress(line.strip())
        except BaseException:  # an interrupt: the command would continue to write into a folder that is being removed
            process.kill()
            process.wait()
            raise
        if process.wait() != 0:
            shown = " ".join(argv[:6])
            raise EnvironmentFailed(f"`{shown} ...` failed:\n  " + "\n  ".join(tail), hint="is the network reachable?")


Step = Callable[[EnvironmentBuild], None]


@dataclass(frozen=True)
class Recipe:
    """The recipe of one environment."""

    name: str
    requirements: tuple[str, ...]
    """Requirements for pip."""
    lock: Path | None
    """Exact versions of everything that comes along; pip reads it as constraints. None where pip has nothing to do."""
    smoke: str
    """Python code that tests the new environment."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables of its processes; `{folder}` is the path of the environment."""
    steps: tuple[Step, ...] = ()
    """Further steps after the installation of the requirements, in order."""
    files: tuple[Path, ...] = ()
    """Further lock files that the steps read."""
    needs: tuple[str, ...] = ()
    """Programs that must be on this machine already, such as a compiler."""
    about: str = ""
    """Notes for users."""
    python: str = "bin/python"
    """The interpreter, relative to the environment."""
    version: str = ""
    """Version of Python that the pinned builds are for, such as 3.11; empty: the one that runs Paceline."""

    @property
    def base(self) -> Path | None:
        """The interpreter that creates the environment; None if this machine does not have it."""
        if self.version in ("", f"{sys.version_info.major}.{sys.version_info.minor}"):
            return Path(sys.executable)
        program = shutil.which(f"python{self.version}")
        return Path(program) if program else None

    @property
    def digest(self) -> str:
        """Hash of everything that would be installed."""
        locks = [path.read_text(encoding="utf-8") for path in (self.lock, *self.files) if path]
        steps = [step.__qualname__ for step in self.steps if hasattr(step, "__qualname__")]
        version = sys.version if self.base == Path(sys.executable) else self.version
        text = "\n".join([*self.requirements, *locks, *steps, version])
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def variables(self, folder: Path) -> dict[str, str]:
        """Environment variables of its processes, for an environment at this path."""
        return {name: value.format(folder=folder) for name, value in self.env.items()}
