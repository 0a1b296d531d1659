"""Synchronization of the ranks of one launch: barriers, broadcast, gather, and clock offsets.

Rank 0 listens, the others connect and exchange lines of JSON over TCP, with the standard library only, so that it works
the same in every framework. Peers authenticate with the launch's token. Runs in measured processes: Python 3.9 syntax.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import time
from typing import Any

from paceline import variables

__all__ = ["ControlChannel", "join_job", "join_ranks"]

Json = Any
PINGS = 20


class _Peer:
    """One connection with one JSON value per line."""

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


class ControlChannel:
    """The ranks of a launch; all ranks must call the same methods in the same order."""

    def __init__(self, rank: int, peers: list[_Peer]) -> None:
        self.rank = rank
        self._peers = peers

    def barrier(self) -> None:
        """Barrier: return when every rank has called this method."""
        self.agree(None)

    def agree(self, value: Json) -> Json:
        """Broadcast: return the value of rank 0 on every rank."""
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
        """Gather: return the values of all ranks on rank 0, None elsewhere."""
        if self.rank == 0:
            values = [value, *(peer.receive() for peer in self._peers)]
        else:
            self._peers[0].send(value)
            values = None
        self.barrier()
        return values

    def clock_offsets(self) -> list[list[float]]:
        """The clock offset of each rank relative to rank 0, with its uncertainty; on rank 0.

        Each rank requests the time of rank 0; half of the shortest round trip bounds the error.
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
        """Close the connections."""
        for peer in self._peers:
            peer.close()


def join_ranks(rank: int, ranks: int, *, address: str, port: int, token: str, timeout: float = 120.0) -> ControlChannel:
    """Connect the ranks of a launch; with one rank there is nothing to connect."""
    if ranks == 1:
        return ControlChannel(0, [])
    if rank == 0:
        return ControlChannel(0, _accept(ranks, address=address, port=port, token=token, timeout=timeout))
    peer = _Peer(_connect(address, port, timeout))
    peer.send({"rank": rank, "token": token})
    return ControlChannel(rank, [peer])


def join_job(rank: int, ranks: int) -> ControlChannel:
    """Connect to the other ranks where the variables of this launch say."""
    address, port = os.environ[variables.RENDEZVOUS].rsplit(":", 1)
    return join_ranks(rank, ranks, address=address, port=int(port), token=os.environ[variables.TOKEN])


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
