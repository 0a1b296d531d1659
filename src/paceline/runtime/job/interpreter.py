"""The interpreter of a job's ranks, and a check of the packages that the script imports."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from paceline.bench.environments import environment_python, environment_variables, prepare, worker_path
from paceline.errors import InputError
from paceline.files import read_regular

__all__ = ["Interpreter", "check_imports", "find_interpreter"]


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter that can import torch."""

    python: Path
    path: Path | None = None
    """Directory from which Paceline is imported if the interpreter does not have it installed."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables that its processes need."""


def find_interpreter(python: Path | None, environment: str | None, show: Callable[[str], None]) -> Interpreter:
    """The interpreter named by path or by environment; otherwise this one if it has torch, or the pytorch
    environment."""
    if python is not None and environment is not None:
        raise InputError("--python and --env both name an interpreter", hint="give one of them")
    if python is not None:
        if not os.access(python, os.X_OK):
            raise InputError(f"{python} is not an interpreter", hint="--python PATH, such as env/bin/python")
        return Interpreter(python.absolute(), worker_path())
    if environment is None and importlib.util.find_spec("torch") is not None:
        return Interpreter(Path(sys.executable))
    name = environment or "pytorch"
    return Interpreter(environment_python(prepare(name, show)), worker_path(), environment_variables(name))


DISTRIBUTIONS = {"sklearn": "scikit-learn", "PIL": "pillow", "cv2": "opencv-python", "yaml": "pyyaml"}
"""Distribution names of packages whose import name differs."""
FIND = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n) is None])"


def check_imports(script: Path, python: Path) -> None:
    """Refuse a script whose imports its interpreter cannot find; the hint says how to install them."""
    names = sorted(_imports(script) - set(sys.stdlib_module_names) - {"paceline"})
    if not names:
        return
    env = {**os.environ, "PYTHONPATH": str(script.resolve().parent)}
    found = subprocess.run([str(python), "-c", FIND, *names], capture_output=True, text=True, env=env, check=False)
    missing = found.stdout.split() if found.returncode == 0 else []
    if missing:
        packages = " ".join(DISTRIBUTIONS.get(name, name) for name in missing)
        raise InputError(
            f"{script} imports {', '.join(missing)}, which {python} does not have",
            hint=f"{python} -m pip install {packages}; or --python PATH of an interpreter that has them, and torch",
        )


def _imports(script: Path) -> set[str]:
    """Packages that the script imports at its top level; empty if the script cannot be parsed: its ranks will fail."""
    try:
        tree = ast.parse(read_regular(script, follow=True))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return set()
    names = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.split(".")[0] for name in names}
