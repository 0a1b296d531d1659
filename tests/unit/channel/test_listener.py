"""A listener goes on whatever its callers do, and whatever this process is short of."""

from __future__ import annotations

import errno
import logging
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.channel import listener as module
from paceline.channel.frames import SecureConnection, open_connection
from paceline.channel.handshake import Login
from paceline.channel.listener import MAX_GREETINGS, QuietLog, SecureListener

SECRET = b"the secret of this job"
CALLER = Login(SECRET, "caller", "me")


def started(server: Any, serve: Any = SecureConnection.close) -> SecureListener:
    made = SecureListener(server, Login(SECRET, "listener"), serve, callers=("caller",))
    threading.Thread(target=made.run, daemon=True).start()
    return made


def call(port: int) -> SecureConnection:
    return open_connection("127.0.0.1", port, CALLER, listener="listener", timeout=5)


class Failing:
    """A server whose first calls of accept fail."""

    def __init__(self, server: socket.socket, errors: list[int]) -> None:
        self._server, self._errors = server, errors

    def accept(self) -> Any:
        if self._errors:
            raise OSError(self._errors.pop(), "as the kernel says")
        return self._server.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)


@pytest.mark.parametrize("number", [errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EPROTO])
def test_an_error_of_accept_does_not_end_the_listener(number: int) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    made = started(Failing(server, [number] * 3))
    call(server.getsockname()[1]).close()
    made.close()


def test_a_process_without_descriptors_serves_again_when_it_has_some() -> None:
    """Finding 10, with the real limit: silent connections use up what the process may open."""
    program = (
        "import resource, socket, sys\n"
        "from paceline.channel.handshake import Login\n"
        "from paceline.channel.listener import SecureListener\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))\n"
        "server = socket.create_server(('127.0.0.1', 0), backlog=128)\n"
        "print(server.getsockname()[1], flush=True)\n"
        f"login = Login({SECRET!r}, 'listener')\n"
        "SecureListener(server, login, lambda connection: connection.close(), callers=('caller',)).run()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        silent = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(100)]
        try:
            call(port).close()
            assert process.poll() is None
        finally:
            process.kill()
            for connection in silent:
                connection.close()


@pytest.mark.alone
def test_too_many_silent_connections_make_room_for_one_that_speaks() -> None:
    server = socket.create_server(("127.0.0.1", 0), backlog=512)
    made, port = started(server), server.getsockname()[1]
    silent = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(3 * MAX_GREETINGS)]
    began = time.monotonic()
    call(port).close()
    while len([one for one in threading.enumerate() if one.name == "paceline-caller"]) > MAX_GREETINGS:
        assert time.monotonic() - began < module.GREETING_TIMEOUT / 2, "dropped ones end before the others time out"
        time.sleep(0.01)
    made.close()
    for connection in silent:
        connection.close()


def test_the_number_of_open_connections_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CALLERS", 3)
    server = socket.create_server(("127.0.0.1", 0))
    kept: list[SecureConnection] = []
    made, port = started(server, kept.append), server.getsockname()[1]
    mine = [call(port) for _ in range(3)]
    while len(kept) < 3:  # a caller is logged in before the listener has counted it
        time.sleep(0.01)
    with pytest.raises(ConnectionError):
        call(port)
    kept[0].close()
    call(port).close()
    while len(kept) < 4:
        time.sleep(0.01)
    made.close()
    for connection in (*mine, *kept):
        connection.close()


def test_whatever_serving_raises_ends_that_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    def serve(connection: SecureConnection) -> None:
        raise {b"deep": RecursionError, b"text": UnicodeError, b"other": KeyError}[connection.receive(timeout=5)[0]](
            "x"
        )

    server = socket.create_server(("127.0.0.1", 0))
    made, port = started(server, serve), server.getsockname()[1]
    with caplog.at_level(logging.WARNING, logger="paceline.channel"):
        for text in (b"deep", b"text", b"other"):
            mine = call(port)
            mine.send(text)
            with pytest.raises(ConnectionError):
                mine.receive(timeout=5)
            mine.close()
    made.close()
    assert caplog.text.count("closed the connection of") == 3
    assert "Traceback" not in caplog.text


def test_a_closed_listener_refuses_at_once() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    made, port = started(server), server.getsockname()[1]
    call(port).close()
    made.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_what_others_can_cause_is_logged_a_few_times_then_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding 24: 677 kB of log in 12 seconds."""
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    quiet = QuietLog(few=3, period=0.2)
    with caplog.at_level(logging.WARNING, logger="paceline.channel"):
        for number in range(1000):
            quiet.warn("refused %d", number)
        assert [record.getMessage() for record in caplog.records] == ["refused 0", "refused 1", "refused 2"]
        now[0] += 0.25
        quiet.warn("refused again")
        now[0] += 0.25
        quiet.warn("refused later")
    assert [record.getMessage() for record in caplog.records][3:] == [
        "997 more connections were refused",
        "refused again",
        "refused later",
    ]
