"""A connection on which every frame has a MAC, with a deadline for every send and receive.

A frame has a head (bytes of text, bytes of data, MAC), the text, the data, and a MAC over all of it. Each direction has
its own key and counts its frames, so that a changed, repeated, missing or reflected frame ends the connection.

Sending never waits: a thread sends the part of a frame that the socket does not accept at once. A connection whose peer
reads too slowly for too long is closed. So threads that send heartbeats or decide never wait for a slow peer.

Large frames are sealed and checked in pieces, so that both sides work at the same time. A peer ignores a frame without
its MAC: a sender that has to wait for an event before the peer may act sends the rest of the frame meanwhile (`hold`).
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from paceline.channel.handshake import Keys, Login, Opening, greet_caller, greet_listener
from paceline.channel.macs import MAC_BYTES, FrameMacs, Octets, check_mac
from paceline.channel.plain import UnacceptableText, load_plain
from paceline.channel.sockets import close_in_forks, has_one_address, keep_alive

__all__ = [
    "GREETING_TIMEOUT",
    "IDLE_TIMEOUT",
    "PeerClosed",
    "SecureConnection",
    "accept_connection",
    "call_connected",
    "open_connection",
]

GREETING_TIMEOUT = 5.0
"""Seconds for a whole handshake: two round trips and some hashes take milliseconds, the rest is for a busy host."""
IDLE_TIMEOUT = 3600.0
"""Default receive timeout in seconds."""
FRAME_TIMEOUT = 20.0
"""Seconds in which a frame that has begun must be through, and longer by its size at the slowest rate."""
SLOWEST_RATE = 1 << 16
"""Bytes per second below which a link counts as broken."""
MAX_TEXT = 64 << 20
"""Bytes of text in a frame: the structure of a model's state, which a report holds, is far below."""
MAX_DATA = 1 << 34
MAX_QUEUED = 1 << 35
"""Bytes that wait for a slow peer before the connection is given up."""
_HEAD = struct.Struct(">IQ")
_JOINED = 1 << 16
"""Bytes up to which a frame is copied together, so that it is one system call and one packet; and of a larger one's
pieces."""
_LONGEST_POLL = 3600.0
"""Longest poll in seconds; the kernel's limit is some weeks."""


class PeerClosed(ConnectionError):
    """The peer closed the connection or exited; not a timeout, a protocol error, or a reset of the network between.

    A firewall resets connections of processes that live. Only the peer's own kernel ends one in order, and no firewall
    stands between two processes of one address.
    """


