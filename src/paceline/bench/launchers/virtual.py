"""Ranks on the hosts of a virtual cluster: made for the study and gone with it, or one that is already up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO, Any

from paceline.bench.job import Launch, MeetingPoint, Process
from paceline.bench.launchers.local import NUM_PORTS, inherited, spawn
from paceline.bench.virtual.devices.dilation import choose_dilation
from paceline.bench.virtual.devices.emulation import exchange_load
from paceline.bench.virtual.hosts import state
from paceline.bench.virtual.hosts.enter import on_host
from paceline.bench.virtual.hosts.throttle import group_for, join_group
from paceline.bench.virtual.layout import INTERFACE
from paceline.bench.virtual.lifecycle import VirtualCluster, bring_up, check_machine, opened, reshape, take_down
from paceline.spec.cluster import Cluster, Device, place
from paceline.spec.study import Case

__all__ = ["VirtualLauncher"]

FIRST_PORT = 20000
_SLOWER = 2.5


class VirtualLauncher:
    """Each host a namespace of this machine, each link shaped; time dilated as far as a case needs."""

    name = "virtual"
    one_machine = True

    def __init__(self, *, dilation: float | None = None) -> None:
        check_machine()
        self._asked = dilation
        self._slowed: dict[str, float] = {}
        self._up: VirtualCluster | None = None
        self._borrowed: IO[str] | None = None
        self._case: Case | None = None
        self._port = FIRST_PORT

    def meeting_point(self, case: Case) -> MeetingPoint:
        """Rank 0's host, on a cluster that is made, reshaped or reused for the case."""
        dilation = self._dilation(case)
        up = self._ensure(_needed(case), dilation, linked=case.ranks > 1)
        self._case = case
        self._port = FIRST_PORT + (self._port - FIRST_PORT + NUM_PORTS) % 20000
        ports = tuple(range(self._port, self._port + NUM_PORTS))
        first = case.cluster.hosts[_placement(case)[0].host].name
        facts: dict[str, Any] = {"virtual_cluster": up.name, "links": [asdict(check) for check in up.checks]}
        seats = {seat.name: seat.address for seat in up.layout.seats}
        hosts = tuple(seats.get(host.name, "") for host in case.cluster.hosts)
        return MeetingPoint(seats[first], ports, INTERFACE, dilation, facts, hosts)

    def _dilation(self, case: Case) -> float:
        if self._asked is not None:
            return self._asked
        load = exchange_load(case)
        return choose_dilation(load, slower=self._slowed.get(case.id, 1.0)) if load else 1.0

    def _ensure(self, cluster: Cluster, dilation: float, *, linked: bool) -> VirtualCluster:
        """A cluster with these hosts; a rank alone uses no link, so that it does not matter how those are played."""
        up = self._up
        if up is not None and up.is_up and _serves(up, cluster):
            self._up = up if up.layout.dilation == dilation or not linked else reshape(up, dilation=dilation)
            return self._up
        self.close()
        self._up = self._borrow(cluster, dilation) or bring_up(cluster, dilation=dilation, owner=os.getpid())
        return self._up

    def _borrow(self, cluster: Cluster, dilation: float) -> VirtualCluster | None:
        """A cluster that the user brought up, if it serves and no other study is on it."""
        for home in state.listing():
            up = opened(home.name)
            if up is None or up.owned or not _serves(up, cluster):
                continue
            lock = (home / "in-use").open("a")
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._borrowed = lock
                return up if up.layout.dilation == dilation else reshape(up, dilation=dilation)
            lock.close()
        return None

    def start(self, processes: Sequence[Process]) -> Launch:
        """Start each on its host, entered by its namespaces; it dies with this process and with its host."""
        return spawn({p.name: (self._command(p), {**inherited(), **p.env}, p.log) for p in processes})

    def _command(self, process: Process) -> list[str]:
        assert self._up is not None
        assert self._case is not None
        host = self._case.cluster.hosts[process.host].name
        argv = on_host(self._up.pid_of(host), process.argv, directory=process.log.parent)
        device = None if process.rank is None else _placement(self._case)[process.rank].device
        return argv if device is None or device.quota >= 1 else self._throttled(argv, process, device)

    def _throttled(self, argv: list[str], process: Process, device: Device) -> list[str]:
        assert self._up is not None
        group = group_for(self._up.name, process.name.replace(" ", "-"), share=device.quota)
        if group is not None:
            return join_group(group, argv)
        module = "paceline.bench.virtual.hosts.throttle"
        return [sys.executable, "-m", module, str(device.quota), *argv]

    def slow_down(self, case: Case) -> None:
        """Dilate more the next time."""
        self._slowed[case.id] = self._slowed.get(case.id, 1.0) * _SLOWER

    def close(self) -> None:
        """Take down what was made here; give back what was borrowed."""
        up, self._up = self._up, None
        if self._borrowed is not None:
            self._borrowed.close()
            self._borrowed = None
        elif up is not None:
            take_down(up.home)


def _placement(case: Case) -> Sequence[Any]:
    return place(case.cluster, case.ranks, spread=case.placement == "spread")


def _needed(case: Case) -> Cluster:
    """The cluster with just the hosts that ranks of this case run on."""
    used = sorted({placed.host for placed in _placement(case)})
    return case.cluster.model_copy(update={"hosts": tuple(case.cluster.hosts[index] for index in used)})


def _serves(up: VirtualCluster, cluster: Cluster) -> bool:
    """Whether all hosts of the cluster are there, with the same links."""
    there = {host.name: (host.link, host.inside, host.nics) for host in up.cluster.hosts}
    return all(there.get(host.name) == (host.link, host.inside, host.nics) for host in cluster.hosts)
