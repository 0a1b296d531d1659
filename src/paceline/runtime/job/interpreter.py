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
    """A Python with torch."""

    python: Path
    path: Path | None = None
    """Directory to import Paceline from, where it is not installed."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables that its processes need."""


def find_interpreter(python: Path | None, environment: str | None, show: Callable[[str], None]) -> Interpreter:
    """The one that is named, by path or as an environment of Paceline; else this one, or the pytorch environment."""
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
"""Names under which pip knows packages that are imported by another name."""
FIND = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n) is None])"


def check_imports(script: Path, python: Path) -> None:
    """Refuse a script whose imports its interpreter does not have, and say what installs them."""
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
    """Packages that the script imports when it begins; none if it cannot be read, which its ranks will say."""
    try:
        tree = ast.parse(read_regular(script, follow=True))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return set()
    names = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.split(".")[0] for name in names}
