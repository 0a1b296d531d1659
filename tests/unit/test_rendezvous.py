"""Ranks meet and agree; `tests/integration/test_listeners.py` has those who try to disturb them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from paceline.bench.frameworks import rendezvous
from paceline.bench.frameworks.rendezvous import FIRST, PINGS, RANK, ControlChannel, join_ranks
from paceline.bench.sites.local import free_ports
from paceline.channel.frames import SecureConnection, open_connection
from paceline.channel.handshake import Login


def together(
    ranks: int, act: Callable[[ControlChannel], Any], before: Callable[[int], None] = lambda port: None
) -> list[Any]:
    """What each rank returns when all act at once."""
    (port,) = free_ports(1)
    results: list[Any] = [None] * ranks

    def run(rank: int) -> None:
        channel = join_ranks(rank, ranks, address="127.0.0.1", port=port, token="secret", timeout=10)
        results[rank] = act(channel)
        channel.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    threads[0].start()
    before(port)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()
    return results


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_all_hear_rank_zero(ranks: int) -> None:
    assert together(ranks, lambda channel: channel.agree(channel.rank + 7)) == [7] * ranks


def test_rank_zero_gathers_in_order() -> None:
    assert together(3, lambda channel: channel.gather(channel.rank * 2)) == [[0, 2, 4], None, None]


@pytest.mark.parametrize("meet", [ControlChannel.barrier, lambda channel: channel.gather(None)])
def test_a_barrier_and_a_gather_wait_for_the_last(meet: Callable[[ControlChannel], object]) -> None:
    came: list[int] = []

    def act(channel: ControlChannel) -> list[int]:
        if channel.rank == 2:
            time.sleep(0.2)
        came.append(channel.rank)
        meet(channel)
        return sorted(came)

    assert together(3, act) == [[0, 1, 2]] * 3


def caller(port: int, rank: str, role: str = RANK) -> SecureConnection:
    """A process that calls rank 0."""
    return open_connection("127.0.0.1", port, Login(b"secret", role, rank), listener=FIRST, timeout=5)


def test_of_a_rank_that_calls_twice_the_last_connection_counts_and_nobody_else_may_call() -> None:
    (port,) = free_ports(1)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(join_ranks, 0, 3, address="127.0.0.1", port=port, token="secret", timeout=10)
        join_ranks(1, 3, address="127.0.0.1", port=port, token="secret").close()
        early, late = caller(port, "1"), caller(port, "1")
        with pytest.raises(ConnectionError):
            early.receive_plain(timeout=5)
        for role in (FIRST, "agent"):
            with pytest.raises(ConnectionError):
                caller(port, "2", role)
        peers = [late, caller(port, "2")]
        for peer in peers:
            peer.send_plain(None)
        channel = first.result()
        assert channel.agree(7) == 7
        assert [peer.receive_plain() for peer in peers] == [7, 7]
        for one in (channel, early, *peers):
            one.close()


def test_a_rank_that_is_there_before_rank_zero_calls_again() -> None:
    (port,) = free_ports(1)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(join_ranks, 1, 2, address="127.0.0.1", port=port, token="secret", timeout=10)
        time.sleep(0.3)
        assert not other.done()
        first = join_ranks(0, 2, address="127.0.0.1", port=port, token="secret", timeout=10)
        other.result().close()
        first.close()


def test_clocks_of_one_machine_agree_within_the_stated_uncertainty() -> None:
    offsets = together(3, lambda channel: channel.clock_offsets())[0]
    assert offsets[0] == [0.0, 0.0]
    for offset, uncertainty in offsets[1:]:
        assert abs(offset) <= uncertainty


def test_the_offset_is_that_of_the_shortest_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent, answered on the clock of rank 0, received: the middle of the trip is when rank 0 looked at its clock."""
    trips = [(10.0, 19.0, 12.0), (20.0, 28.75, 20.5), (30.0, 90.0, 31.0), *[(40.0, 1.0, 49.0)] * (PINGS - 3)]
    clock = iter([moment for sent, _, received in trips for moment in (sent, received)])
    answers = iter([there for _, there, _ in trips])

    class RankZero:
        def send_plain(self, value: object) -> None:
            pass

        def receive_plain(self) -> float:
            return next(answers)

    monkeypatch.setattr(rendezvous.time, "monotonic", lambda: next(clock))
    assert ControlChannel(1, [RankZero()])._offset() == [8.5, 0.25]  # type: ignore[list-item]


def test_a_rank_that_never_comes_is_named() -> None:
    (port,) = free_ports(1)
    with pytest.raises(ConnectionError, match=r"did not connect within 0 s: 1, 2"):
        join_ranks(0, 3, address="127.0.0.1", port=port, token="secret", timeout=0.2)


def test_a_signal_does_not_wait_for_the_others() -> None:
    def act(channel: ControlChannel) -> str:
        if channel.rank == 0:
            channel.signal()
            channel.signal()
            return "signalled"
        channel.await_signal()
        channel.await_signal()
        return "heard"

    assert together(3, act) == ["signalled", "heard", "heard"]
