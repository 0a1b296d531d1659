"""The launcher's side of agents: they arrive, log in, and each is followed until its process has ended."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import queue
import socket
import tarfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.bench.sites.local import DROPPED_VARIABLES
from paceline.bench.sites.site import Process
from paceline.channel.frames import SecureConnection, accept_connection
from paceline.channel.handshake import Login
from paceline.channel.listener import SecureListener
from paceline.channel.plain import load_plain

__all__ = ["LOST", "AgentConnection", "Arrivals"]

HELLO_TIMEOUT_S = 10.0
MAX_HELLO = 1 << 16
"""Maximum bytes of an agent's first message, and of the output of a login shell before it."""
LONGEST_RUN_S = 30 * 86400.0
"""Seconds without a message of an agent: the maximum run time of its process. Keep-alive of TCP or ssh detects an
unreachable host."""
READY = b"\npaceline agent\n"
"""The line that an agent prints when it is ready; equal to that in `agent.py`."""
log = logging.getLogger("paceline.bench")
LOST = -9
"""Exit code of a process whose host was lost."""


class AgentConnection:
    """The connection to an agent: its host and, after `run`, the state of its process.

    An agent receives the files that its process needs and returns the files of its rank; it accesses no other path.
    """

    def __init__(self, connection: SecureConnection, hello: dict[str, Any]) -> None:
        self.host, self.address, self.pid = str(hello["host"]), str(hello["address"]), int(hello["pid"])
        self._connection = connection
        self._readable: frozenset[str] = frozenset()
        self._writable: frozenset[str] = frozenset()
        self._thread: threading.Thread | None = None
        self.code: int | None = None

    def run(self, process: Process, *, addresses: Mapping[str, str], needed: Iterable[Path]) -> None:
        """Send the agent its command, with addresses in place of placeholders."""
        folder = process.log.parent

        def resolved(text: str) -> str:
            for placeholder, address in addresses.items():
                text = text.replace(placeholder, address)
            return text

        request: dict[str, Any] = {
            "argv": [resolved(word) for word in process.argv],
            "env": {name: resolved(value) for name, value in process.env.items()},
            "dropped": DROPPED_VARIABLES,
            "folder": str(folder),
            "marker": str(folder / "job.json"),
            "log": str(process.log),
            "returned": [str(process.log), str(folder / f"rank-{process.rank}.jsonl")],
            "needed": [str(path) for path in needed],
        }
        self._readable = frozenset([request["folder"], *request["needed"]])
        self._writable = frozenset(request["returned"])
        with contextlib.suppress(ConnectionError):
            self._connection.send_plain(request)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        """Serve the agent until it reports the exit code or is lost."""
        try:
            while True:
                text, data = self._connection.receive(timeout=LONGEST_RUN_S)
                message = load_plain(text)
                if "missing" in message:
                    self._send_files(message["missing"])
                if "exit" in message:
                    self._take_files(message["files"], data)
                    self.code = max(-(2**31), min(2**31 - 1, int(message["exit"])))
                    return
        except Exception as error:  # noqa: BLE001 - an error of an agent ends only its own connection
            log.warning("the agent on %s is cut off: %s", self.host, error)
            self._connection.close()
        self.code = LOST

    def _send_files(self, paths: Any) -> None:
        for path in paths:
            if path not in self._readable:
                raise ConnectionError(f"it asked for {str(path)[:200]!r}, which is none of its launch's files")
            for member in _members(Path(path)):
                buffer = io.BytesIO()
                with tarfile.open(fileobj=buffer, mode="w") as archive:
                    archive.add(member, arcname=str(member).lstrip("/"), recursive=False)
                self._connection.send(b"{}", buffer.getvalue())
                self._connection.wait_sent(LONGEST_RUN_S)
        self._connection.send_plain({"end": True})

    def _take_files(self, sizes: Any, data: bytes) -> None:
        """Write the returned files of the agent's rank, into a folder that is not a link."""
        at = 0
        for path, size in sizes:
            if path not in self._writable:
                raise ConnectionError(f"it sent {str(path)[:200]!r}, which is none of its rank's files")
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with os.fdopen(os.open(path, flags, 0o644), "wb") as file:
                file.write(data[at : at + int(size)])
            at += int(size)

    def release(self) -> None:
        """End the connection in this direction: the agent ends its process, reports and exits."""
        self._connection.end_sending()

    def close(self, timeout_s: float) -> None:
        """Wait for the last messages, then close the connection."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        self._connection.close()


class Arrivals:
    """Accepts the agents of a launch: at a listener, or on the streams of the engine's commands."""

    def __init__(self, token: str, *, listens: bool) -> None:
        self.token = token
        self.port: int | None = None
        """Port of the listener; None if the commands' streams are the connections."""
        self._login = Login(token.encode(), "launcher")
        self._queue: queue.Queue[AgentConnection] = queue.Queue()
        self._listener: SecureListener | None = None
        if listens:
            server = socket.create_server(("", 0), backlog=128)
            self.port = int(server.getsockname()[1])
            self._listener = SecureListener(server, self._login, self._arrive, callers=("agent",))
            threading.Thread(target=self._listener.run, daemon=True, name="paceline-arrivals").start()

    def __enter__(self) -> Arrivals:
        return self

    def __exit__(self, *error: object) -> None:
        if self._listener is not None:
            self._listener.close()

    def next(self, *, timeout_s: float) -> AgentConnection | None:
        """The next agent that has logged in; None after the timeout."""
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None

    @contextlib.contextmanager
    def streams(self, names: Iterable[str]) -> Iterator[dict[str, socket.socket]]:
        """A stream for each command, at whose other end its agent is expected."""
        pairs = {name: socket.socketpair() for name in names}
        try:
            yield {name: theirs for name, (_, theirs) in pairs.items()}
        finally:
            for mine, theirs in pairs.values():
                theirs.close()
                threading.Thread(target=self._greet, args=(mine,), daemon=True, name="paceline-arrival").start()

    def _greet(self, stream: socket.socket) -> None:
        try:
            stream.sendall(self.token.encode() + b"\n")
            _skip_to_agent(stream)
            self._arrive(accept_connection(stream, self._login, ("agent",), timeout=HELLO_TIMEOUT_S))
        except (OSError, ValueError) as error:
            log.debug("no agent came over a stream: %s", error)
            stream.close()

    def _arrive(self, connection: SecureConnection) -> None:
        hello = connection.receive_plain(timeout=HELLO_TIMEOUT_S, max_text=MAX_HELLO)
        try:
            self._queue.put(AgentConnection(connection, hello))
        except (KeyError, TypeError, ValueError, OverflowError) as error:  # the last: `int` of infinity
            connection.close()
            raise ConnectionError("the agent did not identify itself") from error


def _skip_to_agent(stream: socket.socket) -> None:
    """Skip the output of the login shell, up to the first bytes of the agent."""
    said = b""
    while not said.endswith(READY):
        byte = stream.recv(1)
        said += byte
        if not byte or len(said) > MAX_HELLO:
            raise ConnectionError("no agent answered")


def _members(path: Path) -> Iterable[Path]:
    """An archive of a folder; links to folders are followed once, so that a linked package is sent as files."""
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    yield path
    for child in sorted(path.iterdir()):
        if child.name != "__pycache__":
            yield from _members(child)
