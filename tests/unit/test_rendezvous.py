"""Ranks meet and agree; `tests/integration/test_listeners.py` has those who try to disturb them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from paceline.bench.frameworks.rendezvous import ControlChannel, join_ranks
from paceline.bench.sites.local import free_ports


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


def test_a_barrier_waits_for_the_last() -> None:
    def act(channel: ControlChannel) -> float:
        if channel.rank == 1:
            time.sleep(0.3)
        channel.barrier()
        return time.monotonic()

    ends = together(3, act)
    assert max(ends) - min(ends) < 0.25


def test_clocks_of_one_machine_agree_within_the_stated_uncertainty() -> None:
    offsets = together(3, lambda channel: channel.clock_offsets())[0]
    assert offsets[0] == [0.0, 0.0]
    for offset, uncertainty in offsets[1:]:
        assert abs(offset) <= uncertainty
        assert uncertainty < 0.05


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
