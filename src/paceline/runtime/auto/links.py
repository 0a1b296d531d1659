"""What a message costs between ranks, and which of them sit together behind a slower link.

Hosts are told apart by address. Between any two of them (neighbours only, if there are many) and between two ranks of
each, a small and a large message go back and forth. Hosts whose link is nearly as fast as the fastest of all are one
place: the seams between places are where a plan may cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LARGE", "SMALL", "Links", "Timing", "large_message", "links_from", "pairs_of"]

SMALL, LEAST_LARGE, LARGE = 1 << 10, 1 << 18, 1 << 20
MANY = 8
"""Hosts beyond which only neighbours are measured."""
SEAM = 4.0
"""A link this much slower than the fastest one separates places."""
WITHIN = (1e10, 1e-5)
"""Bandwidth and latency where a host has one rank, so that nothing was measured inside it."""

Cost = tuple[float, float]
"""Bandwidth and latency."""
Timing = tuple[float, float]
"""Seconds of a small and of a large message, one way."""


@dataclass(frozen=True)
class Links:
    """Each rank's place, and its links inside and out of it."""

    places: tuple[str, ...]
    inside: tuple[Cost, ...]
    between: tuple[Cost, ...]


def pairs_of(addresses: Sequence[str]) -> list[tuple[int, int]]:
    """The ranks between which messages are timed."""
    hosts: dict[str, list[int]] = {}
    for rank, address in enumerate(addresses):
        hosts.setdefault(address, []).append(rank)
    inside = [(ranks[0], ranks[1]) for ranks in hosts.values() if len(ranks) > 1]
    first = [ranks[0] for ranks in hosts.values()]
    if len(first) > MANY:
        return inside + [(first[i], first[(i + 1) % len(first)]) for i in range(len(first))]
    return inside + [(one, other) for i, one in enumerate(first) for other in first[i + 1 :]]


def large_message(gradient_bytes: float) -> int:
    """Bytes of the large message: no more than training itself will send, and enough to tell a bandwidth."""
    return int(min(LARGE, max(LEAST_LARGE, gradient_bytes)))


def links_from(addresses: Sequence[str], timings: dict[tuple[int, int], Timing], *, large: int = LARGE) -> Links:
    """Places and links from what messages took."""
    costs = {pair: _cost(timing, large) for pair, timing in timings.items()}
    place_of = _places(addresses, costs)
    inside: dict[str, list[Cost]] = {}
    between: dict[str, list[Cost]] = {}
    for (one, other), cost in costs.items():
        here, there = place_of[addresses[one]], place_of[addresses[other]]
        for place in {here, there}:
            (inside if here == there else between).setdefault(place, []).append(cost)
    places = tuple(place_of[address] for address in addresses)
    within = {place: _worst(inside.get(place, [WITHIN])) for place in set(places)}
    out = {place: _worst(between[place]) if place in between else within[place] for place in set(places)}
    return Links(places, tuple(within[place] for place in places), tuple(out[place] for place in places))


def _cost(timing: Timing, large: int) -> Cost:
    short, long = timing
    return (large - SMALL) / max(long - short, 1e-9), max(short, 1e-6)


def _worst(costs: Sequence[Cost]) -> Cost:
    return min(bandwidth for bandwidth, _ in costs), max(latency for _, latency in costs)


def _places(addresses: Sequence[str], costs: dict[tuple[int, int], Cost]) -> dict[str, str]:
    """Each host's place, named by its first host."""
    place = {address: address for address in addresses}
    fastest = max((bandwidth for bandwidth, _ in costs.values()), default=0.0)
    for (one, other), (bandwidth, _) in costs.items():
        if bandwidth * SEAM >= fastest and len(costs) > 1:
            old, new = place[addresses[other]], place[addresses[one]]
            place = {address: new if where == old else where for address, where in place.items()}
    return place
