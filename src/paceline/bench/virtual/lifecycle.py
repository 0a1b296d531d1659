"""Life cycle of virtual clusters: start, list, reshape, stop."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from paceline.bench.virtual import state
from paceline.bench.virtual.layout import Layout, lay_out
from paceline.bench.virtual.shaping import connect, needs_delay, shape, start_delays, stop_delays
from paceline.bench.virtual.verify import LinkCheck, measure_trips, verify_links
from paceline.errors import InputError, LaunchFailed, Unsupported
from paceline.files import atomic_write
from paceline.spec.cluster import Cluster

__all__ = ["VirtualCluster", "bring_up", "check_machine", "opened", "reshape", "take_down"]

_TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "setpriv": "util-linux", "chrt": "util-linux"}
_START_S = 30.0
_STOP_S = 15.0
"""Seconds for the holder to remove everything before it is killed."""
_CALIBRATIONS = 4
_CLOSE = 0.015
"""Relative error of the latency at which calibration ends; verification allows more."""


@dataclass(frozen=True)
class VirtualCluster:
    """A running virtual cluster."""

    name: str
    home: Path
    cluster: Cluster
    layout: Layout
    processes: state.Processes
    checks: tuple[LinkCheck, ...]
    owned: bool
    """Whether it ends with the process that created it."""

    def pid_of(self, host: str) -> int:
        """The first process of a host, which gives its namespaces."""
        return self.processes.hosts[host]

    @property
    def is_up(self) -> bool:
        """Whether it still runs."""
        return state.is_alive(self.home)


def check_machine() -> None:
    """Raise an error if this machine lacks a requirement of virtual clusters."""
    if os.geteuid() != 0:
        raise Unsupported(
            "a virtual cluster needs root: it makes network namespaces and shapes their links",
            hint="run as root, or use --on local, which runs the ranks over loopback without shaping",
        )
    around = _cluster_around()
    if around is not None:
        raise Unsupported(
            f"this is a host of the virtual cluster {around!r}, and virtual clusters do not nest",
            hint="call it on the machine itself; on a host of the cluster use --on local or --on ssh",
        )
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            raise Unsupported(f"a virtual cluster needs {tool!r}", hint=f"install it: apt install {package}")


def _cluster_around() -> str | None:
    """The virtual cluster that this process runs in, identified by its /etc/hosts; None outside."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        source, target = line.split()[3:5]
        if target == "/etc/hosts" and Path(source).parent.parent.name == "clusters":
            return Path(source).parent.name
    return None


def bring_up(cluster: Cluster, *, name: str | None = None, dilation: float = 1.0, owner: int = 0) -> VirtualCluster:
    """Create the hosts, connect and shape them, and verify the links; a failure leaves nothing behind.

    With an owner (a pid) the cluster ends with that process; without one it runs until it is stopped.
    """
    check_machine()
    state.sweep()
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", cluster.name)
    home = _claim(name or (f"{plain}-{secrets.token_hex(3)}" if owner else plain))
    try:
        return _build(cluster, home, dilation=dilation, owner=owner)
    except BaseException:
        take_down(home)
        raise


def _claim(name: str) -> Path:
    if "/" in name or name.startswith("."):
        raise InputError(f"a virtual cluster cannot be called {name!r}", hint="use letters, digits, '-' and '_'")
    home = state.state_directory() / name
    home.parent.mkdir(parents=True, exist_ok=True)
    try:
        home.mkdir()
    except FileExistsError:
        raise InputError(
            f"a virtual cluster called {name!r} is already up",
            hint=f"`paceline cluster down {name}` first, or give this one another --name",
        ) from None
    return home


def _build(cluster: Cluster, home: Path, *, dilation: float, owner: int) -> VirtualCluster:
    layout = lay_out(cluster, instance=home.name, dilation=dilation)
    _write_hosts(home, layout)
    # This process owns the cluster until the links are verified, so that killing it leaves nothing behind.
    _start_holder(home, owner=owner or os.getpid())
    processes = _await_processes(home)
    hosts = processes.hosts
    connect(layout, keeper=processes.keeper, hosts=hosts)
    if needs_delay(layout) and len(layout.seats) > 1:
        _delay_links(layout, processes)
    checks = verify_links(layout, hosts)
    up = VirtualCluster(home.name, home, cluster, layout, processes, checks, owned=bool(owner))
    _record(up)
    if not owner:
        os.kill(processes.holder, signal.SIGUSR1)
    return up


