"""Measures one link from inside its hosts: bytes per second of a stream, round trips, and the other host's clock.

Runs as a script with the standard library only, so that it works on any host with Python:

    probe.py serve ADDRESS PORT             answers measurements until killed; prints "ready"
    probe.py rate ADDRESS PORT SECONDS      prints the bytes per second that arrived
    probe.py trips ADDRESS PORT COUNT       prints the seconds of each round trip
    probe.py clock ADDRESS PORT COUNT       prints "sent served received" of each exchange, in seconds of wall clock
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
import time

__all__ = ["exchanges", "listen", "main", "rate", "serve"]

_ASK = struct.Struct("!c")
_TIME = struct.Struct("!d")
_RATE = struct.Struct("!dd")
_SETTLE_S = 0.1
"""Seconds at the start of a stream that are not counted (TCP slow start)."""
_MOST_PEERS = 64
"""Connections at one time; a measurement needs one or two."""
_SILENCE_S = 10.0
"""Seconds after which a peer that sends nothing is cut off."""
_DROPPED = 5
"""First exchanges of a connection that are not counted."""


def listen(address: str, port: int) -> socket.socket:
    """Listen for measurements."""
    return socket.create_server((address, port), backlog=64)


def serve(server: socket.socket) -> None:
    """Serve measurements concurrently until killed."""
    places = threading.BoundedSemaphore(_MOST_PEERS)
    with server:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:  # the peer disconnected, or descriptors ran out: measurements continue
                time.sleep(0.01)
                continue
            if places.acquire(blocking=False):
                threading.Thread(target=_answer, args=(peer, places), daemon=True).start()
            else:
                peer.close()


def _answer(peer: socket.socket, places: threading.BoundedSemaphore) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(places.release)
        stack.enter_context(peer)
        stack.enter_context(contextlib.suppress(OSError))
        peer.settimeout(_SILENCE_S)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _receive(peer, _ASK.size) == b"r":
            peer.sendall(_RATE.pack(*_count(peer)))
        else:
            while True:
                _receive(peer, 1)
                peer.sendall(_TIME.pack(time.time()))


def _count(peer: socket.socket) -> tuple[float, float]:
    """Bytes that arrived after the start of the stream, and the seconds they took."""
    buffer = memoryview(bytearray(1 << 18))
    begin = settled_at = last = time.perf_counter()
    settled = total = 0
    while size := peer.recv_into(buffer):
        total, last = total + size, time.perf_counter()
        if last - begin < _SETTLE_S:
            settled, settled_at = total, last
    return float(total - settled), max(last - settled_at, 1e-9)


def rate(address: str, port: int, seconds: float) -> float:
    """Bytes per second that the other side received."""
    block = bytes(1 << 16)
    with _connect(address, port) as peer:
        peer.sendall(b"r")
        deadline = time.perf_counter() + seconds + _SETTLE_S
        while time.perf_counter() < deadline:
            peer.sendall(block)
        peer.shutdown(socket.SHUT_WR)
        arrived, elapsed = _RATE.unpack(_receive(peer, _RATE.size))
    return float(arrived / elapsed)


def exchanges(address: str, port: int, count: int) -> list[tuple[float, float, float]]:
    """Send time, time of the other side's clock, and receive time of each message, as wall clock."""
    trips = []
    with _connect(address, port) as peer:
        peer.sendall(b"t")
        for _ in range(count + _DROPPED):
            time.sleep(0.002)
            wall, sent = time.time(), time.perf_counter()
            peer.sendall(b"x")
            (served,) = _TIME.unpack(_receive(peer, _TIME.size))
            trips.append((wall, served, wall + time.perf_counter() - sent))
    return trips[_DROPPED:]


def _connect(address: str, port: int) -> socket.socket:
    peer = socket.create_connection((address, port), timeout=20)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def _receive(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = peer.recv(size - len(data))
        if not piece:
            raise ConnectionError("the peer closed the connection")
        data += piece
    return data


def _say(value: object) -> None:
    sys.stdout.write(f"{value}\n")
    sys.stdout.flush()


def main(verb: str, address: str, port: str, *rest: str) -> int:
    """Run one command of the module docstring."""
    if verb == "serve":
        server = listen(address, int(port))
        _say("ready")
        serve(server)
    elif verb == "rate":
        _say(rate(address, int(port), float(rest[0])))
    else:
        for sent, served, received in exchanges(address, int(port), int(rest[0])):
            _say(received - sent if verb == "trips" else f"{sent:.9f} {served:.9f} {received:.9f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
