"""Agents by Ray: one actor for each process, each on the node it belongs to."""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib.resources import files
from pathlib import Path

from paceline.bench.launchers.remote.launcher import Seats
from paceline.errors import Unsupported

__all__ = ["Ray"]


class Ray:
    """A small driver connects to a Ray cluster that is up and starts the agents as its actors."""

    name = "ray"
    patience_s = 300.0

    def __init__(self, options: tuple[str, ...] = (), *, python: str | None = None) -> None:
        self._address = next(
            (word for word in options if not word.startswith("-")), os.environ.get("RAY_ADDRESS", "auto")
        )
        self._python = python or os.environ.get("PACELINE_RAY_PYTHON") or _python_of_ray()

    def commands(self, seats: Seats) -> dict[str, list[str]]:
        """One driver for all."""
        wish = seats.folder / "ray.json"
        document = {"address": self._address, "hosts": seats.hosts, "agent": seats.agent}
        wish.write_text(json.dumps(document), encoding="utf-8")
        # A copy, because beside the original this module would be taken for the package `ray`.
        driver = seats.folder / "driver.py"
        driver.write_text(
            files("paceline.bench.launchers.remote").joinpath("ray_driver.py").read_text(encoding="utf-8")
        )
        return {"ray": [self._python, str(driver), str(wish)]}

    def cancel(self) -> None:
        """Actors end with their driver."""


def _python_of_ray() -> str:
    """The interpreter that has Ray: beside the `ray` command, or this one."""
    command = shutil.which("ray")
    if command is not None:
        return str(Path(command).parent / "python")
    beside = Path(sys.executable).parent / "ray"
    if not beside.exists():
        raise Unsupported(
            "Ray is not installed here",
            hint="pip install 'ray[default]', or set PACELINE_RAY_PYTHON to a Python with it",
        )
    return sys.executable
