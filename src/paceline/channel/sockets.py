"""Socket options of a connection, and the addresses of its ends."""

from __future__ import annotations

import contextlib
import os
import socket
import weakref

__all__ = ["close_in_forks", "has_one_address", "keep_alive"]

_KEEP_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""After 25 s without any sign from the peer's host the kernel ends the connection."""

_NOT_FOR_FORKS: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def close_in_forks(connection: socket.socket) -> None:
    """Close the socket in every process that this one forks.

    A forked process, such as a worker of a data loader, would otherwise hold it open after the death of this one.
    """
    _NOT_FOR_FORKS.add(connection)


def _close_inherited() -> None:
    for connection in list(_NOT_FOR_FORKS):
        connection.close()  # without a shutdown, which would end the connection of the parent


os.register_at_fork(after_in_child=_close_inherited)


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
