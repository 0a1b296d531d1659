"""The command line in processes that start with its modules loaded: a tenth of the time of a new interpreter.

A server imports every verb and answers one question, then forks for each command. The command has a process, a working
directory, an environment, streams and an exit code of its own, as a user's has. Tests that send signals, and those of
what a verb imports, start the command themselves.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parent.parent
_LARGEST = 1 << 17


class Server:
    """Starts commands for one pytest process; ends with it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.served", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, cwd=ROOT, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, start_new_session=True
            )

    def run(
        self, module: str, args: list[str], env: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run the `main` of the module to its end, as `paceline args`; it is killed after `timeout` seconds."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # two answers stay two
        with ours, theirs, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            request = json.dumps({"module": module, "args": args, "env": env, "cwd": os.getcwd()}).encode()
            socket.send_fds(self._socket, [request], [out.fileno(), err.fileno(), theirs.fileno()])
            theirs.close()
            pid = int(ours.recv(32))
            ours.settimeout(timeout)
            try:
                code = int(ours.recv(32))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(["paceline", *args], timeout) from None
            return subprocess.CompletedProcess(["paceline", *args], code, _text(out), _text(err))

    def close(self) -> None:
        self._socket.close()
        self._process.wait(timeout=30)


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _serve(requests: socket.socket) -> None:
    _load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the parents of commands are not waited for
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, _LARGEST, 3)
        if not data:
            return
        if os.fork() == 0:
            requests.close()
            _start(json.loads(data), *descriptors)
        for one in descriptors:
            os.close(one)


def _load() -> None:
    """Import every verb, and read what the catalog keeps once read."""
    from paceline import cli

    for verb in cli.VERBS:
        cli.program.get_command(None, verb)  # type: ignore[arg-type]
    question = ["predict", "--network", "resnet50", "--cluster", "dgx-1", "--batch", "64"]
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        cli.program(question, standalone_mode=False)


def _start(request: dict[str, Any], out: int, err: int, reply: int) -> None:
    """Fork once more: the child becomes the command, this process tells its identifier and its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child:
        os.write(reply, b"%d" % child)
        os.write(reply, b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
    os.close(reply)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["paceline", *request["args"]]
    sys.modules["__main__"].__package__ = None  # else click names the program `python -m tests.paceline`
    code: Any = 1
    try:
        importlib.import_module(request["module"]).main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        if sys.exc_info()[0]:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
