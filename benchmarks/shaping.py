"""Links of virtual clusters, measured against what was asked: rates for three patterns, and round trips.

    .venv/bin/python benchmarks/shaping.py --rates 100e6,1e9 --trips 0.5,1,2,5

Rates up to 1 Gb/s are played as they are, faster ones in dilated time. Needs root and a quiet machine.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass

from lib.result import Figure, parser_of, publish

from paceline.bench.virtual.lifecycle import VirtualCluster, bring_up, take_down
from paceline.bench.virtual.verify import measure_streams, measure_trip
from paceline.spec.cluster import Cluster, Device, Host, Link

PATTERNS = {
    "pair": [(0, 1)],
    "ring of four": [(0, 1), (1, 2), (2, 3), (3, 0)],
    "four to one": [(1, 0), (2, 0), (3, 0), (4, 0)],
}
FASTEST_PLAYED = 5e8
SECONDS = 2.0


@dataclass(frozen=True)
class Row:
    """One measurement."""

    what: str
    pattern: str
    dilation: float
    asked: float
    measured: float
    """Bits per second of the narrowest stream (of all together for four to one), or seconds of a round trip."""

    @property
    def error(self) -> float:
        """Measured against asked, as a signed share."""
        return self.measured / self.asked - 1


def hosts(count: int, *, bits: float, latency: float = 0.0) -> Cluster:
    """Equal hosts."""
    link = Link(name="way", bandwidth=bits / 8, latency=latency)
    inside = Link(name="bus", bandwidth=1e14)
    devices = (Device(name="none", kind="other"),)
    made = tuple(Host(name=f"h{n}", devices=devices, inside=inside, link=link) for n in range(count))
    return Cluster(name="shaping", hosts=made)


def rate_rows(bits: float) -> list[Row]:
    """All patterns at one rate."""
    dilation = 1.0 if bits <= 1e9 else bits / FASTEST_PLAYED
    up = bring_up(hosts(5, bits=bits), dilation=dilation, owner=os.getpid())
    try:
        return [rate_row(up, name, bits) for name in PATTERNS]
    finally:
        take_down(up.home)


def rate_row(up: VirtualCluster, pattern: str, bits: float) -> Row:
    """One pattern: streams that run at the same time."""
    names = [seat.name for seat in up.layout.seats]
    pairs = [(names[source], names[target]) for source, target in PATTERNS[pattern]]
    rates = measure_streams(up.layout, up.processes.hosts, pairs, seconds=SECONDS)
    total = sum(rates) if pattern == "four to one" else min(rates)
    return Row("bandwidth", pattern, up.layout.dilation, bits, total * 8 * up.layout.dilation)


def trip_row(trip: float, bits: float) -> Row:
    """One round trip, measured anew after the cluster proved itself."""
    up = bring_up(hosts(2, bits=bits, latency=trip / 2), owner=os.getpid())
    try:
        return Row("round trip", "pair", 1.0, trip, measure_trip(up.layout, up.processes.hosts, "h0", "h1"))
    finally:
        take_down(up.home)


def show(row: Row) -> None:
    """A line of the table."""
    unit, scale = ("Gb/s", 1e-9) if row.what == "bandwidth" else ("ms", 1e3)
    asked, measured = f"{row.asked * scale:g} {unit}", f"{row.measured * scale:.4g} {unit}"
    print(
        f"| {row.what} | {row.pattern} | {row.dilation:g} | {asked} | {measured} | {100 * row.error:+.1f} % |",
        flush=True,
    )


def main() -> int:
    """Measure all and print the table; an error of more than 5 % is a failure."""
    parser = parser_of(__doc__)
    parser.add_argument("--rates", default="100e6,1e9,10e9,25e9,100e9", help="bits per second")
    parser.add_argument("--trips", default="0.5,1,2,5", help="round trips in ms")
    options = parser.parse_args()
    print("| what | pattern | dilation | asked | measured | error |\n|---|---|---|---|---|---|")
    rows: list[Row] = []
    for rate in filter(None, options.rates.split(",")):
        for row in rate_rows(float(rate)):
            show(row)
            rows.append(row)
    for trip in filter(None, options.trips.split(",")):
        rows.append(trip_row(float(trip) / 1e3, 1e9))
        show(rows[-1])
    figures = [
        Figure(f"largest error of a {what}", 100 * max(errors), "%", 100 * min(errors), 100 * max(errors), "range")
        for what in ("bandwidth", "round trip")
        if (errors := [abs(row.error) for row in rows if row.what == what])
    ]
    good = sum(abs(row.error) <= 0.05 for row in rows)
    figures.append(Figure(f"of {len(rows)} links within 5 %", good))
    return publish(options, figures, turns=[asdict(row) for row in rows], passed=good == len(rows))


if __name__ == "__main__":
    sys.exit(main())
