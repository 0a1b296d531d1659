"""Verification of the links of a virtual cluster: each is measured, and refused if it deviates by more than 5 %."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from paceline.bench.virtual.layout import Layout, VirtualHost, path_latency, path_rate
from paceline.bench.virtual.namespaces import on_host
from paceline.bench.virtual.shaping import LEAST_LATENCY_S, PLAYABLE_LATENCY_S
from paceline.errors import LaunchFailed
from paceline.units import BANDWIDTH, SECONDS

__all__ = ["TOLERANCE", "LinkCheck", "link_paths", "measure_streams", "measure_trip", "measure_trips", "verify_links"]

TOLERANCE = 0.05
PORT = 5199
_RATE_S = 0.4
_TRIPS = 60
_REPEATED_RATE_S = 1.0
"""A repeated measurement is longer: a pause of the machine weighs less in it."""
_PAUSES_S = (0.0, 1.0, 3.0, 10.0, 20.0)
"""Seconds before a deviating link is measured again, because other load may have disturbed the measurement."""
_TOGETHER = 100e6
"""Bytes per second per core that concurrent streams may move without disturbing each other."""


@dataclass(frozen=True)
class LinkCheck:
    """One measured and requested value of a link, in the time of the emulated cluster."""

    source: str
    target: str
    kind: Literal["bandwidth", "round_trip"]
    asked: float
    measured: float
    binding: bool
    """Whether a deviation refuses the cluster."""

    @property
    def error(self) -> float:
        """Relative deviation of the measured from the requested value."""
        return self.measured / self.asked - 1

    @property
    def holds(self) -> bool:
        """Within tolerance, or not binding."""
        return not self.binding or abs(self.error) <= TOLERANCE

    def __str__(self) -> str:
        dimension = BANDWIDTH if self.kind == "bandwidth" else SECONDS
        measured, asked = dimension.format(self.measured), dimension.format(self.asked)
        name = self.kind.replace("_", " ")
        return f"{self.source} -> {self.target}: {name} {measured}, asked {asked} ({100 * self.error:+.1f} %)"


def verify_links(layout: Layout, hosts: dict[str, int]) -> tuple[LinkCheck, ...]:
    """Measure the link of every host in both directions; raise an error if one exceeds the tolerance."""
    if len(layout.seats) < 2:
        return ()
    with _serving(layout, hosts):
        checks = _checks(layout, hosts)
        for pause in _PAUSES_S:
            if all(check.holds for check in checks):
                break
            time.sleep(pause)
            checks = [check if check.holds else _again(check, layout, hosts) for check in checks]
    wrong = [check for check in checks if not check.holds]
    if wrong:
        raise LaunchFailed(
            "the links of the virtual cluster deviate from the request:\n  " + "\n  ".join(map(str, wrong)),
            hint=_advice(wrong, layout),
        )
    return tuple(checks)


def _advice(wrong: Sequence[LinkCheck], layout: Layout) -> str:
    """The hint for deviating links."""
    shortest = min((check.asked / 2 for check in wrong if check.kind == "round_trip"), default=math.inf)
    if shortest * layout.dilation < PLAYABLE_LATENCY_S:
        return (
            f"such short latencies cannot be held in real time; --dilation {math.ceil(PLAYABLE_LATENCY_S / shortest)}"
        )
    return "the machine is busy or too slow for these links; try on a quiet machine, or a larger --dilation"


def _checks(layout: Layout, hosts: dict[str, int]) -> list[LinkCheck]:
    paths = link_paths(layout)
    rates = [check for together in _rounds(paths) for check in _check_rates(layout, hosts, together)]
    pairs = {tuple(sorted(path, key=lambda seat: seat.name)) for path in paths}
    delayed = [(a, b) for a, b in pairs if path_latency(a, b) >= LEAST_LATENCY_S]
    return rates + [_check_trip(layout, hosts, source, target) for source, target in delayed]


def _again(check: LinkCheck, layout: Layout, hosts: dict[str, int]) -> LinkCheck:
    """Measure a path again separately; return the measurement with the smaller deviation."""
    source, target = layout.seat(check.source), layout.seat(check.target)
    if check.kind == "bandwidth":
        (repeated,) = _check_rates(layout, hosts, [(source, target)], seconds=_REPEATED_RATE_S)
    else:
        repeated = _check_trip(layout, hosts, source, target)
    return min(check, repeated, key=lambda either: abs(either.error))


def link_paths(layout: Layout) -> list[tuple[VirtualHost, VirtualHost]]:
    """Paths from and to every host whose peer has no slower link, so that each link is measured at its full rate.

    The peer is the neighbour if possible, else the host with the fastest link; a path is as fast as its slower link.
    """
    paths: dict[tuple[str, str], tuple[VirtualHost, VirtualHost]] = {}
    for number, seat in enumerate(layout.seats):
        others = [other for other in layout.seats if other is not seat]
        neighbour = layout.seats[number ^ 1] if number ^ 1 < len(layout.seats) else others[0]
        widest = max(others, key=lambda other: other.link.bandwidth)
        peer = neighbour if neighbour.link.bandwidth >= min(seat.link.bandwidth, widest.link.bandwidth) else widest
        paths[seat.name, peer.name] = (seat, peer)
        paths[peer.name, seat.name] = (peer, seat)
    return list(paths.values())


def _rounds(paths: Sequence[tuple[VirtualHost, VirtualHost]]) -> list[list[tuple[VirtualHost, VirtualHost]]]:
    """Groups of paths for concurrent measurement: no host twice, and within the capacity of the machine."""
    limit = _TOGETHER * (os.cpu_count() or 1)
    rounds: list[list[tuple[VirtualHost, VirtualHost]]] = []
    for path in paths:
        names = {seat.name for seat in path}
        for together in rounds:
            taken = {seat.name for other in together for seat in other}
            if not names & taken and sum(map(path_rate, [*together, path])) <= limit:
                together.append(path)
                break
        else:
            rounds.append([path])
    return rounds


def _check_rates(
    layout: Layout, hosts: dict[str, int], paths: Sequence[tuple[VirtualHost, VirtualHost]], *, seconds: float = _RATE_S
) -> list[LinkCheck]:
    """Rates of paths that are measured concurrently."""
    rates = _streams(hosts, paths, seconds=seconds)
    return [_rate_check(layout, *path, measured=rate) for path, rate in zip(paths, rates, strict=True)]


def _rate_check(layout: Layout, source: VirtualHost, target: VirtualHost, *, measured: float) -> LinkCheck:
    asked = path_rate((source, target))
    return LinkCheck(
        source=source.name,
        target=target.name,
        kind="bandwidth",
        asked=asked * layout.dilation,
        measured=measured * layout.dilation,
        binding=not (source.link.loss or target.link.loss),
    )


def _check_trip(layout: Layout, hosts: dict[str, int], source: VirtualHost, target: VirtualHost) -> LinkCheck:
    asked = 2 * path_latency(source, target)
    measured = _median_trip(hosts[source.name], target.address)
    return LinkCheck(
        source=source.name,
        target=target.name,
        kind="round_trip",
        asked=asked / layout.dilation,
        measured=measured / layout.dilation,
        binding=not (source.link.jitter or target.link.jitter or source.link.loss or target.link.loss),
    )


def measure_trips(layout: Layout, hosts: dict[str, int]) -> tuple[float, float]:
    """Requested and measured one-way latency, both as medians over the first pairs of neighbours."""
    pairs = list(zip(layout.seats[:4], layout.seats[1:5], strict=False))
    with _serving(layout, hosts):
        trips = [_median_trip(hosts[one.name], other.address) for one, other in pairs]
    asked = statistics.median(path_latency(one, other) for one, other in pairs)
    return asked, statistics.median(trips) / 2


def measure_streams(
    layout: Layout, hosts: dict[str, int], pairs: Sequence[tuple[str, str]], *, seconds: float
) -> list[float]:
    """Bytes per second of concurrent streams, each from one host to another, in the machine's time."""
    with _serving(layout, hosts):
        return _streams(hosts, [(layout.seat(a), layout.seat(b)) for a, b in pairs], seconds=seconds)


