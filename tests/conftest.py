"""Shared fixtures: the real command line with a separate store, and the PyTorch environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.served import Server

pytest_plugins = ("tests.turns", "tests.summary")

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
settings.register_profile("fresh", deadline=None, max_examples=200, print_blob=True)
settings.load_profile("repeatable")  # --hypothesis-profile fresh draws other examples every time

ROOT = Path(__file__).parent.parent
QUICK = Path(__file__).parent / "integration" / "quick.py"


class Command:
    """Runs the command line as a user does, with a separate store; through a server where one is given.

    A server has loaded modules from its own path: a command with another PYTHONPATH is a new interpreter.
    """

    def __init__(self, store: Path, prefix: list[str], served: tuple[Server, str] | None = None) -> None:
        self.store = store
        self.prefix = prefix
        self.served = served
        self.env = {**os.environ, "PACELINE_STORE": str(store), "COLUMNS": "140"}

    def start(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        """Start the command and return without waiting for it."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen([*self.prefix, *args], env=self.env, text=True, preexec_fn=_restore_ctrl_c, **streams)

    def __call__(self, *args: str, code: int = 0, timeout: float = 280) -> str:
        """Run the command to its end; return its standard output, or its standard error if a failure is expected."""
        if self.served and self.env.get("PYTHONPATH") == os.environ.get("PYTHONPATH"):
            server, module = self.served
            done = server.run(module, list(args), self.env, timeout)
        else:
            done = subprocess.run([*self.prefix, *args], env=self.env, text=True, capture_output=True, timeout=timeout)
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stderr if code else done.stdout

    def json(self, *args: str) -> Any:
        """The document that the command prints with --json."""
        return json.loads(self(*args, "--json"))


def _restore_ctrl_c() -> None:
    """Reset SIGINT: a test session in the background ignores it, and its child processes would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


@pytest.fixture
def paceline(tmp_path: Path, server: Server) -> Command:
    return Command(tmp_path / "results", [str(Path(sys.executable).parent / "paceline")], (server, "paceline.cli"))


@pytest.fixture
def quick(tmp_path: Path, server: Server) -> Command:
    """The same command with a stub in place of PyTorch's worker: no framework, no compute."""
    return Command(tmp_path / "results", [sys.executable, str(QUICK)], (server, "tests.integration.quick"))


@pytest.fixture(scope="session")
def pytorch() -> Path:
    """The PyTorch environment, installed if it does not exist."""
    from paceline.bench.environments import prepare

    return prepare("pytorch", lambda line: None)


@pytest.fixture
def study_file(tmp_path: Path) -> Callable[[str], Path]:
    """A function that writes a study file and returns its path."""

    def write(text: str, name: str = "study.toml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write
