"""Signals at any moment of a command, also while it is still being imported: one word, and no traceback."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BEGIN = """
import os, sys

class Announces:
    def find_spec(self, name, *rest):
        if name == "paceline.cli":
            os.write(1, b"!")

sys.meta_path.insert(0, Announces())
sys.argv[1:] = {words}
from paceline.__main__ import start
start()
"""
"""Says when all imports but the first begin; a signal some milliseconds earlier is answered by Python itself."""


def started(words: list[str], **options: object) -> subprocess.Popen[str]:
    """The command, at its first import."""
    argv, pipe = [sys.executable, "-c", BEGIN.format(words=words)], subprocess.PIPE
    process = subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, **options)  # type: ignore[call-overload]
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 1) == b"!"
    found: subprocess.Popen[str] = process
    return found


def listening() -> None:
    """As in a terminal: tests in the background ignore Ctrl-C, and their processes would."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("after", [0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0])
@pytest.mark.parametrize(
    "words", [["networks"], ["predict", "--network", "lenet", "--cluster", "dgx-1", "--batch", "8"]]
)
def test_ctrl_c_while_a_command_starts(words: list[str], after: float) -> None:
    process = started(words, preexec_fn=listening)
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    # A command that has ended is killed without a word while the interpreter closes.
    assert (process.returncode, said.strip()) in ((0, ""), (130, "stopped"), (-signal.SIGINT, ""))


def test_little_is_read_from_disk_before_ctrl_c_is_answered() -> None:
    """Each file that is imported before is a moment at which Ctrl-C is a traceback."""
    source = Path(__file__).parents[2] / "src"
    code = f"import os, sys; sys.path.insert(0, {str(source)!r}); before = set(sys.modules); import paceline.__main__"
    code += "; print(sorted(set(sys.modules) - before - set(sys.builtin_module_names)))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    light = {"__future__", "importlib", "importlib._bootstrap", "importlib._bootstrap_external", "types", "warnings"}
    assert set(ast.literal_eval(done.stdout)) <= {"paceline", "paceline.__main__", *light}


def test_a_command_that_ignores_ctrl_c_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """In the background of a script SIGINT is ignored; SIGTERM was passed on as one."""
    words = ["query", "select sum(a.i * b.i % 7) from range(4000000) a(i), range(4000000) b(i)"]
    process = started(words, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    time.sleep(4)
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode in (130, -signal.SIGTERM)
