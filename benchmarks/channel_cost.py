"""What the channel costs: bytes and microseconds of a frame, against the same bytes over a bare socket.

    .venv/bin/python benchmarks/channel_cost.py

Two threads of one process over loopback. For every size: the round trip of a frame and its answer of the same size,
over the channel (`channel`) and over a bare socket with a length before each message (`bare`), and the processor time
of both ends for one frame. Rounds of both alternate; medians. A handshake is measured from the call to the login.
"""

from __future__ import annotations

import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from lib.result import Figure, parser_of, publish

from paceline.channel.frames import SecureConnection, accept_connection, open_connection
from paceline.channel.handshake import Login

SIZES = (100, 10_000, 1_000_000, 25_000_000)
LOGIN = Login(b"a secret that is long enough", "caller"), Login(b"a secret that is long enough", "listener")
HANDSHAKES = 50


class Bare:
    """A socket with a length before each message."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection

    def send(self, text: bytes, data: bytes) -> None:
        """Send one message."""
        self._connection.sendall(struct.pack(">IQ", len(text), len(data)) + text)
        self._connection.sendall(data)

    def receive(self) -> tuple[bytes, bytes]:
        """Receive one message."""
        text, data = struct.unpack(">IQ", self._exactly(12))
        return bytes(self._exactly(text)), bytes(self._exactly(data))

    def _exactly(self, size: int) -> bytearray:
        taken = bytearray(size)
        view, at = memoryview(taken), 0
        while at < size:
            at += self._connection.recv_into(view[at:])
        return taken


def connected(kind: str) -> tuple[Any, Any]:
    """Both ends of a connection."""
    server = socket.create_server(("127.0.0.1", 0))
    port, ends = server.getsockname()[1], []

    def accept() -> None:
        plain, _ = server.accept()
        ends.append(Bare(plain) if kind == "bare" else accept_connection(plain, LOGIN[1], ("caller",)))

    thread = threading.Thread(target=accept)
    thread.start()
    mine: Bare | SecureConnection
    if kind == "bare":
        mine = Bare(socket.create_connection(("127.0.0.1", port)))
    else:
        mine = open_connection("127.0.0.1", port, LOGIN[0], listener="listener", timeout=10)
    thread.join()
    server.close()
    return mine, ends[0]


def answering(end: Any) -> Callable[[], None]:
    """Answer every frame with itself until the connection ends."""

    def run() -> None:
        try:
            while True:
                end.send(*end.receive())
        except (OSError, struct.error):
            return

    return run


def trips(end: Any, size: int, count: int) -> tuple[list[float], float]:
    """Seconds of each round trip, and processor seconds of a frame, of both ends together."""
    data, seconds, spent = bytes(size), [], time.process_time()
    for _ in range(count):
        begin = time.perf_counter()
        end.send(b"{}", data)
        end.receive()
        seconds.append(time.perf_counter() - begin)
    return seconds, (time.process_time() - spent) / (2 * count)


def handshake() -> float:
    """Seconds of one handshake, median."""
    found = []
    for _ in range(HANDSHAKES):
        begin = time.perf_counter()
        mine, other = connected("channel")
        found.append(time.perf_counter() - begin)
        mine.close()
        other.close()
    return statistics.median(found)


def main() -> None:
    """Measure all sizes and print them."""
    parser = parser_of(__doc__)
    parser.add_argument("--turns", type=int, default=10, help="how often each size is measured")
    args = parser.parse_args()
    ends = {}
    for kind in ("bare", "channel"):
        ends[kind], other = connected(kind)
        threading.Thread(target=answering(other), daemon=True).start()
    turns = []
    for turn in range(args.turns):
        for size in SIZES:
            count = max(3, min(500, 20_000_000 // size))
            for kind, end in ends.items():
                seconds, effort = trips(end, size, count)
                turns.append(
                    {"turn": turn, "bytes": size, "kind": kind, "s": statistics.median(seconds), "cpu_s": effort}
                )
    figures = [Figure("handshake", handshake() * 1e6, "us"), Figure("bytes added to a frame", 32.0, "B")]
    for size in SIZES:
        for kind in ends:
            rows = [row for row in turns if (row["bytes"], row["kind"]) == (size, kind)]
            for name, key in (("round trip", "s"), ("processor time of a frame", "cpu_s")):
                median = statistics.median(float(row[key]) for row in rows)
                figures.append(Figure(f"{name}, {size} bytes, {kind}", median * 1e6, "us"))
    publish(args, figures, turns=turns)


if __name__ == "__main__":
    main()
