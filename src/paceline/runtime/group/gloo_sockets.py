"""The sockets of one Gloo process group, which Gloo has no call to close.

Ranks exchange the addresses of their Gloo listeners over the board of their view; the addresses identify the sockets of
the group. When the group is connected, its listeners stop to accept other peers. When the group is abandoned, its
sockets are shut down, so that pending operations end and release threads and descriptors.
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
"""A `sockaddr_in` of the kernel: family, port, address, eight zero bytes."""
_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER; Python has no constant for it."""
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A socket filter with one instruction: drop every packet."""

Endpoints = frozenset[tuple[str, int]]
log = logging.getLogger("paceline.runtime")


def endpoints_of(values: Iterable[bytes]) -> Endpoints:
    """Endpoints of the Gloo listeners of all ranks, from the values on the board."""
    found = [match for value in values for match in _INTERNET.findall(value)]
    return frozenset((socket.inet_ntoa(address), int.from_bytes(port, "big")) for port, address in found)


def ignore_callers(endpoints: Endpoints) -> int:
    """Stop the listeners of a connected group from accepting further peers; return their number."""
    count = 0
    for each in _sockets(endpoints):
        if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            count += _drop_packets(each)
    return count


def _drop_packets(listener: socket.socket) -> bool:
    """Attach the filter to a listener; False if the kernel permits that to privileged processes only."""
    program = ctypes.create_string_buffer(_DROP, len(_DROP))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))
    except PermissionError:
        host, port = listener.getsockname()[:2]
        log.warning(
            "this kernel allows no socket filter: any process that can connect to %s:%d can disturb the exchange",
            host,
            port,
        )
        return False
    return True


def cut_connections(endpoints: Endpoints) -> int:
    """Shut down the connections of an abandoned group; return their number."""
    count = 0
    for each in _sockets(endpoints):
        if not each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            with contextlib.suppress(OSError):  # the peer may have reset it meanwhile
                each.shutdown(socket.SHUT_RDWR)
            count += 1
    return count


def _sockets(endpoints: Endpoints) -> Iterator[socket.socket]:
    """Sockets of this process with one of these endpoints on either side; sockets that fail are skipped."""
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
