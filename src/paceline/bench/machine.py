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
"""Catalog name of the processor of whatever host it is; a cluster of such hosts is taken to be like this machine."""
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
    probes: tuple[Callable[[], Check], ...] = (
        lambda: _threads(ranks, threads),
        _thread_variables,
        _load,
        _governor,
        _interface,
        _memory,
        lambda: _disk("store", store),
        lambda: _disk("environments", home()),
        _clock,
        _accelerator,
        _environments,
    )
    return tuple(probe() for probe in probes)


def _threads(ranks: int, threads: int | None) -> Check:
    cores = len(os.sched_getaffinity(0))
    each = threads or fair_threads(cores, ranks)
    needed = ranks * each
    saw = f"{ranks} ranks x {each} threads on {cores} cores"
    fix = f"use at most {cores} ranks here, set protocol.threads, or use emulated devices"
    return Check(
        name="threads against cores",
        status="ok" if needed <= cores else "bad",
        saw=saw,
        expected=f"at most {cores} threads in all",
        fix="" if needed <= cores else fix,
    )


def _thread_variables() -> Check:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    found = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return Check(
        name="thread variables",
        status="warn" if found else "ok",
        saw=", ".join(found) or "none set",
        expected="none set (Paceline sets them for each rank)",
        fix=f"unset {' '.join(item.split('=')[0] for item in found)}" if found else "",
    )


def _load() -> Check:
    """CPU load of other processes, measured for half a second."""
    busy = psutil.cpu_percent(interval=0.5) / 100 * (psutil.cpu_count() or 1)
    heavy = _heaviest() if busy > 0.3 else ""
    status = "ok" if busy <= 0.3 else ("warn" if busy <= 1.0 else "bad")
    fix = "" if status == "ok" else f"wait, or end what runs beside the measurement{heavy}"
    return Check(
        name="other load",
        status="warn" if status == "warn" else ("bad" if status == "bad" else "ok"),
        saw=f"{busy:.2f} cores busy",
        expected="at most 0.3",
        fix=fix,
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
    found = {path.read_text(encoding="ascii").strip() for path in sorted(Path("/").glob(_GOVERNORS[1:]))}
    steady = not found or found == {"performance"}
    return Check(
        name="frequency governor",
        status="ok" if steady else "warn",
        saw=", ".join(sorted(found)) or "not visible (virtual machine or fixed clock)",
        expected="performance",
        fix="" if steady else "cpupower frequency-set -g performance",
    )


def _interface() -> Check:
    """The interface that Gloo and NCCL choose by default: that of the default route or the host name."""
    stats = psutil.net_if_stats()
    up = sorted(name for name, item in stats.items() if item.isup and name != "lo")
    chosen = {name: os.environ[name] for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name in os.environ}
    wrong = [f"{name}={value}" for name, value in chosen.items() if value not in stats]
    saw = f"up: {', '.join(up) or 'only lo'}" + (f"; {', '.join(chosen.values())} chosen" if chosen else "")
    return Check(
        name="network interface",
        status="bad" if wrong else ("warn" if len(up) > 1 and not chosen else "ok"),
        saw=saw,
        expected="one interface, or the right one named (ranks of this machine always use lo)",
        fix=_interface_fix(wrong, up, chosen),
    )


def _interface_fix(wrong: list[str], up: list[str], chosen: dict[str, str]) -> str:
    if wrong:
        return f"{wrong[0]} does not exist: unset it or name one of {', '.join(up) or 'lo'}"
    if len(up) > 1 and not chosen:
        return f"for many hosts: export GLOO_SOCKET_IFNAME={up[0]} NCCL_SOCKET_IFNAME={up[0]}"
    return ""


def _memory() -> Check:
    memory = psutil.virtual_memory()
    swap = psutil.swap_memory()
    low = memory.available < 2 * 2**30
    swapping = swap.used > 0.2 * swap.total if swap.total else False
    saw = f"{BYTES.format(memory.available)} of {BYTES.format(memory.total)} free"
    return Check(
        name="memory",
        status="bad" if low else ("warn" if swapping else "ok"),
        saw=saw + (f", {BYTES.format(swap.used)} swapped out" if swapping else ""),
        expected="at least 2 GiB free, nothing swapped out",
        fix="close what uses memory, or use a smaller batch" if low or swapping else "",
    )


def _disk(what: str, path: Path) -> Check:
    place = path.absolute()
    while not place.exists():
        place = place.parent
    usage = shutil.disk_usage(place)
    need = 1 * 2**30 if what == "store" else 3 * 2**30
    writable = os.access(place, os.W_OK)
    good = usage.free >= need and writable
    return Check(
        name=f"disk of the {what}",
        status="ok" if good else "bad",
        saw=f"{BYTES.format(usage.free)} free" + ("" if writable else ", not writable"),
        expected=f"at least {BYTES.format(need)}, writable",
        fix="" if good else f"free space, or choose another place ({'--store' if what == 'store' else variables.HOME})",
    )


def _clock() -> Check:
    resolution = time.get_clock_info("perf_counter").resolution
    steps = [time.perf_counter() for _ in range(2000)]
    cost = (steps[-1] - steps[0]) / (len(steps) - 1)
    good = resolution <= 1e-6 and cost <= 2e-6
    return Check(
        name="clock",
        status="ok" if good else "warn",
        saw=f"resolution {resolution * 1e9:.0f} ns, reading takes {cost * 1e9:.0f} ns",
        expected="at most 1 us and 2 us",
        fix="" if good else "choose another clock source: /sys/devices/system/clocksource/clocksource0",
    )


def _accelerator() -> Check:
    devices = sorted(Path("/dev").glob("nvidia[0-9]*"))
    driver = shutil.which("nvidia-smi") is not None
    mismatch = bool(devices) != driver
    return Check(
        name="accelerators",
        status="warn" if mismatch else "ok",
        saw=f"{len(devices)} NVIDIA devices, nvidia-smi {'found' if driver else 'not found'}",
        expected="both or neither",
        fix="install the driver that belongs to the devices" if mismatch else "",
    )


def _environments() -> Check:
    made = sorted(name for name in RECIPES if find_environment(name))
    return Check(
        name="software",
        status="ok",
        saw=f"Python {sys.version.split()[0]}; environments made: {', '.join(made) or 'none yet'}",
        expected="environments are made on first use",
    )
