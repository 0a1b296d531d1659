"""Tests marked `alone` run while no other test of the session runs, also when several workers share the session.

A readers-writer lock between workers: every test takes the gate for a moment, then the floor, which tests share. A test
marked `alone` takes the floor exclusively and holds the gate while it waits, so that the other worker cannot overtake.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FOLDER = "PACELINE_TEST_TURNS"
"""Where the workers of a session find its lock files."""


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="paceline-turns-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(FOLDER), ignore_errors=True)


@contextmanager
def turn(*, alone: bool) -> Iterator[None]:
    folder = Path(os.environ[FOLDER])
    with (folder / "gate").open("wb") as gate, (folder / "floor").open("wb") as floor:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(floor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(floor, fcntl.LOCK_UN)  # explicit: a forked child may still hold the descriptor


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Outside pytest-timeout's hook, so that waiting is not counted as the test's own time."""
    with turn(alone=item.get_closest_marker("alone") is not None):
        return (yield)
