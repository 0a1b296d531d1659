"""Linux system calls that Python 3.11 does not offer: namespaces, mounts, parent-death signal."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

__all__ = ["mount", "set_host_name", "set_parent_death_signal", "setns", "unshare"]

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x4000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    function: Callable[..., int] = getattr(_libc, name)
    if function(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    """Leave the given kinds of namespace for new ones."""
    _call("unshare", flags)


def setns(descriptor: int, kind: int) -> None:
    """Enter the namespace behind a descriptor."""
    _call("setns", descriptor, kind)


def mount(source: str, target: str, kind: str = "", *, flags: int = 0, options: str = "") -> None:
    """Mount, with the kernel's own arguments."""
    _call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())


def set_host_name(name: str) -> None:
    """Name this host, inside its UTS namespace."""
    _call("sethostname", name.encode(), len(name.encode()))


def set_parent_death_signal() -> None:
    """Let the kernel kill this process when its parent dies."""
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
