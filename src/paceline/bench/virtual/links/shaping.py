"""Link shaping: each host connects to a switch by a pair of interfaces with a token bucket at both ends.

The requested bandwidth is the payload rate of a TCP stream; the bucket rate includes headers. Segments handed to the
bucket are kept short in time (about 0.15 ms of the link), so that small messages are shaped like large ones, but no
shorter than the machine can handle when all links are busy at once.
"""

from __future__ import annotations

import math
import os

from paceline.bench.virtual.hosts.enter import run_script
from paceline.bench.virtual.layout import INTERFACE, Layout, Seat

__all__ = ["FASTEST_SHAPED", "connect", "segment_bytes", "shape"]

MTU = 1500
PAYLOAD, FRAME = 1448, 1514
"""Bytes of a full TCP segment with timestamps, and of the frame that carries it."""
SEGMENT_S = 150e-6
SEGMENTS_PER_CORE = 6000
"""Segments per second of all links that one core forwards without measurable disturbance."""
FASTEST_SHAPED = 5e9
"""Bytes per second above which a bucket has no effect on one machine."""
_LONGEST_SEGMENT = 65536
_HEADERS = 100
_IP = ("ip", "-batch", "-")
_TC = ("tc", "-batch", "-")


def connect(layout: Layout, *, keeper: int, hosts: dict[str, int]) -> None:
    """Connect all hosts to the switch and shape their links."""
    run_script(keeper, _IP, _switch_lines(layout, hosts))
    shape(layout, keeper=keeper, hosts=hosts)


def shape(layout: Layout, *, keeper: int, hosts: dict[str, int]) -> None:
    """Set the rate of every link, also on a running cluster."""
    run_script(keeper, _TC, [_bucket(seat.port, seat, segment_bytes(layout, seat)) for seat in layout.seats])
    for seat in layout.seats:
        segment = segment_bytes(layout, seat)
        run_script(hosts[seat.name], _IP, _host_lines(seat, segment))
        run_script(hosts[seat.name], _TC, _host_buckets(seat, segment))


def _switch_lines(layout: Layout, hosts: dict[str, int]) -> list[str]:
    lines = ["link set lo up", "link add switch type bridge stp_state 0 forward_delay 0", "link set switch up"]
    for seat in layout.seats:
        peer = f"peer name {INTERFACE} netns {hosts[seat.name]} mtu {MTU}"
        lines.append(f"link add {seat.port} mtu {MTU} type veth {peer}")
        lines.append(f"link set {seat.port} master switch up")
    return lines


def _host_lines(seat: Seat, segment: int) -> list[str]:
    network = seat.address.rsplit(".", 1)[0] + ".0/24"
    return [
        "link set lo up",
        f"link set {INTERFACE} gso_max_size {segment} gso_max_segs {max(1, segment // PAYLOAD)}",
        f"address replace {seat.address}/24 dev {INTERFACE}",
        f"link set {INTERFACE} up",
        # Congestion control is set by route, because a namespace cannot set its default; cubic fills a bucket evenly.
        f"route change {network} dev {INTERFACE} proto kernel scope link src {seat.address} congctl cubic",
    ]


def segment_bytes(layout: Layout, seat: Seat) -> int:
    """Longest segment for the bucket; single frames on links with loss, so that frames are lost independently."""
    if seat.link.loss:
        return PAYLOAD + _HEADERS
    busy = sum(other.link.bandwidth for other in layout.seats) / (SEGMENTS_PER_CORE * (os.cpu_count() or 1))
    wanted = math.floor(max(seat.link.bandwidth * SEGMENT_S, busy) / PAYLOAD)
    return min(_LONGEST_SEGMENT, max(1, wanted) * PAYLOAD + _HEADERS)


def _host_buckets(seat: Seat, segment: int) -> list[str]:
    return [_bucket(INTERFACE, seat, segment), _qdisc("lo", seat.inside.bandwidth, segment=_LONGEST_SEGMENT)]


def _bucket(device: str, seat: Seat, segment: int) -> str:
    return _qdisc(device, seat.link.bandwidth * FRAME / PAYLOAD, segment=segment)


def _qdisc(device: str, rate: float, *, segment: int) -> str:
    if rate >= FASTEST_SHAPED:
        return f"qdisc replace dev {device} root pfifo limit 10000"
    burst = math.ceil(2 * segment + rate * SEGMENT_S)
    limit = math.ceil(max(512 * 1024, rate * 0.025))
    return f"qdisc replace dev {device} root tbf rate {round(rate * 8)}bit burst {burst}b limit {limit}b"
