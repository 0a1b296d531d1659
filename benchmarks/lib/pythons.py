"""Pythons with packages that Paceline itself does not need, each in an environment of its own, made on first use."""

from __future__ import annotations

import sys
from pathlib import Path

from paceline.bench.environments import RECIPES, environment_python, prepare
from paceline.bench.recipes import Recipe

REQUIRED = {
    "torchft": ("torch==2.13.0", "numpy", "torchft==0.2.0"),
    "hivemind": ("torch==2.13.0", "numpy", "hivemind==1.1.12"),
    "digits": ("torch==2.13.0", "numpy", "scikit-learn==1.9.1"),
    "timm": ("torch==2.13.0", "numpy", "timm==1.0.31", "torchvision==0.28.0"),
}
IMPORTED = {"digits": "sklearn.datasets", "timm": "yaml"}


def python_of(name: str) -> str:
    """The interpreter of an environment, at the versions in benchmarks/lib/locks."""
    lock = Path(__file__).parent / "locks" / f"{name}.txt"
    smoke = f"import torch, {IMPORTED.get(name, name)}"
    RECIPES.setdefault(name, Recipe(name=name, requirements=REQUIRED[name], lock=lock, smoke=smoke))
    return str(environment_python(prepare(name, lambda line: print(line, file=sys.stderr))))


def trainers_python() -> str:
    """The interpreter with transformers, TraceML and others beside PyTorch, which `make trainers` makes."""
    python = Path(sys.prefix) / "trainers" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{python} is missing: make trainers")
    return str(python)
