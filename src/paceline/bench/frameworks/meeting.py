"""How the ranks of one launch agree: barriers, one rank's word for all, and the offsets of their clocks.

Rank 0 listens, the others connect; lines of JSON over TCP, nothing but the standard library, so that it works the same
in every framework. A peer must show the launch's token. Runs inside measured processes: Python 3.9 syntax only.
"""

from __future__ import annotations

import hmac
import json
import socket
import time
from typing import Any

__all__ = ["Meeting", "join"]

Json = Any
PINGS = 20


class _Peer:
    """One connection that carries a JSON value per line."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._lines = connection.makefile("r", encoding="utf-8", newline="\n")

    def send(self, value: Json) -> None:
        self._connection.sendall((json.dumps(value) + "\n").encode())

    def receive(self) -> Json:
        line = self._lines.readline()
        if not line:
            raise ConnectionError("a rank of this launch is gone")
        return json.loads(line)

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


class Meeting:
    """All ranks of a launch; every method must be called by all of them, in the same order."""

    def __init__(self, rank: int, peers: list[_Peer]) -> None:
        self.rank = rank
        self._peers = peers

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self.agree(None)

    def agree(self, value: Json) -> Json:
        """Rank 0's value, on every rank."""
        if self.rank == 0:
            for peer in self._peers:
                peer.receive()
            for peer in self._peers:
                peer.send(value)
            return value
        if self._peers:
            self._peers[0].send(None)
            return self._peers[0].receive()
        return value

    def gather(self, value: Json) -> list[Json] | None:
        """Every rank's value, in order of ranks, on rank 0; None elsewhere."""
        if self.rank == 0:
            values = [value, *(peer.receive() for peer in self._peers)]
        else:
            self._peers[0].send(value)
            values = None
        self.barrier()
        return values

    def clock_offsets(self) -> list[list[float]]:
        """For each rank, what to add to its clock to get rank 0's, and how uncertain that is; on rank 0.

        Each rank asks rank 0 for its time; the quickest of the round trips bounds the error by half its length.
        """
        if self.rank == 0:
            for peer in self._peers:
                for _ in range(PINGS):
                    peer.receive()
                    peer.send(time.monotonic())
            mine: list[float] = [0.0, 0.0]
        else:
            mine = self._offset()
        return self.gather(mine) or []

    def _offset(self) -> list[float]:
        best = [0.0, float("inf")]
        for _ in range(PINGS):
            sent = time.monotonic()
            self._peers[0].send(None)
            there = self._peers[0].receive()
            received = time.monotonic()
            if (received - sent) / 2 < best[1]:
                best = [there - (sent + received) / 2, (received - sent) / 2]
        return best

    def close(self) -> None:
        """Hang up."""
        for peer in self._peers:
            peer.close()


def join(rank: int, ranks: int, *, address: str, port: int, token: str, timeout: float = 120.0) -> Meeting:
    """Meet the other ranks; a launch of one rank meets nobody."""
    if ranks == 1:
        return Meeting(0, [])
    if rank == 0:
        return Meeting(0, _accept(ranks, address=address, port=port, token=token, timeout=timeout))
    peer = _Peer(_connect(address, port, timeout))
    peer.send({"rank": rank, "token": token})
    return Meeting(rank, [peer])


def _accept(ranks: int, *, address: str, port: int, token: str, timeout: float) -> list[_Peer]:
    peers: dict[int, _Peer] = {}
    deadline = time.monotonic() + timeout
    with socket.create_server((address, port), backlog=ranks) as server:
        while len(peers) < ranks - 1:
            server.settimeout(max(0.1, deadline - time.monotonic()))
            connection, _ = server.accept()
            connection.settimeout(10.0)
            peer = _Peer(connection)
            hello = peer.receive()
            if not hmac.compare_digest(str(hello.get("token")), token):
                peer.close()
                continue
            connection.settimeout(None)
            peers[int(hello["rank"])] = peer
    return [peers[rank] for rank in sorted(peers)]


def _connect(address: str, port: int, timeout: float) -> socket.socket:
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=5.0)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
            continue
        connection.settimeout(None)
        return connection
