"""What the kernel does for a connection, and what it says about its ends."""

from __future__ import annotations

import contextlib
import socket

__all__ = ["has_one_address", "keep_alive"]

_KEEP_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""After 25 s without any sign from the peer's host the kernel ends the connection."""


def has_one_address(connection: socket.socket) -> bool:
    """Whether both ends have one address, or none: no network is between them."""
    with contextlib.suppress(OSError):
        return bool(connection.getpeername()[:1] == connection.getsockname()[:1])
    return False


def keep_alive(connection: socket.socket) -> None:
    """Disable Nagle's algorithm, and enable keep-alive to detect an unreachable host."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