def _streams(hosts: dict[str, int], paths: Sequence[tuple[VirtualHost, VirtualHost]], *, seconds: float) -> list[float]:
    pipe, started = subprocess.PIPE, []
    for source, target in paths:
        command = _command(hosts[source.name], "rate", target.address, str(PORT), str(seconds))
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True))
    return [_rate_of(process, timeout_s=seconds * 10 + 60) for process in started]


def _rate_of(process: subprocess.Popen[str], *, timeout_s: float) -> float:
    out, words = process.communicate(timeout=timeout_s)
    if process.returncode != 0:
        raise LaunchFailed(f"measuring a link failed: {words.strip()[-300:]}")
    return float(out)


def measure_trip(layout: Layout, hosts: dict[str, int], source: str, target: str) -> float:
    """Median seconds of a round trip between two hosts, in the machine's time."""
    with _serving(layout, hosts):
        return _median_trip(hosts[source], layout.seat(target).address)


def _median_trip(host: int, address: str) -> float:
    return statistics.median(float(line) for line in _probe(host, "trips", address, str(_TRIPS)).split())


def _command(host: int, *arguments: str) -> list[str]:
    script = str(files("paceline.bench.virtual").joinpath("probe.py"))
    return on_host(host, ["chrt", "-r", "10", sys.executable, "-I", "-S", script, *arguments])


def _probe(host: int, verb: str, address: str, amount: str) -> str:
    command = _command(host, verb, address, str(PORT), amount)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise LaunchFailed(f"measuring the link to {address} failed: {done.stderr.strip()[-300:]}")
    return done.stdout


@contextmanager
def _serving(layout: Layout, hosts: dict[str, int]) -> Iterator[None]:
    """A measurement server on every host during the block."""
    servers = []
    try:
        for seat in layout.seats:
            command = _command(hosts[seat.name], "serve", seat.address, str(PORT))
            servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for server in servers:
            if server.stdout is None or server.stdout.readline() != "ready\n":
                raise LaunchFailed("a host of the virtual cluster does not answer")
        yield
    finally:
        for server in servers:
            server.kill()
            server.wait()
            if server.stdout is not None:
                server.stdout.close()
