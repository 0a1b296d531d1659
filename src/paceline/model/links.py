"""The bus bandwidth that a link should reach beside what nccl-tests measured, and the calibration from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.catalog import cluster
from paceline.catalog.links import link, link_names
from paceline.errors import PacelineError
from paceline.measurements.foreign.nccl_tests import CollectiveTest, read_nccl_tests
from paceline.model.calibration import Calibration
from paceline.model.sweep import SweepPoint, fit_sweep
from paceline.spec.cluster import Cluster, Link

__all__ = ["LEAST_SHARE", "LinkVerdict", "calibrate_tests", "judge_link", "refuse_failed"]

LEAST_SHARE = 0.7
"""Share of the stated bandwidth below which a link fails. Healthy published sweeps of all-reduce reach 0.94 on NVLink 5
(8 B200) and 0.95 on eight 50 GB/s ports (32 B200)."""
LARGE = 64 << 20
"""Bytes from which a message shows a link's bandwidth, and not its latency."""


@dataclass(frozen=True)
class LinkVerdict:
    """One test beside the stated bandwidth of the link that it had to use."""

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
        if self.test.wrong or (self.test.sizes[-1].size_bytes >= LARGE and self.share < self.least):
            return "FAIL"
        return "PASS" if self.share >= self.least else "UNDECIDED"

    @property
    def advice(self) -> str:
        """What to do next."""
        if self.test.wrong:
            return f"{self.test.wrong} elements came out wrong: take {', '.join(self.test.hosts) or 'the host'} out"
        if self.status == "UNDECIDED":
            return (
                f"test larger messages: -e 1G ({max(r.size_bytes for r in self.test.sizes):,} bytes were the largest)"
            )
        if self.status == "FAIL" and len(self.test.hosts) > 1:
            return f"test pairs of hosts, and exclude those that fail: {', '.join(self.test.hosts[:8])}"
        return "" if self.status == "PASS" else "NCCL_DEBUG=INFO shows which transport was used"


def judge_link(test: CollectiveTest, where: Link | Cluster, least: float = LEAST_SHARE) -> LinkVerdict:
    """A test beside a link, or beside the link of a cluster that the tested ranks share."""
    if isinstance(where, Link):
        return LinkVerdict(test, where.name, where.bandwidth, least)
    host = where.hosts[0]
    crosses = len(test.hosts) > 1 or test.ranks > len(host.devices)
    link = host.link if crosses else host.inside
    return LinkVerdict(test, link.name, link.bandwidth * (host.nics if crosses else 1), least)


def calibrate_tests(paths: Sequence[Path], where: str | None) -> tuple[Calibration, tuple[LinkVerdict, ...]]:
    """What tests alone tell: the cost of their collectives, and how the link or cluster of this name does."""
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
