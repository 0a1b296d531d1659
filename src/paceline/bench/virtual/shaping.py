"""Links of virtual hosts: a token bucket at both ends shapes bandwidth, a helper adds latency, jitter and loss.

Each host connects to a switch by a pair of interfaces. The requested bandwidth is the payload rate of a TCP stream;
the bucket rate includes headers. Segments handed to the bucket are kept short in time (about 0.15 ms of the link), so
that small messages are shaped like large ones, but no shorter than the machine can handle when all links are busy at
once. The helper delays packets, because many kernels lack netem; it is compiled on first use, and the latency of the
unshaped path is subtracted.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import shutil
import signal
import subprocess
from importlib.resources import files
from pathlib import Path

from paceline.bench.environments import home
from paceline.bench.virtual.layout import INTERFACE, Layout, VirtualHost, path_latency
from paceline.bench.virtual.namespaces import on_network, run_script
from paceline.errors import EnvironmentFailed, LaunchFailed

__all__ = [
    "FASTEST_SHAPED",
    "LEAST_LATENCY_S",
    "PLAYABLE_LATENCY_S",
    "compiled_helper",
    "connect",
    "needs_delay",
    "segment_bytes",
    "shape",
    "start_delays",
    "stop_delays",
]

MTU = 1500
PAYLOAD, FRAME = 1448, 1514
"""Bytes of a full TCP segment with timestamps, and of the frame that carries it."""
SEGMENT_S = 150e-6
SEGMENTS_PER_CORE = 6000
"""Segments per second of all links that one core forwards without measurable disturbance."""
FASTEST_SHAPED = 5e9
"""Bytes per second above which a bucket has no effect on one machine."""
LEAST_LATENCY_S = 1e-4
"""One-way latencies below this are shorter than the machine's own latency between two processes."""
PLAYABLE_LATENCY_S = 2.5e-4
"""One-way latencies from this on can be emulated exactly; below, the machine's own latency is too large a part."""
_LONGEST_SEGMENT = 65536
_HEADERS = 100
_IP = ("ip", "-batch", "-")
_TC = ("tc", "-batch", "-")


def connect(layout: Layout, *, keeper: int, hosts: dict[str, int]) -> None:
    """Connect all hosts to the switch and shape their links."""
    run_script(keeper, _IP, _switch_lines(layout, hosts))
    shape(layout, keeper=keeper, hosts=hosts)


def shape(layout: Layout, *, keeper: int, hosts: dict[str, int]) -> None:
    """Set the rate of every link, also on a running cluster."""
    run_script(keeper, _TC, [_bucket(seat.port, seat, segment_bytes(layout, seat)) for seat in layout.seats])
    for seat in layout.seats:
        segment = segment_bytes(layout, seat)
        run_script(hosts[seat.name], _IP, _host_lines(seat, segment))
        run_script(hosts[seat.name], _TC, _host_buckets(seat, segment))


def _switch_lines(layout: Layout, hosts: dict[str, int]) -> list[str]:
    lines = ["link set lo up", "link add switch type bridge stp_state 0 forward_delay 0", "link set switch up"]
    for seat in layout.seats:
        peer = f"peer name {INTERFACE} netns {hosts[seat.name]} mtu {MTU}"
        lines.append(f"link add {seat.port} mtu {MTU} type veth {peer}")
        lines.append(f"link set {seat.port} master switch up")
    return lines


def _host_lines(seat: VirtualHost, segment: int) -> list[str]:
    network = seat.address.rsplit(".", 1)[0] + ".0/24"
    return [
        "link set lo up",
        f"link set {INTERFACE} gso_max_size {segment} gso_max_segs {max(1, segment // PAYLOAD)}",
        f"address replace {seat.address}/24 dev {INTERFACE}",
        f"link set {INTERFACE} up",
        # Congestion control is set by route, because a namespace cannot set its default; cubic fills a bucket evenly.
        f"route change {network} dev {INTERFACE} proto kernel scope link src {seat.address} congctl cubic",
    ]


def segment_bytes(layout: Layout, seat: VirtualHost) -> int:
    """Longest segment for the bucket; single frames on links with loss, so that frames are lost independently."""
    if seat.link.loss:
        return PAYLOAD + _HEADERS
    busy = sum(other.link.bandwidth for other in layout.seats) / (SEGMENTS_PER_CORE * (os.cpu_count() or 1))
    wanted = math.floor(max(seat.link.bandwidth * SEGMENT_S, busy) / PAYLOAD)
    return min(_LONGEST_SEGMENT, max(1, wanted) * PAYLOAD + _HEADERS)


def _host_buckets(seat: VirtualHost, segment: int) -> list[str]:
    return [_bucket(INTERFACE, seat, segment), _qdisc("lo", seat.inside.bandwidth, segment=_LONGEST_SEGMENT)]


def _bucket(device: str, seat: VirtualHost, segment: int) -> str:
    return _qdisc(device, seat.link.bandwidth * FRAME / PAYLOAD, segment=segment)


def _qdisc(device: str, rate: float, *, segment: int) -> str:
    if rate >= FASTEST_SHAPED:
        return f"qdisc replace dev {device} root pfifo limit 10000"
    burst = math.ceil(2 * segment + rate * SEGMENT_S)
    limit = math.ceil(max(512 * 1024, rate * 0.025))
    return f"qdisc replace dev {device} root tbf rate {round(rate * 8)}bit burst {burst}b limit {limit}b"


def needs_delay(layout: Layout) -> bool:
    """Whether any link has jitter, loss, or more latency than the machine itself."""
    links = [seat.link for seat in layout.seats]
    return any(link.latency >= LEAST_LATENCY_S or link.jitter or link.loss for link in links)


def compiled_helper() -> Path:
    """The helper's program, compiled once for each version of its source."""
    source = files("paceline.bench.virtual").joinpath("linkdelay.c").read_bytes()
    cache = home() / "cache"
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


def _groups(layout: Layout, seat: VirtualHost) -> list[tuple[float, list[VirtualHost]]]:
    """Delays at which packets reach a host, with the hosts whose packets they are."""
    groups: dict[float, list[VirtualHost]] = {}
    for source in layout.seats:
        if source is not seat:
            groups.setdefault(round(path_latency(source, seat), 9), []).append(source)
    return sorted(groups.items(), key=lambda group: group[0])


def _queue_packets(host: int, queue: int, sources: list[VirtualHost]) -> None:
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
