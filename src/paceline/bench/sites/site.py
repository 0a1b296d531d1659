"""A site: hosts that are ready for the processes of one launch, and the launchers that open sites.

    with launcher.open(cluster, ranks) as site:
        processes = ...site.rendezvous...
        launch = site.start(processes)

A site always has a rendezvous, and a closed site starts no processes, so methods cannot be called in a wrong order.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from paceline.errors import LaunchFailed
from paceline.spec.cluster import Cluster, Placed, place
from paceline.spec.study import Case

__all__ = ["NOWHERE", "NUM_SHARED_PORTS", "Launch", "Launcher", "Process", "Rendezvous", "Site", "SiteRequest"]

NUM_SHARED_PORTS = 4
"""Number of shared ports of a rendezvous; the following ports belong to ranks."""


@dataclass(frozen=True)
class Rendezvous:
    """The rendezvous of the ranks of one launch: address of rank 0, free ports on its host, interface."""

    address: str
    ports: tuple[int, ...]
    interface: str | None = None
    dilation: float = 1.0
    """Factor by which links and emulated compute are slowed at the site."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts of the site that are stored with the run: measured links, hosts, job ids."""
    hosts: tuple[str, ...] = ()
    """Address of each host of the cluster; empty if all hosts are this machine."""

    def address_of(self, host: int) -> str:
        """The address of one of the cluster's hosts."""
        return self.hosts[host] if self.hosts else self.address


NOWHERE = Rendezvous("", ())
"""The rendezvous of a launch that failed before its site was open."""


@dataclass(frozen=True)
class Process:
    """One process of a launch, ready to be started on a host."""

    name: str
    """`rank 0`, `server 1`, ...; unique in the launch."""
    host: int
    """Index of its host in the cluster."""
    argv: tuple[str, ...]
    env: dict[str, str]
    log: Path
    rank: int | None = None
    """None for helpers, such as parameter servers, which end after the ranks."""


class Launch(Protocol):
    """Processes that were started together."""

    def poll(self) -> dict[str, int | None]:
        """Exit code of each process by name; None while it runs. A lost host is reported as -9."""
        ...

    def stop(self) -> None:
        """End all processes and their children."""
        ...


@dataclass(frozen=True)
class SiteRequest:
    """The request to open a site."""

    cluster: Cluster
    placement: tuple[Placed, ...]
    """Where each rank runs."""
    num_ports: int
    workload: Case | None = None


class _ContextManager(abc.ABC):
    @abc.abstractmethod
    def close(self) -> None:
        """Release all resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Site(_ContextManager):
    """Hosts that are ready for processes; all processes end with the site."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self.rendezvous = rendezvous
        self.closed = False
        self._launches: list[Launch] = []

    def start(self, processes: Sequence[Process]) -> Launch:
        """Start them all, each on its host."""
        if self.closed:
            raise LaunchFailed(f"{processes[0].name} cannot be started: its site is closed", hint="open another site")
        launch = self._start(processes)
        self._launches.append(launch)
        return launch

    @abc.abstractmethod
    def _start(self, processes: Sequence[Process]) -> Launch: ...

    def close(self) -> None:
        """End every process that was started here; a second call does nothing."""
        self.closed = True
        while self._launches:
            self._launches.pop().stop()


class Launcher(_ContextManager):
    """Opens sites on the hosts of a cluster, and owns their shared resources until it is closed."""

    name: str
    one_machine = False
    """Whether this machine emulates all hosts, so that all ranks share its cores."""

    def open(
        self,
        cluster: Cluster,
        ranks: int,
        *,
        spread: bool = False,
        num_ports: int | None = None,
        workload: Case | None = None,
    ) -> Site:
        """Open a site for `ranks` ranks on a cluster, placed host by host, or spread over the hosts.

        Without `num_ports` the rendezvous has the shared ports and one for each rank. The workload is the case that
        runs there: a virtual cluster chooses its dilation for this case.
        """
        count = NUM_SHARED_PORTS + ranks if num_ports is None else num_ports
        return self._open(SiteRequest(cluster, place(cluster, ranks, spread=spread), count, workload))

    @abc.abstractmethod
    def _open(self, request: SiteRequest) -> Site: ...

    def slow_down(self, workload: Case) -> None:
        """Increase the dilation of this case at the next opening, because the machine did not keep up.

        Only a virtual cluster supports this; real time cannot be dilated.
        """
        return

    def close(self) -> None:
        """Release resources that are shared by sites; most launchers have none."""
