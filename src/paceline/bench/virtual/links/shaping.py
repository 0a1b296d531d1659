"""Wires and rates: each host joined to a switch by a pair of interfaces, with a token bucket on both of their ends.

The asked bandwidth is what a TCP stream can carry; the bucket lets its headers through on top. Segments handed to the
bucket are kept short in time (about 0.15 ms of the link), so that small messages are shaped like large ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.bench.virtual.hosts.enter import run_script
from paceline.bench.virtual.layout import INTERFACE, Layout, Seat

__all__ = ["FASTEST_SHAPED", "connect", "segment_bytes"]

MTU = 1500
PAYLOAD, FRAME = 1448, 1514
"""Bytes of a full TCP segment with timestamps, and of the frame that carries it."""
SEGMENT_S = 150e-6
FASTEST_SHAPED = 5e9
"""Bytes per second above which a bucket no longer slows anything down on one machine."""
_LONGEST_SEGMENT = 65536
_IP = ("ip", "-batch", "-")
_TC = ("tc", "-batch", "-")


def connect(layout: Layout, *, keeper: int, hosts: dict[str, int]) -> None:
    """Join all hosts to the switch and shape their links."""
    run_script(keeper, _IP, _switch_lines(layout, hosts))
    run_script(keeper, _TC, [_bucket(seat.port, seat, loopback=False) for seat in layout.seats])
    for seat in layout.seats:
        run_script(hosts[seat.name], _IP, _host_lines(seat))
        run_script(hosts[seat.name], _TC, _host_buckets(seat))


def _switch_lines(layout: Layout, hosts: dict[str, int]) -> list[str]:
    lines = ["link set lo up", "link add switch type bridge stp_state 0 forward_delay 0", "link set switch up"]
    for seat in layout.seats:
        peer = f"peer name {INTERFACE} netns {hosts[seat.name]} mtu {MTU}"
        lines.append(f"link add {seat.port} mtu {MTU} type veth {peer}")
        lines.append(f"link set {seat.port} master switch up")
    return lines


def _host_lines(seat: Seat) -> list[str]:
    network = seat.address.rsplit(".", 1)[0] + ".0/24"
    segments = segment_bytes(seat)
    return [
        "link set lo up",
        f"link set {INTERFACE} gso_max_size {segments} gso_max_segs {max(1, segments // PAYLOAD)}",
        f"address add {seat.address}/24 dev {INTERFACE}",
        f"link set {INTERFACE} up",
        # The congestion control of a route, because a namespace may not choose its default; cubic fills a bucket evenly.
        f"route change {network} dev {INTERFACE} proto kernel scope link src {seat.address} congctl cubic",
    ]


def segment_bytes(seat: Seat) -> int:
    """Longest segment handed to the bucket; single frames where packets may be lost, so that each is lost by itself."""
    wanted = 1 if seat.link.loss else math.floor(seat.link.bandwidth * SEGMENT_S / PAYLOAD)
    return min(_LONGEST_SEGMENT, max(1, wanted) * PAYLOAD + 100)


def _host_buckets(seat: Seat) -> list[str]:
    buckets = [_bucket(INTERFACE, seat, loopback=False)]
    if seat.inside.bandwidth < FASTEST_SHAPED:
        buckets.append(_bucket("lo", seat, loopback=True))
    return buckets


def _bucket(device: str, seat: Seat, *, loopback: bool) -> str:
    bandwidth = seat.inside.bandwidth if loopback else seat.link.bandwidth
    rate = bandwidth * (1.0 if loopback else FRAME / PAYLOAD)
    longest = _LONGEST_SEGMENT * 2 if loopback else 2 * segment_bytes(seat)
    burst = math.ceil(longest + rate * SEGMENT_S)
    limit = math.ceil(max(512 * 1024, rate * 0.025))
    return f"qdisc replace dev {device} root tbf rate {round(rate * 8)}bit burst {burst}b limit {limit}b"


def neighbours(seats: Sequence[Seat]) -> list[tuple[Seat, Seat]]:
    """Each seat with the next one, around."""
    return [(seat, seats[(index + 1) % len(seats)]) for index, seat in enumerate(seats)]
