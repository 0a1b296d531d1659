"""Tests marked `alone` run while no other test of the session runs, also when several workers share the session.

A readers-writer lock between workers: every test takes the gate for a moment, then the floor, which tests share. A test
marked `alone` takes the floor exclusively and holds the gate while it waits, so that other workers cannot overtake.
Tests marked `hosts` run one at a time, beside other tests: each of them takes their lock before the gate.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

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
def turn(*, alone: bool, hosts: bool = False) -> Iterator[None]:
    folder = Path(os.environ[FOLDER])
    with _open(folder / "hosts") as one, _open(folder / "gate") as gate, _open(folder / "floor") as floor:
        if hosts:
            fcntl.flock(one, fcntl.LOCK_EX)
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(floor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """A file whose lock ends with the block, even if a forked child still holds the descriptor."""
    with path.open("wb") as file:
        try:
            yield file
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Outside pytest-timeout's hook, so that waiting is not counted as the test's own time."""
    alone, hosts = (item.get_closest_marker(name) is not None for name in ("alone", "hosts"))
    with turn(alone=alone, hosts=hosts):
        return (yield)
