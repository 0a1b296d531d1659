"""Measured bus bandwidth compared with that of the link; calibration from nccl-tests; slow hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.catalog import cluster
from paceline.catalog.links import link, link_names
from paceline.errors import PacelineError
from paceline.measurements.foreign.nccl_tests import CollectiveTest, read_nccl_tests
from paceline.model.calibration import Calibration
from paceline.model.sweep import SweepPoint, fit_sweep
from paceline.spec.cluster import Cluster, Link

__all__ = [
    "LEAST_SHARE",
    "FabricVerdict",
    "HostVerdict",
    "LinkVerdict",
    "calibrate_tests",
    "judge_fabric",
    "judge_link",
    "refuse_failed",
]

LEAST_SHARE = 0.7
"""Share of the stated bandwidth below which a link fails. Healthy published sweeps of all-reduce reach 0.94 on NVLink 5
(8 B200) and 0.95 on eight 50 GB/s ports (32 B200)."""
LARGE, LONG_S = 64 << 20, 0.05
"""Bytes, or seconds of a slow link, from which a message shows a link's bandwidth, and not its latency."""


@dataclass(frozen=True)
class LinkVerdict:
    """One test compared with the stated bandwidth of its link."""

    test: CollectiveTest
    link: str
    stated: float
    """Bytes per second of the link, all ports of a host together."""
    least: float
    """Share of the stated bandwidth that is expected at least."""

    @property
    def share(self) -> float:
        """Measured over stated bandwidth."""
        return self.test.peak / self.stated

    @property
    def status(self) -> str:
        """PASS, FAIL, or UNDECIDED if no message was large enough."""
        large = self.test.sizes[-1].size_bytes >= min(LARGE, LONG_S * self.stated)
        if self.test.wrong or (large and self.share < self.least):
            return "FAIL"
        return "PASS" if self.share >= self.least else "UNDECIDED"

    @property
    def advice(self) -> str:
        """The recommended next action."""
        if self.test.wrong:
            return f"{self.test.wrong} elements came out wrong: take {', '.join(self.test.hosts) or 'the host'} out"
        if self.status == "UNDECIDED":
            return (
                f"test larger messages: -e 1G ({max(r.size_bytes for r in self.test.sizes):,} bytes were the largest)"
            )
        if self.status == "FAIL" and len(self.test.hosts) > 1:
            return f"paceline doctor tests pairs of hosts and names those to exclude: {', '.join(self.test.hosts[:8])}"
        return "" if self.status == "PASS" else "NCCL_DEBUG=INFO shows which transport was used"


def judge_link(test: CollectiveTest, where: Link | Cluster, least: float = LEAST_SHARE) -> LinkVerdict:
    """A test compared with a link, or with the link of a cluster that the tested ranks share."""
    if isinstance(where, Link):
        return LinkVerdict(test, where.name, where.bandwidth, least)
    if len(test.hosts) < 2 and test.ranks <= len(where.hosts[0].devices):
        return LinkVerdict(test, where.hosts[0].inside.name, where.hosts[0].inside.bandwidth, least)
    host = min(where.hosts, key=lambda host: host.link.bandwidth * host.nics)
    return LinkVerdict(test, host.link.name, host.link.bandwidth * host.nics, least)


@dataclass(frozen=True)
class HostVerdict:
    """The rate of a host with its best partner."""

    host: str
    partner: str
    bandwidth: float
    """Bytes per second in the slower direction."""
    stated: float
    """Stated bandwidth of the slower of the two links."""
    least: float
    """Share of the stated bandwidth below which the host is to be excluded."""

    @property
    def share(self) -> float:
        """Measured over stated bandwidth."""
        return self.bandwidth / self.stated

    @property
    def status(self) -> str:
        """PASS or FAIL."""
        return "PASS" if self.share >= self.least else "FAIL"


@dataclass(frozen=True)
class FabricVerdict:
    """A collective over all hosts compared with its link, and each host compared with the other hosts."""

    whole: LinkVerdict
    hosts: tuple[HostVerdict, ...]

    @property
    def exclude(self) -> tuple[str, ...]:
        """Hosts that slow down the others."""
        return tuple(host.host for host in self.hosts if host.status == "FAIL")

    @property
    def status(self) -> str:
        """FAIL if the collective or a host fails."""
        return "FAIL" if self.exclude else self.whole.status

    @property
    def advice(self) -> str:
        """The recommended next action."""
        if self.whole.test.wrong or self.status != "FAIL":
            return self.whole.advice
        if self.exclude:
            return f"take out {', '.join(self.exclude)}: slow with every partner, and every ring passes all hosts"
        if len(self.hosts) < 3:
            return "two hosts do not show which of them is slow: test with a third"
        return "no host stands out: the transport or the switch is slow; NCCL_DEBUG=INFO shows which transport was used"


def judge_fabric(
    test: CollectiveTest, rates: Mapping[tuple[str, str], float], cluster: Cluster | None, least: float = LEAST_SHARE
) -> FabricVerdict:
    """A test of all hosts and the rates of pairs, compared with the links of a cluster; without a cluster, with the
    best pair. A host is excluded if its best pair reaches less than `least` of the share that the best pair of all
    reaches of its link: a transport that is slow everywhere excludes no host.
    """
    best = max(rates.values())
    stated = {host.name: host.link.bandwidth * host.nics for host in cluster.hosts} if cluster else {}
    judged: dict[str, HostVerdict] = {}
    for (first, second), rate in rates.items():
        slower = min(stated.get(first, best), stated.get(second, best))
        for host, partner in ((first, second), (second, first)):
            one = HostVerdict(host, partner, rate, slower, least)
            judged[host] = max(judged.get(host, one), one, key=lambda verdict: verdict.share)
    reached = min(1.0, max(verdict.share for verdict in judged.values()))
    hosts = tuple(replace(judged[name], least=least * reached) for name in test.hosts if name in judged)
    whole = judge_link(test, cluster, least) if cluster else LinkVerdict(test, "best pair", best, least)
    return FabricVerdict(whole, hosts)


def calibrate_tests(paths: Sequence[Path], where: str | None) -> tuple[Calibration, tuple[LinkVerdict, ...]]:
    """Calibration from tests alone: the cost of their collectives, and the comparison with the link or cluster of this
    name."""
    tests = [read_nccl_tests(path) for path in paths]
    place = None if where is None else link(where) if where in link_names() else cluster(where)
    verdicts = () if place is None else tuple(judge_link(test, place) for test in tests)
    return _calibration(tests), verdicts


def refuse_failed(verdicts: Sequence[LinkVerdict]) -> None:
    """End with exit code 1 if a link failed."""
    failed = [verdict for verdict in verdicts if verdict.status == "FAIL"]
    if failed:
        named = ", ".join(sorted({verdict.link for verdict in failed}))
        raise PacelineError(f"{len(failed)} of {len(verdicts)} tests failed: {named}", hint=failed[0].advice)


def _calibration(tests: Sequence[CollectiveTest]) -> Calibration:
    points = [SweepPoint(one.operation, one.ranks, row.size_bytes, row.seconds) for one in tests for row in one.sizes]
    return Calibration(f"nccl-tests: {', '.join(one.path for one in tests)}", fit_sweep(points))