def reshape(up: VirtualCluster, *, dilation: float) -> VirtualCluster:
    """The cluster with links shaped and verified for another dilation."""
    layout = lay_out(up.cluster, instance=up.home.name, dilation=dilation)
    shape(layout, keeper=up.processes.keeper, hosts=up.processes.hosts)
    if needs_delay(layout) and len(layout.seats) > 1:
        stop_delays(keeper=up.processes.keeper, hosts=up.processes.hosts)
        _delay_links(layout, up.processes)
    changed = replace(up, layout=layout, checks=())
    _record(changed)  # before verification, which may fail: the links exist already
    changed = replace(changed, checks=verify_links(layout, up.processes.hosts))
    _record(changed)
    return changed


def _delay_links(layout: Layout, processes: state.Processes) -> None:
    """Add latency minus the measured latency of the unshaped path, then correct it by the measured result."""
    _, floor = measure_trips(layout, processes.hosts)
    for _ in range(_CALIBRATIONS):
        start_delays(layout, keeper=processes.keeper, hosts=processes.hosts, floor_s=floor)
        asked, measured = measure_trips(layout, processes.hosts)
        if abs(measured - asked) <= _CLOSE * asked:
            return
        floor = max(0.0, floor + measured - asked)


def _write_hosts(home: Path, layout: Layout) -> None:
    (home / "hosts.json").write_text(json.dumps([seat.name for seat in layout.seats]))
    names = ["127.0.0.1 localhost", *(f"{seat.address} {seat.name}" for seat in layout.seats)]
    (home / "hosts").write_text("\n".join([*names, ""]))


def _start_holder(home: Path, *, owner: int) -> None:
    """Start the holder, which runs in the background."""
    command = [sys.executable, "-m", "paceline.bench.virtual.holder", str(home), str(owner)]
    with (home / "holder.log").open("wb") as log:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=_START_S, check=False)


def _await_processes(home: Path) -> state.Processes:
    deadline = time.monotonic() + _START_S
    while (processes := state.read_processes(home)) is None:
        log = (home / "holder.log").read_text()[-400:].strip() if home.exists() else "it went away"
        if log or time.monotonic() > deadline:
            time.sleep(0.1)
            raise LaunchFailed(f"the hosts of the virtual cluster did not start: {log or 'no answer'}")
        time.sleep(0.01)
    return processes


def _record(up: VirtualCluster) -> None:
    data = {
        "cluster": up.cluster.model_dump(mode="json"),
        "dilation": up.layout.dilation,
        "checks": [asdict(check) for check in up.checks],
        "owned": up.owned,
    }
    atomic_write(up.home / "cluster.json", json.dumps(data), durable=False)


def opened(name: str) -> VirtualCluster:
    """A running cluster by name."""
    home = state.find(name)
    try:
        data = json.loads((home / "cluster.json").read_text())
    except FileNotFoundError:
        raise LaunchFailed(f"virtual cluster {name!r} is still being made, or going down") from None
    cluster = Cluster.model_validate_json(json.dumps(data["cluster"]))
    layout = lay_out(cluster, instance=home.name, dilation=data["dilation"])
    processes = state.read_processes(home)
    if processes is None:
        raise LaunchFailed(f"virtual cluster {name!r} is going down")
    checks = tuple(LinkCheck(**check) for check in data["checks"])
    return VirtualCluster(home.name, home, cluster, layout, processes, checks, owned=data["owned"])


def take_down(home: Path) -> None:
    """Stop the holder, which stops everything else, and wait until all resources are removed."""
    processes = state.read_processes(home)
    if processes is not None and state.is_alive(home):
        os.kill(processes.holder, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_S
        while state.is_alive(home) and time.monotonic() < deadline:
            time.sleep(0.02)
        if state.is_alive(home):
            os.kill(processes.holder, signal.SIGKILL)
    state.forget(home)
