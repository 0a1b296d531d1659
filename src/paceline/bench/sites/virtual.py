"""Ranks on the hosts of a virtual cluster, which is created for the study or already running."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO

from paceline.bench.sites.local import inherited, spawn
from paceline.bench.sites.site import Launch, Launcher, Process, Rendezvous, Site, SiteRequest
from paceline.bench.virtual import state
from paceline.bench.virtual.dilation import choose_dilation
from paceline.bench.virtual.emulation import exchange_load
from paceline.bench.virtual.layout import INTERFACE
from paceline.bench.virtual.lifecycle import VirtualCluster, bring_up, check_machine, opened, reshape, take_down
from paceline.bench.virtual.namespaces import on_host
from paceline.bench.virtual.throttle import group_for, join_group
from paceline.errors import InputError, LaunchFailed
from paceline.spec.cluster import Cluster, Device, Placed
from paceline.spec.study import Case

__all__ = ["VirtualLauncher", "VirtualSite"]

FIRST_PORT, LAST_PORT = 20000, 40000
_SLOWER = 2.5
log = logging.getLogger("paceline.bench")


class VirtualLauncher(Launcher):
    """Hosts are namespaces of this machine, links are shaped, and time is dilated as each case requires."""

    name = "virtual"
    one_machine = True

    def __init__(self, *, dilation: float | None = None) -> None:
        check_machine()
        self._asked = dilation
        self._slowed: dict[str, float] = {}
        self._up: VirtualCluster | None = None
        self._borrowed: IO[str] | None = None
        self._lent: tuple[str, float] = ("", 1.0)
        """The cluster of the user, and the dilation that it had."""
        self._site: VirtualSite | None = None
        self._port = FIRST_PORT

    def _open(self, request: SiteRequest) -> Site:
        """A site on a new, reshaped or reused cluster; one site is open at a time, as the next may reshape it."""
        if self._site is not None and not self._site.closed:
            raise LaunchFailed("a site on this virtual cluster is open", hint="close it before another is opened")
        cluster, placement = request.cluster, request.placement
        used = sorted({placed.host for placed in placement})
        needed = cluster.model_copy(update={"hosts": tuple(cluster.hosts[index] for index in used)})
        dilation = self._dilation(request.workload)
        up = self._ensure(needed, dilation, linked=len(placement) > 1)
        addresses = {seat.name: seat.address for seat in up.layout.seats}
        hosts = tuple(addresses.get(host.name, "") for host in cluster.hosts)
        facts = {"virtual_cluster": up.name, "links": [asdict(check) for check in up.checks]}
        ports = self._next_ports(request.num_ports)
        rendezvous = Rendezvous(hosts[placement[0].host], ports, INTERFACE, dilation, facts, hosts)
        self._site = VirtualSite(rendezvous, up, cluster, placement)
        return self._site

    def _dilation(self, workload: Case | None) -> float:
        if self._asked is not None:
            return self._asked
        load = exchange_load(workload) if workload is not None else None
        if workload is None or load is None:
            return 1.0
        return choose_dilation(load, slower=self._slowed.get(workload.id, 1.0))

    def _next_ports(self, count: int) -> tuple[int, ...]:
        """Ports that the previous site did not use, because connections of its ranks may still be closing."""
        first = self._port if self._port + count <= LAST_PORT else FIRST_PORT
        self._port = first + count
        return tuple(range(first, first + count))

    def _ensure(self, cluster: Cluster, dilation: float, *, linked: bool) -> VirtualCluster:
        """A cluster with these hosts; with one rank any link shaping is acceptable, because no link is used."""
        up = self._up
        if up is not None and up.is_up and _serves(up, cluster):
            self._up = up if up.layout.dilation == dilation or not linked else reshape(up, dilation=dilation)
            return self._up
        self.close()
        self._up = self._borrow(cluster, dilation) or bring_up(cluster, dilation=dilation, owner=os.getpid())
        return self._up

    def _borrow(self, cluster: Cluster, dilation: float) -> VirtualCluster | None:
        """A suitable cluster that the user started, if no other study uses it."""
        for home in state.listing():
            up = opened(home.name)
            if up is None or up.owned or not _serves(up, cluster):
                continue
            lock = (home / "in-use").open("a")
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._borrowed, self._lent = lock, (up.name, up.layout.dilation)
                return up if up.layout.dilation == dilation else reshape(up, dilation=dilation)
            lock.close()
        return None

    def slow_down(self, workload: Case) -> None:
        """Increase the dilation for the next launch."""
        self._slowed[workload.id] = self._slowed.get(workload.id, 1.0) * _SLOWER

    def close(self) -> None:
        """Remove a cluster that was created here; give a cluster of the user back as it was."""
        up, self._up = self._up, None
        if self._borrowed is not None:
            borrowed, self._borrowed = self._borrowed, None
            with contextlib.closing(borrowed):
                _give_back(*self._lent)
        elif up is not None:
            take_down(up.home)


def _give_back(name: str, dilation: float) -> None:
    """Links of a cluster as the user had them; if the user has stopped it meanwhile, there is nothing to do."""
    try:
        up = opened(name)
        if up.is_up and up.layout.dilation != dilation:
            reshape(up, dilation=dilation)
    except InputError:
        return
    except LaunchFailed as error:
        # The measurements are valid and must not be lost: the problem of the cluster is only reported.
        log.warning("virtual cluster %s may not be as it was: %s", name, error.message)


class VirtualSite(Site):
    """Hosts of a virtual cluster that is up."""

    def __init__(
        self, rendezvous: Rendezvous, up: VirtualCluster, cluster: Cluster, placement: Sequence[Placed]
    ) -> None:
        super().__init__(rendezvous)
        self._up, self._cluster, self._placement = up, cluster, placement

    def _start(self, processes: Sequence[Process]) -> Launch:
        """Start processes in the namespaces of their hosts; they end with this process and with their host."""
        return spawn({p.name: (self._command(p), {**inherited(), **p.env}, p.log) for p in processes})

    def _command(self, process: Process) -> list[str]:
        host = self._cluster.hosts[process.host].name
        argv = on_host(self._up.pid_of(host), process.argv, directory=process.log.parent)
        device = None if process.rank is None else self._placement[process.rank].device
        return argv if device is None or device.quota >= 1 else self._throttled(argv, process, device)

    def _throttled(self, argv: list[str], process: Process, device: Device) -> list[str]:
        group = group_for(self._up.name, process.name.replace(" ", "-"), share=device.quota)
        if group is not None:
            return join_group(group, argv)
        module = "paceline.bench.virtual.throttle"
        return [sys.executable, "-m", module, str(device.quota), *argv]


def _serves(up: VirtualCluster, cluster: Cluster) -> bool:
    """Whether the virtual cluster has all hosts of the cluster, with the same links."""
    there = {host.name: (host.link, host.inside, host.nics) for host in up.cluster.hosts}
    return all(there.get(host.name) == (host.link, host.inside, host.nics) for host in cluster.hosts)
