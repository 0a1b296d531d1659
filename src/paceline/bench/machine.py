"""Description of this machine, and the drift probe."""

from __future__ import annotations

import os
import platform
import socket
import statistics
import time

import numpy as np
import psutil

import paceline
from paceline.measurements.run import Check, Machine

__all__ = ["cpu_model", "describe_machine", "probe_seconds"]

KERNEL_SIZE = 192
KERNEL_REPEATS = 40


def describe_machine(checks: tuple[Check, ...] = ()) -> Machine:
    """The machine, without the framework that will be measured on it."""
    return Machine(
        host=socket.gethostname(),
        cpu=cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=int(psutil.virtual_memory().total),
        os=_os_name(),
        kernel=platform.release(),
        python=platform.python_version(),
        paceline=paceline.__version__,
        checks=checks,
    )


def cpu_model() -> str:
    """Name of the processor according to the kernel."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def probe_seconds() -> float:
    """Median time of a fixed kernel on one core: its change between launches is the machine's drift."""
    matrix = np.full((KERNEL_SIZE, KERNEL_SIZE), 1.0 / KERNEL_SIZE)
    times = []
    for _ in range(KERNEL_REPEATS):
        begin = time.perf_counter()
        for _ in range(3):
            np.sin(matrix).sum()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
