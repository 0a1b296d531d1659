"""How one environment is made: what pip installs, at which exact versions, and what else has to be done."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import EnvironmentFailed

__all__ = ["Progress", "Recipe", "Step", "Workshop"]

Progress = Callable[[str], None]
"""Told one line at a time what is going on."""


@dataclass(frozen=True)
class Workshop:
    """The place where an environment is being made, with the means to do it."""

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
        """Where its packages are."""
        return self.folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"

    def pip(self, *args: str) -> None:
        """Install with the environment's own pip, at the locked versions."""
        command = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check"]
        self.run([*command, *(["-c", str(self.lock)] if self.lock else []), *args])

    def run(self, argv: list[str], *, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
        """Run a command to its end, its output told line by line; a failure carries the end of the output."""
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
        with process.stdout:
            for line in process.stdout:
                tail = [*tail[-20:], line.rstrip()]
                self.progress(line.strip())
        if process.wait() != 0:
            shown = " ".join(argv[:6])
            raise EnvironmentFailed(f"`{shown} ...` failed:\n  " + "\n  ".join(tail), hint="is the network reachable?")


Step = Callable[[Workshop], None]


@dataclass(frozen=True)
class Recipe:
    """How to make one environment."""

    name: str
    requirements: tuple[str, ...]
    """What pip is asked for."""
    lock: Path | None
    """Exact versions of everything that comes along; pip reads it as constraints. None where pip has nothing to do."""
    smoke: str
    """Python code that must run in the new environment."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables that its processes need; `{folder}` stands for the environment's own path."""
    steps: tuple[Step, ...] = ()
    """What pip cannot do by itself, in order, after the requirements."""
    files: tuple[Path, ...] = ()
    """Further lock files that the steps read."""
    needs: tuple[str, ...] = ()
    """Programs that must be on this machine already, such as a compiler."""
    about: str = ""
    """What is unusual about it, for people."""
    python: str = "bin/python"
    """The interpreter, relative to the environment."""

    @property
    def digest(self) -> str:
        """Changes when what would be installed changes."""
        locks = [path.read_text(encoding="utf-8") for path in (self.lock, *self.files) if path]
        steps = [step.__qualname__ for step in self.steps if hasattr(step, "__qualname__")]
        text = "\n".join([*self.requirements, *locks, *steps, sys.version])
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def variables(self, folder: Path) -> dict[str, str]:
        """Its processes' variables, for an environment at this path."""
        return {name: value.format(folder=folder) for name, value in self.env.items()}
