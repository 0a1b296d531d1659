"""Latency, jitter and loss of links by a helper that delays packets, because many kernels lack netem.

The helper is compiled on first use. The latency of the unshaped path is measured and subtracted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
from importlib.resources import files
from pathlib import Path

from paceline.bench.virtual.hosts.enter import on_network
from paceline.bench.virtual.layout import INTERFACE, Layout, Seat, path_latency
from paceline.errors import EnvironmentFailed, LaunchFailed

__all__ = ["LEAST_LATENCY_S", "PLAYABLE_LATENCY_S", "compiled_helper", "needs_delay", "start_delays", "stop_delays"]


LEAST_LATENCY_S = 1e-4
"""One-way latencies below this are shorter than the machine's own latency between two processes."""
PLAYABLE_LATENCY_S = 2.5e-4
"""One-way latencies from this on can be emulated exactly; below, the machine's own latency is too large a part."""


def needs_delay(layout: Layout) -> bool:
    """Whether any link has jitter, loss, or more latency than the machine itself."""
    links = [seat.link for seat in layout.seats]
    return any(link.latency >= LEAST_LATENCY_S or link.jitter or link.loss for link in links)


def compiled_helper() -> Path:
    """The helper's program, compiled once for each version of its source."""
    source = files("paceline.bench.virtual.links").joinpath("linkdelay.c").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"
    program = cache / f"linkdelay-{hashlib.sha256(source).hexdigest()[:16]}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        _compile(source, program)
    return program


def _compile(source: bytes, program: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise EnvironmentFailed("links with latency need a C compiler", hint="install one: apt install gcc libc6-dev")
    part = program.with_name(f"{program.name}.{os.getpid()}")
    command = [compiler, "-O2", "-x", "c", "-", "-o", str(part), "-lm"]
    done = subprocess.run(command, input=source, capture_output=True, timeout=120, check=False)
    if done.returncode != 0:
        raise EnvironmentFailed(f"the delay helper does not compile: {done.stderr.decode()[-500:]}")
    part.rename(program)


def start_delays(layout: Layout, *, keeper: int, hosts: dict[str, int], floor_s: float) -> None:
    """Queue packets for the helper, which delays each by the latency of its path minus the unshaped latency."""
    arguments: list[str] = []
    stop_delays(keeper=keeper, hosts=hosts)
    for seat in layout.seats:
        for queue, (delay_s, sources) in enumerate(_groups(layout, seat)):
            _queue_packets(hosts[seat.name], queue, sources)
            held = max(0, round((delay_s - floor_s) * 1e9))
            place = f"/proc/{hosts[seat.name]}/ns/net"
            arguments += [place, str(queue), str(held), str(round(seat.link.jitter * 1e9)), f"{seat.link.loss:.9f}"]
    _start(keeper, arguments)


def _groups(layout: Layout, seat: Seat) -> list[tuple[float, list[Seat]]]:
    """Delays at which packets reach a host, with the hosts whose packets they are."""
    groups: dict[float, list[Seat]] = {}
    for source in layout.seats:
        if source is not seat:
            groups.setdefault(round(path_latency(source, seat), 9), []).append(source)
    return sorted(groups.items(), key=lambda group: group[0])


def _queue_packets(host: int, queue: int, sources: list[Seat]) -> None:
    lines = ["*mangle"]
    for source in sources:
        match = f"-A INPUT -i {INTERFACE} -s {source.address}"
        lines.append(f"{match} -j NFQUEUE --queue-num {queue}")
    _restore(host, lines)


def _restore(host: int, lines: list[str]) -> None:
    tool = shutil.which("iptables-legacy-restore") or shutil.which("iptables-restore")
    if tool is None:
        raise EnvironmentFailed("links with latency need iptables", hint="install it: apt install iptables")
    command = on_network(host, [tool, "--noflush", "--wait", "10"])
    text = "\n".join([*lines, "COMMIT", ""])
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise LaunchFailed(f"packets cannot be queued for delay: {done.stderr.strip()}", hint="kernel without NFQUEUE?")


def stop_delays(*, keeper: int, hosts: dict[str, int]) -> None:
    """Remove the queues and stop the helper (a child of the keeper, identified by its program)."""
    for host in hosts.values():
        _restore(host, ["*mangle", "-F INPUT"])
    program = compiled_helper()
    for child in Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{child}/exe").readlink() == program:
                os.kill(int(child), signal.SIGKILL)


def _start(keeper: int, arguments: list[str]) -> None:
    """Start the helper inside the cluster, so that it ends with the cluster."""
    command = ["nsenter", f"--target={keeper}", "--pid", "--", str(compiled_helper()), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0 or "ready" not in done.stdout:
        raise LaunchFailed(f"the delay helper did not start: {done.stderr.strip()}")
