"""The process that holds a virtual cluster's namespaces, so that the kernel itself takes the cluster down.

    holder                    waits for its owner and its keeper; cleans up when either is gone
    └── keeper                pid 1 of the cluster's process namespace; its network namespace holds the switch
        ├── host "a"          pid 1 of the host's process namespace; own network, host name and mounts
        └── host "b"

No resource has a name outside these processes. When the holder or the keeper dies, by any signal, the kernel kills
every process of every host and with the last of them the namespaces, interfaces and shaping go.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
from pathlib import Path

from paceline.bench.virtual import namespaces
from paceline.bench.virtual.throttle import remove_groups
from paceline.files import atomic_write

__all__ = ["main"]

_CREDENTIALS = struct.Struct("3i")


def main(directory: str, owner: str) -> int:
    """Hold the cluster described in `directory` until its keeper ends, it is asked to stop, or its owner dies."""
    if os.fork():
        return 0
    os.setsid()
    home = Path(directory)
    hosts: list[str] = json.loads((home / "hosts.json").read_text())
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    namespaces.unshare(namespaces.CLONE_NEWPID)
    keeper = os.fork()
    if keeper == 0:
        _keep(hosts, theirs, hosts_file=home / "hosts")
    theirs.close()
    pids = _collect(mine, expected=len(hosts))
    _announce(home, keeper, pids)
    _wait(keeper, owner=int(owner))
    _remove(home, keeper)
    return 0


def _keep(hosts: list[str], report: socket.socket, *, hosts_file: Path) -> None:
    """Become the first process of the cluster: create the hosts, then reap orphans."""
    namespaces.set_parent_death_signal()
    os.setsid()
    namespaces.unshare(namespaces.CLONE_NEWNET | namespaces.CLONE_NEWNS)
    namespaces.mount("none", "/", flags=namespaces.MS_REC | namespaces.MS_PRIVATE)
    namespaces.mount("proc", "/proc", "proc")
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    for name in hosts:
        namespaces.unshare(namespaces.CLONE_NEWPID)
        if os.fork() == 0:
            _be_host(name, report, hosts_file=hosts_file)
        namespaces.setns(own, namespaces.CLONE_NEWPID)
    _reap_for_ever()


def _be_host(name: str, report: socket.socket, *, hosts_file: Path) -> None:
    """Become the first process of a host, with a separate network, host name and mounts."""
    namespaces.set_parent_death_signal()
    namespaces.unshare(namespaces.CLONE_NEWNET | namespaces.CLONE_NEWUTS | namespaces.CLONE_NEWNS)
    namespaces.set_host_name(name)
    _mount_own(hosts_file)
    report.send(name.encode())
    report.close()
    _reap_for_ever()


def _mount_own(hosts_file: Path) -> None:
    """Mount the host's view of processes, network devices, shared memory, and names of its peers."""
    groups = str(hosts_file.parent / "cgroup")
    Path(groups).mkdir(exist_ok=True)
    namespaces.mount("/sys/fs/cgroup", groups, flags=namespaces.MS_BIND | namespaces.MS_REC)
    namespaces.mount("proc", "/proc", "proc")
    namespaces.mount("sysfs", "/sys", "sysfs")
    namespaces.mount(groups, "/sys/fs/cgroup", flags=namespaces.MS_BIND | namespaces.MS_REC)
    namespaces.mount("tmpfs", "/dev/shm", "tmpfs", options="mode=1777")
    namespaces.mount(str(hosts_file), "/etc/hosts", flags=namespaces.MS_BIND)


def _reap_for_ever() -> None:
    """Reap orphaned processes, the task of a first process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        signal.sigtimedwait({signal.SIGCHLD}, 60)


def _collect(report: socket.socket, *, expected: int) -> dict[str, int]:
    """The pid of the first process of each host in this namespace; the kernel translates the pid of the sender."""
    report.settimeout(10)
    pids: dict[str, int] = {}
    while len(pids) < expected:
        name, ancillary, _, _ = report.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
        pids[name.decode()] = _CREDENTIALS.unpack(ancillary[0][2])[0]
    return pids


def _announce(home: Path, keeper: int, pids: dict[str, int]) -> None:
    text = json.dumps({"holder": os.getpid(), "keeper": keeper, "hosts": pids})
    atomic_write(home / "processes.json", text, durable=False)


def _wait(keeper: int, *, owner: int) -> None:
    """Wait until the keeper ends, the owner dies (0: no owner), or a termination signal arrives.

    SIGUSR1 releases it from its owner: the cluster is complete and stays.
    """
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    watched = [os.pidfd_open(keeper), read]
    if owner:
        try:
            watched.append(os.pidfd_open(owner))
        except ProcessLookupError:
            return
    poll = select.poll()
    for descriptor in watched:
        poll.register(descriptor, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        numbers = os.read(read, 64) if read in ready else b""
        if not numbers or set(numbers) - {signal.SIGUSR1}:
            return
        poll.unregister(watched[-1])


def _remove(home: Path, keeper: int) -> None:
    """Kill all processes of the cluster, wait for them, and remove control groups and state."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(keeper, signal.SIGKILL)
    os.waitpid(keeper, 0)
    remove_groups(home.name)
    shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