class SecureConnection:
    """One authenticated connection; any thread may send, one thread receives. Failures are ConnectionError."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        keep_alive(connection)
        close_in_forks(connection)
        self.peer = ""
        """Name by which the peer logged in."""
        self._connection, self._buffer = connection, bytearray()
        self._local = has_one_address(connection)
        self._lock, self._sending = threading.Lock(), threading.Lock()  # the second: one frame after the other
        self._queue: deque[tuple[memoryview, float]] = deque()
        self._queued, self._writing = 0, False
        self._broken, self._closed, self._users = "", False, 0
        self._ended = False
        """Whether it is the peer that ended the connection, by what a send has met."""
        self._keys: tuple[FrameMacs, FrameMacs] | None = None

    def log_in(self, greet: Callable[[Opening], Keys], *, address: str, timeout: float) -> None:
        """Carry out one side of the handshake, all of it within the timeout."""
        deadline = time.monotonic() + timeout
        opening = Opening(
            lambda size: bytes(self._exactly(size, deadline)), lambda data: self._hand_over(data, deadline), address
        )
        keys = greet(opening)
        self.peer, self._keys = keys.peer, (FrameMacs(keys.sending), FrameMacs(keys.receiving))

    def send(self, text: bytes, data: Octets = b"", *, hold: Callable[[], None] | None = None) -> None:
        """Send or queue one frame; raises ConnectionError if the connection is closed.

        `data` must not change afterwards. The end of the frame is sent only after `hold` has returned.
        """
        with self._sending:
            try:
                for part in self._sealed(text, data, hold):
                    self._put(part)
            except BaseException:
                with self._lock:  # a part of the frame may be under way
                    self._break("a frame could not be completed")
                raise

    def _put(self, part: Octets) -> None:
        with self._lock:
            if self._broken:
                raise ConnectionError(self._broken)
            self._queued += len(part)
            self._queue.append((memoryview(part), time.monotonic() + _allowed(self._queued)))
            if self._queued > MAX_QUEUED:
                self._break(f"the peer reads nothing: {self._queued} bytes wait for it")
            elif not self._writing and not self._drain():
                self._writing = True
                threading.Thread(target=self._write, daemon=True, name="paceline-write").start()
            if self._broken:
                raise ConnectionError(self._broken)

    def receive(
        self, *, timeout: float = IDLE_TIMEOUT, max_text: int = MAX_TEXT, max_data: int = MAX_DATA
    ) -> tuple[bytes, bytes]:
        """Text and data of the next frame, which has to begin within the timeout."""
        assert self._keys is not None
        with self._using():
            try:
                return self._receive(self._keys[1], timeout, max_text, max_data)
            except ConnectionError as error:
                with self._lock:  # what comes next cannot be trusted, or read
                    self._break(str(error))
                raise

    def _receive(self, macs: FrameMacs, timeout: float, max_text: int, max_data: int) -> tuple[bytes, bytes]:
        self._fill(1, time.monotonic() + timeout)
        head = self._exactly(_HEAD.size + MAC_BYTES, time.monotonic() + FRAME_TIMEOUT)
        mac = macs.check_head(head, _HEAD.size)
        text_size, data_size = _HEAD.unpack_from(head)
        if text_size > max_text or data_size > max_data:
            raise ConnectionError(f"the peer announced {text_size} + {data_size} bytes, which is too much here")
        deadline = time.monotonic() + _allowed(text_size + data_size)
        text, data = self._exactly(text_size, deadline, mac), self._exactly(data_size, deadline, mac)
        check_mac(mac, self._exactly(MAC_BYTES, deadline))
        return bytes(text), data  # type: ignore[return-value] # large: no copy only to forbid changes

    def send_plain(self, value: Any) -> None:
        """Send a value of JSON."""
        self.send(json.dumps(value, separators=(",", ":")).encode())

    def receive_plain(self, *, timeout: float = IDLE_TIMEOUT, max_text: int = MAX_TEXT) -> Any:
        """A value of JSON, checked for its depth and characters."""
        try:
            return load_plain(self.receive(timeout=timeout, max_text=max_text, max_data=0)[0])
        except UnacceptableText as error:
            raise ConnectionError(str(error)) from error

    def wait_sent(self, timeout: float) -> bool:
        """Wait until the queue is empty; False after the timeout, or if the connection is closed."""
        deadline = time.monotonic() + timeout
        while not self._broken:
            if not self._queue:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return False

    @property
    def closed(self) -> bool:
        """Whether the connection is closed for sending."""
        return bool(self._broken)

    @property
    def own_address(self) -> str:
        """Address of this end; empty for a socket without one."""
        name = self._connection.getsockname()
        return str(name[0]) if isinstance(name, tuple) else ""

    def end_sending(self) -> None:
        """Say that nothing more comes; what the peer still sends can be received."""
        self.wait_sent(1.0)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def fileno(self) -> int:
        """File descriptor for `select`; readable when a frame arrives or the peer has closed the connection."""
        return self._connection.fileno()

    def detach(self) -> socket.socket:
        """The authenticated socket, for a use without frames."""
        self._broken = "the socket has another use"
        return self._connection

    def close(self) -> None:
        """Close the connection at once; a thread that is receiving is woken."""
        with self._using(), self._lock:
            self._break("the connection was closed here")
            self._closed = True

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        """The descriptor is freed by the last thread that uses it: another file may get its number at once."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._closed and self._users == 0:
                    self._connection.close()

    def _break(self, why: str) -> None:
        self._broken = self._broken or why
        self._queue.clear()
        self._queued = 0
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _sealed(self, text: bytes, data: Octets, hold: Callable[[], None] | None = None) -> Iterator[Octets]:
        """The parts of a frame, each when it is sealed; the last part after `hold`."""
        if self._keys is None:
            raise ConnectionError("the connection has no keys yet")
        head, mac = self._keys[0].seal_head(_HEAD.pack(len(text), len(data)))
        mac.update(text)
        begin, rest = head + text, memoryview(data)
        if len(text) + len(data) > _JOINED:
            yield begin
            begin = b""
        while rest and not begin:
            mac.update(rest[:_JOINED])
            yield rest[:_JOINED]
            rest = rest[_JOINED:]
        mac.update(rest)
        if hold is not None:
            hold()
        yield b"".join((begin, rest, mac.digest()[:MAC_BYTES]))

    def _drain(self) -> bool:
        """Hand over what the socket takes without waiting; whether nothing is left."""
        try:
            while self._queue:
                part, deadline = self._queue[0]
                sent = self._connection.send(part)
                self._queued -= sent
                if sent == len(part):
                    self._queue.popleft()
                else:
                    self._queue[0] = (part[sent:], deadline)
        except BlockingIOError:
            return False
        except OSError as error:
            self._ended = self._is_end(error)
            self._break(f"the peer is gone: {error}")
        return True

    def _write(self) -> None:
        with self._using():
            self._write_all()

    def _write_all(self) -> None:
        while True:
            with self._lock:
                if self._drain():
                    self._writing = False
                    return
                deadline = self._queue[0][1]
                if time.monotonic() > deadline:
                    self._break("the peer takes too little of what it is sent")
            self._poll(select.POLLOUT, min(deadline, time.monotonic() + 1.0))

    def _hand_over(self, data: bytes, deadline: float) -> None:
        """Send bytes of the handshake, before there are frames."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._connection.send(rest) :]
            except BlockingIOError:
                if not self._poll(select.POLLOUT, deadline):
                    raise ConnectionError("the peer reads nothing") from None
            except OSError as error:
                raise ConnectionError(f"the peer is gone: {error}") from error

    def _exactly(self, size: int, deadline: float, mac: hmac.HMAC | None = None) -> bytearray:
        """The next bytes, which are added to a MAC; large pieces are read into their place."""
        if size <= _JOINED:
            self._fill(size, deadline)
            taken = self._buffer[:size]
            del self._buffer[:size]
            if mac is not None:
                mac.update(taken)
            return taken
        try:
            taken = bytearray(size)
        except MemoryError as error:
            raise ConnectionError(f"there is no memory for {size} bytes of a peer") from error
        at = min(size, len(self._buffer))
        taken[:at] = self._buffer[:at]
        del self._buffer[:at]
        view, checked = memoryview(taken), 0
        while at < size:
            if mac is not None:
                mac.update(view[checked:at])
                checked = at
            at += self._arrived(functools.partial(self._connection.recv_into, view[at:]), deadline)
        if mac is not None:
            mac.update(view[checked:])
        return taken

    def _fill(self, size: int, deadline: float) -> None:
        """Read until the buffer holds that much."""
        while len(self._buffer) < size:

            def take() -> int:
                part = self._connection.recv(_JOINED)
                self._buffer += part
                return len(part)

            self._arrived(take, deadline)

    def _arrived(self, take: Callable[[], int], deadline: float) -> int:
        """Bytes of one read, which waits until the deadline."""
        while True:
            try:
                count = take()
            except BlockingIOError:
                if not self._poll(select.POLLIN, deadline):
                    raise ConnectionError("the peer sent nothing, or too little, before the deadline") from None
                continue
            except OSError as error:
                raise (PeerClosed if self._is_end(error) else ConnectionError)(f"the peer is gone: {error}") from error
            if count == 0 and self._broken and not self._ended:
                raise ConnectionError(self._broken)
            if count == 0:
                raise PeerClosed("the peer closed the connection")
            return count

    def _is_end(self, error: OSError) -> bool:
        """Whether the peer's own kernel ended the connection: a pipe is broken if it was closed before it was reset."""
        return isinstance(error, BrokenPipeError) or (self._local and isinstance(error, ConnectionResetError))

    def _poll(self, event: int, deadline: float) -> bool:
        """Whether to try again: something has happened, or the deadline is not over."""
        waiter, seconds = select.poll(), min(max(0.0, deadline - time.monotonic()), _LONGEST_POLL)
        with contextlib.suppress(OSError, ValueError):
            waiter.register(self._connection, event)
            return bool(waiter.poll(seconds * 1000)) or seconds == _LONGEST_POLL
        return True


