"""Connections to agents on other hosts: an engine starts one agent per process, and the agent connects to the launcher.

The connection is the same for all engines: it carries the command, the exit code and logs, and when it breaks the
process ends. A connection that the agent's side closes means a lost host.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import select
import socket
import tarfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from paceline.bench.sites.local import DROPPED_VARIABLES
from paceline.bench.sites.site import Process

__all__ = ["LOST", "AgentConnection", "accept", "own_addresses"]

LOST = -9
"""Exit code of a process whose host was lost."""


class AgentConnection:
    """One agent: its host and, after `run`, the state of its process."""

    def __init__(self, connection: socket.socket, hello: dict[str, Any], lines: Iterable[str]) -> None:
        self.host, self.address, self.pid = str(hello["host"]), str(hello["address"]), int(hello["pid"])
        self._connection, self._lines = connection, iter(lines)
        self._thread: threading.Thread | None = None
        self.code: int | None = None

    def run(self, process: Process, *, addresses: Mapping[str, str], needed: Iterable[Path]) -> None:
        """Send the agent its command, with addresses in place of placeholders."""
        folder = process.log.parent

        def resolved(text: str) -> str:
            for placeholder, address in addresses.items():
                text = text.replace(placeholder, address)
            return text

        request = {
            "argv": [resolved(word) for word in process.argv],
            "env": {name: resolved(value) for name, value in process.env.items()},
            "dropped": DROPPED_VARIABLES,
            "folder": str(folder),
            "marker": str(folder / "job.json"),
            "log": str(process.log),
            "returned": [str(process.log), str(folder / f"rank-{process.rank}.jsonl")],
            "needed": [str(path) for path in needed],
        }
        self._send(request)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        """Serve the agent until it reports the exit code or is lost."""
        code = LOST
        with contextlib.suppress(OSError, ValueError):
            for line in self._lines:
                message = json.loads(line)
                if "missing" in message:
                    self._send_files([Path(path) for path in message["missing"]])
                if "exit" in message:
                    for path, text in message["files"].items():
                        Path(path).write_text(text, encoding="utf-8")
                    code = int(message["exit"])
                    break
        self.code = code

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall((json.dumps(message) + "\n").encode())

    def _send_files(self, paths: list[Path]) -> None:
        for path in paths:
            for member in _members(path):
                buffer = io.BytesIO()
                with tarfile.open(fileobj=buffer, mode="w") as archive:
                    archive.add(member, arcname=str(member).lstrip("/"), recursive=False)
                self._send({"tar": base64.b64encode(buffer.getvalue()).decode()})
        self._send({"end": True})

    def release(self) -> None:
        """Close the connection: the agent ends its process and exits."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self, timeout_s: float) -> None:
        """Wait for the last messages, then close the connection."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        self._connection.close()


def _members(path: Path) -> Iterable[Path]:
    """An archive of a folder; links to folders are followed once, so that a linked package is sent as files."""
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    yield path
    for child in sorted(path.iterdir()):
        if child.name != "__pycache__":
            yield from _members(child)


def accept(server: socket.socket, token: str, *, timeout_s: float) -> AgentConnection | None:
    """The next authenticated agent; None after the timeout."""
    if not select.select([server], [], [], timeout_s)[0]:
        return None
    connection, _ = server.accept()
    connection.settimeout(10)
    lines = connection.makefile("r", encoding="utf-8")
    try:
        hello = json.loads(lines.readline() or "{}")
    except (OSError, ValueError):
        hello = {}
    if hello.get("token") != token:
        connection.close()
        return None
    connection.settimeout(None)
    return AgentConnection(connection, hello, lines)


def own_addresses() -> list[str]:
    """Addresses of this host by which others may reach it, loopback last."""
    interfaces = psutil.net_if_addrs().values()
    addresses = [item.address for items in interfaces for item in items if item.family is socket.AF_INET]
    return sorted(addresses, key=lambda address: address.startswith("127.")) or ["127.0.0.1"]
