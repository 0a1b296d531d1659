"""A site: hosts that are ready for the processes of one launch, and the launchers that open sites.

    with launcher.open(cluster, ranks) as site:
        processes = ...site.rendezvous...
        launch = site.start(processes)

Whoever has a site has its rendezvous, and a site that was closed starts nothing more: no other order is possible.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from paceline.errors import LaunchFailed
from paceline.spec.cluster import Cluster
from paceline.spec.study import Case

__all__ = ["NOWHERE", "NUM_SHARED_PORTS", "Launch", "Launcher", "Process", "Rendezvous", "Site", "num_ports_for"]

NUM_SHARED_PORTS = 4
"""Ports of a rendezvous that every framework may use; those after them belong to ranks."""


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of one launch connect to each other: rank 0's address, free ports on its host, the interface."""

    address: str
    ports: tuple[int, ...]
    interface: str | None = None
    dilation: float = 1.0
    """Factor by which links and emulated compute are slowed at the site."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What is known about the site, stored with the run: links as measured, hosts, job numbers."""
    hosts: tuple[str, ...] = ()
    """Address of each host of the cluster; none where all are the same machine."""

    def address_of(self, host: int) -> str:
        """The address of one of the cluster's hosts."""
        return self.hosts[host] if self.hosts else self.address


NOWHERE = Rendezvous("", ())
"""Of a launch that failed before a site was open."""


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
    """None for helpers, such as parameter servers, which end when the ranks are done."""


class Launch(Protocol):
    """Processes that were started together."""

    def poll(self) -> dict[str, int | None]:
        """Exit code of each process by name; None while it runs. A lost host is reported as -9."""
        ...

    def stop(self) -> None:
        """End whatever still runs, and everything it started."""
        ...


class _ContextManager(abc.ABC):
    @abc.abstractmethod
    def close(self) -> None:
        """Release what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Site(_ContextManager):
    """Hosts that are ready; processes may be started in several calls, and all of them end with the site."""

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
    """Opens sites on the hosts of a cluster, and holds what they share until it is closed."""

    name: str
    one_machine = False
    """Whether all hosts are played by this machine, so that all ranks share its cores."""

    @abc.abstractmethod
    def open(
        self,
        cluster: Cluster,
        ranks: int,
        *,
        spread: bool = False,
        num_ports: int | None = None,
        workload: Case | None = None,
    ) -> Site:
        """A site for so many ranks on a cluster, host after host or spread over the hosts.

        Without `num_ports` the rendezvous has the shared ports and one for each rank. The workload says what will be
        trained there: a virtual cluster dilates its time as far as this case needs.
        """

    def slow_down(self, workload: Case) -> None:
        """The machine did not keep up: dilate time more when a site is next opened for this case.

        Only a virtual cluster can; real time cannot be dilated.
        """
        return

    def close(self) -> None:
        """Release whatever is held from site to site; most launchers hold nothing."""


def num_ports_for(ranks: int, asked: int | None) -> int:
    """Ports of a rendezvous: as many as asked for, else the shared ones and one for each rank."""
    return NUM_SHARED_PORTS + ranks if asked is None else asked
