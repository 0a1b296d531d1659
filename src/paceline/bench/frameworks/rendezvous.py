"""Synchronization of the ranks of one launch: barriers, broadcast, gather, and clock offsets.

Rank 0 listens, and the other ranks connect over the secure channel with the launch's token as secret, in the same way
for every framework. Other peers are refused, and the launch continues. Runs in measured processes: Python 3.9 syntax
and the standard library.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from typing import Any

from paceline import variables
from paceline.channel.frames import SecureConnection, open_connection
from paceline.channel.handshake import Login
from paceline.channel.listener import SecureListener

__all__ = ["ControlChannel", "join_job", "join_ranks"]

Json = Any
PINGS = 20
RANK, FIRST = "rank", "first rank"
"""Roles of callers and of the listener."""
CALL_TIMEOUT = 5.0
"""Seconds for one attempt to reach rank 0, which may not have started yet."""


class ControlChannel:
    """The ranks of a launch; all ranks must call the same methods in the same order."""

    def __init__(self, rank: int, peers: list[SecureConnection]) -> None:
        self.rank = rank
        self._peers = peers

    def barrier(self) -> None:
        """Barrier: return when every rank has called this method."""
        self.agree(None)

    def agree(self, value: Json) -> Json:
        """Broadcast: return the value of rank 0 on every rank."""
        if self.rank == 0:
            for peer in self._peers:
                peer.receive_plain()
            for peer in self._peers:
                peer.send_plain(value)
            return value
        if self._peers:
            self._peers[0].send_plain(None)
            return self._peers[0].receive_plain()
        return value

    def gather(self, value: Json) -> list[Json] | None:
        """Gather: return the values of all ranks on rank 0, None elsewhere."""
        if self.rank == 0:
            values = [value, *(peer.receive_plain() for peer in self._peers)]
        else:
            self._peers[0].send_plain(value)
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
                    peer.receive_plain()
                    peer.send_plain(time.monotonic())
            mine: list[float] = [0.0, 0.0]
        else:
            mine = self._offset()
        return self.gather(mine) or []

    def _offset(self) -> list[float]:
        best = [0.0, float("inf")]
        for _ in range(PINGS):
            sent = time.monotonic()
            self._peers[0].send_plain(None)
            there = self._peers[0].receive_plain()
            received = time.monotonic()
            if (received - sent) / 2 < best[1]:
                best = [there - (sent + received) / 2, (received - sent) / 2]
        return best

    def signal(self) -> None:
        """On rank 0: release the other ranks, without waiting for them."""
        for peer in self._peers:
            peer.send_plain(None)

    def await_signal(self) -> None:
        """On another rank: wait until rank 0 signals."""
        self._peers[0].receive_plain()

    def close(self) -> None:
        """Flush pending sends, then close the connections."""
        for peer in self._peers:
            peer.wait_sent(5.0)
        for peer in self._peers:
            peer.close()


def join_ranks(rank: int, ranks: int, *, address: str, port: int, token: str, timeout: float = 120.0) -> ControlChannel:
    """Connect the ranks of a launch; with one rank there is nothing to connect."""
    if ranks == 1:
        return ControlChannel(0, [])
    if rank == 0:
        return ControlChannel(0, _accept(ranks, address=address, port=port, token=token, timeout=timeout))
    login = Login(token.encode(), RANK, str(rank))
    return ControlChannel(rank, [_connect(address, port, login, timeout)])


def join_job(rank: int, ranks: int) -> ControlChannel:
    """Connect to the other ranks at the endpoint in the environment variables of this launch."""
    address, port = os.environ[variables.RENDEZVOUS].rsplit(":", 1)
    return join_ranks(rank, ranks, address=address, port=int(port), token=os.environ[variables.TOKEN])


def _accept(ranks: int, *, address: str, port: int, token: str, timeout: float) -> list[SecureConnection]:
    """A connection of each other rank; if a rank connects twice, the last connection counts."""
    called: queue.Queue[SecureConnection] = queue.Queue()
    complete, lock = threading.Event(), threading.Lock()

    def arrived(peer: SecureConnection) -> None:
        with lock:  # a caller that logs in while the last rank is counted is either in the queue or closed
            peer.close() if complete.is_set() else called.put(peer)

    server = socket.create_server((address, port), backlog=max(128, ranks))
    listener = SecureListener(server, Login(token.encode(), FIRST, "0"), arrived, callers=(RANK,))
    thread = threading.Thread(target=listener.run, daemon=True, name="paceline-rendezvous")
    thread.start()
    expected = [str(rank) for rank in range(1, ranks)]
    peers: dict[str, SecureConnection] = {}
    deadline = time.monotonic() + timeout
    try:
        while len(peers) < len(expected):
            peer = called.get(timeout=max(0.0, deadline - time.monotonic()))
            unused = peers.get(peer.peer) if peer.peer in expected else peer
            if peer.peer in expected:
                peers[peer.peer] = peer
            if unused is not None:
                unused.close()
    except queue.Empty:
        missing = ", ".join(rank for rank in expected if rank not in peers)
        for peer in peers.values():
            peer.close()
        raise ConnectionError(f"these ranks did not connect within {timeout:.0f} s: {missing}") from None
    finally:
        listener.close()
        thread.join()
        with lock:
            complete.set()
        while not called.empty():
            called.get().close()
    return [peers[rank] for rank in expected]


def _connect(address: str, port: int, login: Login, timeout: float) -> SecureConnection:
    deadline = time.monotonic() + timeout
    while True:
        try:
            return open_connection(address, port, login, listener=FIRST, timeout=CALL_TIMEOUT)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
