"""The port that a link is measured by is open to anybody for seconds; nobody can hold it up."""

from __future__ import annotations

import contextlib
import os
import socket
import threading

from paceline.bench.virtual import probe


def test_measurements_go_on_beside_connections_that_say_nothing_or_nonsense() -> None:
    server = probe.listen("127.0.0.1", 0)
    address, port = server.getsockname()
    threading.Thread(target=probe.serve, args=(server,), daemon=True).start()
    crowd = [socket.create_connection((address, port), timeout=5) for _ in range(40)]
    for connection in crowd[:20]:
        connection.sendall(os.urandom(100))
    assert len(probe.exchanges(address, port, 3)) == 3
    assert probe.rate(address, port, 0.05) > 0
    crowd += [socket.create_connection((address, port), timeout=5) for _ in range(100)]
    for connection in crowd:
        connection.close()
    with contextlib.suppress(OSError):
        probe.exchanges(address, port, 1)  # may find the last of the crowd still there
    assert len(probe.exchanges(address, port, 3)) == 3
