"""Description of this machine, and the drift probe."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import psutil

import paceline
from paceline import variables
from paceline.bench.environments import RECIPES, find_environment, home
from paceline.cost.host import fair_threads
from paceline.measurements.run import Check, Machine
from paceline.spec.cluster import Device
from paceline.units import BANDWIDTH, BYTES

__all__ = ["HOST_CPU", "cpu_model", "describe_machine", "diagnose", "probe_seconds", "with_rates"]

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


HOST_CPU = "host-cpu"
"""Catalog name of the CPU of an unknown host; a cluster of such hosts is modelled with the rates of this machine."""
RATE_SIDE, RATE_BYTES, RATE_S = 768, 64 * 2**20, 0.3
"""Rows of the timed matrix product, bytes of the timed copy, and seconds for each."""


def with_rates(device: Device) -> Device:
    """`host-cpu` with the rates of all cores of this machine, measured now; a device that states its own stays."""
    if device.name != HOST_CPU or device.peak or device.emulation:
        return device
    peak, bandwidth = _rates()
    name = f"{device.name} ({peak / 1e9:.0f} GFLOP/s, {BANDWIDTH.format(bandwidth)}, measured here now)"
    return device.model_copy(update={"name": name, "peak": {"float32": peak}, "memory_bandwidth": bandwidth})


@functools.cache
def _rates() -> tuple[float, float]:
    """FLOP/s of a matrix product of float32, and bytes/s that a copy reads and writes."""
    left = np.ones((RATE_SIDE, RATE_SIDE), dtype=np.float32)
    source = np.ones(RATE_BYTES // 4, dtype=np.float32)
    target = np.empty_like(source)
    product, copy = _best(lambda: left @ left), _best(lambda: np.copyto(target, source))
    return 2.0 * RATE_SIDE**3 / product, 2.0 * RATE_BYTES / copy


def _best(action: Callable[[], object]) -> float:
    """Shortest of the times of an action within the time for a rate: other load only lengthens them."""
    times: list[float] = []
    while sum(times) < RATE_S or len(times) < 3:
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return min(times)


_GOVERNORS = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"


def diagnose(store: Path, *, ranks: int = 2, threads: int | None = None) -> tuple[Check, ...]:
    """All checks, for a study with `ranks` ranks of `threads` threads on this machine."""
    return (
        _threads(ranks, threads),
        _thread_variables(),
        _load(),
        _governor(),
        _interface(),
        _memory(),
        _disk("store", store),
        _disk("environments", home()),
        _clock(),
        _accelerator(),
        _environments(),
    )


def _check(name: str, status: Literal["ok", "warn", "bad"], saw: str, expected: str, fix: str = "") -> Check:
    """A check; a passed check has no fix."""
    return Check(name=name, status=status, saw=saw, expected=expected, fix="" if status == "ok" else fix)


def _threads(ranks: int, threads: int | None) -> Check:
    cores = len(os.sched_getaffinity(0))
    each = threads or fair_threads(cores, ranks)
    return _check(
        "threads against cores",
        "ok" if ranks * each <= cores else "bad",
        f"{ranks} ranks x {each} threads on {cores} cores",
        f"at most {cores} threads in all",
        f"use at most {cores} ranks here, set protocol.threads, or use emulated devices",
    )


def _thread_variables() -> Check:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    values = {name: os.environ[name] for name in names if name in os.environ}
    return _check(
        "thread variables",
        "warn" if values else "ok",
        ", ".join(f"{name}={value}" for name, value in values.items()) or "none set",
        "none set (Paceline sets them for each rank)",
        f"unset {' '.join(values)}",
    )


def _load() -> Check:
    """CPU load of other processes, measured for half a second."""
    busy = psutil.cpu_percent(interval=0.5) / 100 * (psutil.cpu_count() or 1)
    heavy = _heaviest() if busy > 0.3 else ""
    return _check(
        "other load",
        "ok" if busy <= 0.3 else "warn" if busy <= 1.0 else "bad",
        f"{busy:.2f} cores busy",
        "at most 0.3",
        f"wait, or stop other processes{heavy}",
    )


def _heaviest() -> str:
    processes = [process for process in psutil.process_iter(["pid", "name"]) if process.pid != os.getpid()]
    for process in processes:
        _cpu_share(process)
    time.sleep(0.2)
    shares = sorted(((_cpu_share(p), p.info["name"], p.pid) for p in processes), reverse=True)[:1]
    return "".join(f" (most: {name}, pid {pid})" for share, name, pid in shares if share > 0)


def _cpu_share(process: psutil.Process) -> float:
    try:
        return float(process.cpu_percent(interval=None))
    except psutil.Error:
        return 0.0


def _governor() -> Check:
    governors = {path.read_text(encoding="ascii").strip() for path in sorted(Path("/").glob(_GOVERNORS[1:]))}
    return _check(
        "frequency governor",
        "ok" if not governors or governors == {"performance"} else "warn",
        ", ".join(sorted(governors)) or "not visible (virtual machine or fixed clock)",
        "performance",
        "cpupower frequency-set -g performance",
    )


def _interface() -> Check:
    """The interface that Gloo and NCCL choose by default: that of the default route or the host name."""
    stats = psutil.net_if_stats()
    up = sorted(name for name, item in stats.items() if item.isup and name != "lo")
    chosen = {name: os.environ[name] for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name in os.environ}
    wrong = [f"{name}={value}" for name, value in chosen.items() if value not in stats]
    fix = f"for many hosts: export GLOO_SOCKET_IFNAME={up[0]} NCCL_SOCKET_IFNAME={up[0]}" if up else ""
    if wrong:
        fix = f"{wrong[0]} does not exist: unset it or name one of {', '.join(up) or 'lo'}"
    return _check(
        "network interface",
        "bad" if wrong else "warn" if len(up) > 1 and not chosen else "ok",
        f"up: {', '.join(up) or 'only lo'}" + (f"; {', '.join(chosen.values())} chosen" if chosen else ""),
        "one interface, or the right one named (ranks of this machine always use lo)",
        fix,
    )


def _memory() -> Check:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    swapping = swap.used > 0.2 * swap.total if swap.total else False
    saw = f"{BYTES.format(memory.available)} of {BYTES.format(memory.total)} free"
    return _check(
        "memory",
        "bad" if memory.available < 2 * 2**30 else "warn" if swapping else "ok",
        saw + (f", {BYTES.format(swap.used)} swapped out" if swapping else ""),
        "at least 2 GiB free, nothing swapped out",
        "close what uses memory, or use a smaller batch",
    )


def _disk(what: str, path: Path) -> Check:
    place = path.absolute()
    while not place.exists():
        place = place.parent
    free, writable = shutil.disk_usage(place).free, os.access(place, os.W_OK)
    need = 1 * 2**30 if what == "store" else 3 * 2**30
    return _check(
        f"disk of the {what}",
        "ok" if free >= need and writable else "bad",
        f"{BYTES.format(free)} free" + ("" if writable else ", not writable"),
        f"at least {BYTES.format(need)}, writable",
        f"free space, or choose another place ({'--store' if what == 'store' else variables.HOME})",
    )


def _clock() -> Check:
    resolution = time.get_clock_info("perf_counter").resolution
    steps = [time.perf_counter() for _ in range(2000)]
    cost = (steps[-1] - steps[0]) / (len(steps) - 1)
    return _check(
        "clock",
        "ok" if resolution <= 1e-6 and cost <= 2e-6 else "warn",
        f"resolution {resolution * 1e9:.0f} ns, reading takes {cost * 1e9:.0f} ns",
        "at most 1 us and 2 us",
        "choose another clock source: /sys/devices/system/clocksource/clocksource0",
    )


def _accelerator() -> Check:
    devices = sorted(Path("/dev").glob("nvidia[0-9]*"))
    driver = shutil.which("nvidia-smi") is not None
    return _check(
        "accelerators",
        "ok" if bool(devices) == driver else "warn",
        f"{len(devices)} NVIDIA devices, nvidia-smi {'found' if driver else 'not found'}",
        "both or neither",
        "install the driver that belongs to the devices",
    )


def _environments() -> Check:
    made = sorted(name for name in RECIPES if find_environment(name))
    saw = f"Python {sys.version.split()[0]}; environments made: {', '.join(made) or 'none yet'}"
    return _check("software", "ok", saw, "environments are made on first use")
