"""A listener that no caller can block: an error of a connection closes only that connection.

Callers that are not authenticated yet are bounded in number and time. If there are too many, the oldest connection is
closed: a handshake takes milliseconds, so the oldest caller is the one that sends nothing. Refusals are logged, a few
every ten seconds, and further ones by their number.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from paceline.channel.frames import GREETING_TIMEOUT, SecureConnection, accept_connection
from paceline.channel.handshake import Login
from paceline.channel.sockets import close_in_forks

__all__ = ["MAX_CALLERS", "MAX_GREETINGS", "QuietLog", "SecureListener"]

MAX_GREETINGS = 64
"""Connections that are in their handshake at one time."""
MAX_CALLERS = 4096
"""Authenticated connections at one time: a few for each process of the largest job."""
POLL = 0.2
"""Interval in seconds of the check whether the listener is closed."""
PAUSE = 0.005
"""Seconds to wait when this process has no descriptors left, so that some handshakes have ended."""
SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
log = logging.getLogger("paceline.channel")


class QuietLog:
    """Rate-limited warnings that a peer can cause: a few in each period, then the number of further ones."""

    def __init__(self, *, few: int = 5, period: float = 10.0) -> None:
        self._few, self._period = few, period
        self._lock = threading.Lock()
        self._began, self._count = time.monotonic(), 0

    def warn(self, text: str, *args: Any) -> None:
        """Log it, unless the period has had enough."""
        with self._lock:
            now = time.monotonic()
            if now - self._began > self._period:
                hidden, self._began, self._count = self._count - self._few, now, 0
                if hidden > 0:
                    log.warning("%d more connections were refused", hidden)
            self._count += 1
            if self._count > self._few:
                return
        log.warning(text, *args)


class SecureListener:
    """Accepts callers that log in, and runs `serve` for each in a separate thread."""

    def __init__(
        self,
        server: socket.socket,
        login: Login,
        serve: Callable[[SecureConnection], object],
        *,
        callers: tuple[str, ...],
    ) -> None:
        """`serve` owns the connection that it is given, and closes it; `callers` are the roles that may call."""
        self._server, self._login, self._serve, self._callers = server, login, serve, callers
        close_in_forks(server)
        self._quiet = QuietLog()
        self._lock = threading.Lock()
        self._greeting: dict[socket.socket, None] = {}
        """Connections in their handshake, the oldest first."""
        self._served: set[SecureConnection] = set()
        self._closed = threading.Event()

    def run(self) -> None:
        """Accept callers until `close`."""
        self._server.setblocking(False)
        waiter = select.poll()  # `select` supports descriptors up to 1,023 only
        waiter.register(self._server, select.POLLIN)
        try:
            while not self._closed.is_set():
                if waiter.poll(POLL * 1000):
                    self._accept()
        finally:
            self._server.close()

    def close(self) -> None:
        """Stop accepting; further callers are refused at once."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        try:
            connection, address = self._server.accept()
        except OSError as error:
            # The caller disconnected, or this process lacks a resource: the listener continues.
            if not self._closed.is_set() and error.errno in SHORT_OF:
                self._quiet.warn("cannot accept a connection: %s", error)
                self._drop_oldest()
                time.sleep(PAUSE)
            return
        with self._lock:
            if len(self._served) >= MAX_CALLERS:
                self._forget_ended()
            full, many = len(self._served) >= MAX_CALLERS, len(self._greeting) >= MAX_GREETINGS
            if not full:
                self._greeting[connection] = None
        if full:
            self._refuse(connection, address, "too many connections are open")
            return
        if many:
            self._drop_oldest()
        try:
            # A thread for each caller: a silent caller must not delay the others.
            threading.Thread(
                target=self._greet, args=(connection, address), daemon=True, name="paceline-caller"
            ).start()
        except RuntimeError as error:  # no further thread can be started
            self._leave(connection)
            self._refuse(connection, address, error)

    def _drop_oldest(self) -> None:
        with self._lock:
            oldest = next(iter(self._greeting), None)
            if oldest is not None:
                del self._greeting[oldest]
                # The thread that greets it is woken, and closes it.
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)

    def _greet(self, plain: socket.socket, address: Any) -> None:
        try:
            connection = accept_connection(plain, self._login, self._callers, timeout=GREETING_TIMEOUT)
        except Exception as error:  # noqa: BLE001 - an error of a connection closes only that connection
            self._leave(plain)
            self._refuse(plain, address, error)
            return
        with self._lock:
            self._greeting.pop(plain, None)
            self._forget_ended()
            self._served.add(connection)
        try:
            self._serve(connection)
        except Exception as error:
            log.debug("the connection of %s ended", address, exc_info=True)
            if not isinstance(error, ConnectionError):
                self._quiet.warn("closed the connection of %s: %s: %s", address, type(error).__name__, error)
            connection.close()

    def _forget_ended(self) -> None:
        """Remove ended threads from the set."""
        self._served = {served for served in self._served if not served.closed}

    def _leave(self, connection: socket.socket) -> None:
        with self._lock:
            self._greeting.pop(connection, None)

    def _refuse(self, connection: socket.socket, address: Any, why: object) -> None:
        connection.close()
        place = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "a local socket"
        self._quiet.warn("refused a connection from %s: %s", place, why)
