"""The sockets of one Gloo process group, which Gloo itself cannot close. Ranks exchange the addresses of their Gloo
listeners over the board of their view, which identifies the sockets of the group. The listeners are closed to other
peers once the group is connected. When a group is abandoned its sockets are shut down, so that pending operations end
and release threads and descriptors.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import socket
import struct
from collections.abc import Iterable, Iterator

__all__ = ["Endpoints", "cut_connections", "endpoints_of", "ignore_callers"]

_INTERNET = re.compile(rb"\x02\x00(..)(.{4})\x00{8}", flags=re.S)
"""A `sockaddr_in` of the kernel: family, port, address, eight zeros."""
_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER, which Python does not name."""
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A filter of one instruction: keep no bytes of any packet."""

Endpoints = frozenset[tuple[str, int]]
log = logging.getLogger("paceline.runtime")


def endpoints_of(values: Iterable[bytes]) -> Endpoints:
    """Where the ranks' Gloo listens, from what they wrote on the board."""
    found = [match for value in values for match in _INTERNET.findall(value)]
    return frozenset((socket.inet_ntoa(address), int.from_bytes(port, "big")) for port, address in found)


def ignore_callers(endpoints: Endpoints) -> int:
    """Let the listeners of a connected group hear nobody any more; how many there were."""
    count = 0
    for each in _sockets(endpoints):
        if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            count += _deafened(each)
    return count


def _deafened(listener: socket.socket) -> bool:
    """Whether a listener hears nobody any more: some kernels let only privileged processes attach a filter."""
    program = ctypes.create_string_buffer(_DROP, len(_DROP))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))
    except PermissionError:
        host, port = listener.getsockname()[:2]
        log.warning("this kernel allows no socket filter: whoever reaches %s:%d can disturb the exchange", host, port)
        return False
    return True


def cut_connections(endpoints: Endpoints) -> int:
    """End the connections of an abandoned group; how many there were."""
    count = 0
    for each in _sockets(endpoints):
        if not each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            each.shutdown(socket.SHUT_RDWR)
            count += 1
    return count


def _sockets(endpoints: Endpoints) -> Iterator[socket.socket]:
    """Every socket of this process with such an endpoint on one of its sides; a failure of one is no matter."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as each:
                if _ends(each) & endpoints:
                    yield each


def _ends(each: socket.socket) -> set[tuple[str, int]]:
    ends = set()
    for read in (each.getsockname, each.getpeername):
        with contextlib.suppress(OSError):
            name = read()
            if isinstance(name, tuple):
                ends.add((name[0], name[1]))
    return ends