def open_connection(address: str, port: int, login: Login, *, listener: str, timeout: float) -> SecureConnection:
    """Call a listener of that role; the timeout holds for the connection, and again for the whole handshake.

    Raises OSError if no listener answers, ConnectionError if the listener does not authenticate.
    """
    try:
        plain = socket.create_connection((address, port), timeout=timeout)
    except ValueError as error:  # a name that no resolver takes, from a peer or from a file
        raise OSError(f"{address[:60]!r} is no address: {error}") from error
    return call_connected(plain, login, listener=listener, timeout=timeout)


def call_connected(plain: socket.socket, login: Login, *, listener: str, timeout: float) -> SecureConnection:
    """Log in as the caller on a socket that is connected already, such as one that ssh carries."""
    return _logged_in(plain, lambda opening: greet_listener(opening, login, listener), caller=True, timeout=timeout)


def accept_connection(
    plain: socket.socket, login: Login, callers: tuple[str, ...], *, timeout: float = GREETING_TIMEOUT
) -> SecureConnection:
    """Log in a caller of one of these roles; closes the connection if it cannot be."""
    return _logged_in(plain, lambda opening: greet_caller(opening, login, callers), caller=False, timeout=timeout)


def _logged_in(
    plain: socket.socket, greet: Callable[[Opening], Keys], *, caller: bool, timeout: float
) -> SecureConnection:
    try:
        address = plain.getpeername() if caller else plain.getsockname()
        connection = SecureConnection(plain)
        text = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else ""
        connection.log_in(greet, address=text, timeout=timeout)
        return connection
    except BaseException as error:
        plain.close()
        if isinstance(error, OSError) and not isinstance(error, ConnectionError):
            raise ConnectionError(f"the peer is gone: {error}") from error
        raise


def _allowed(size: int) -> float:
    """Seconds for that many bytes."""
    return FRAME_TIMEOUT + size / SLOWEST_RATE
