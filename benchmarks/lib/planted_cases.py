"""Ten cases: a real slowdown, the run that has it, the run from which it is removed, and the cause to be named."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CASES", "Planted", "Side"]


@dataclass(frozen=True)
class Side:
    """One of the two runs: the study's own lines, where it runs, and what is planted in its workers."""

    study: str
    on: str = "local"
    cluster: str = ""
    worker: str = ""
    """Which fault of planted_worker.py; none runs the usual worker."""


@dataclass(frozen=True)
class Planted:
    """One case of the benchmark."""

    name: str
    cause: str | None
    """The finding that must come first; None for the control."""
    planted: Side
    removed: Side
    ranks: int = 2
    batch: int = 32
    """The case to explain, where the study has several."""
    removed_batch: int | None = None


def _hosts(*, rate: str, count: int = 2, latency: str = "0 ms", forward: int = 40, backward: int = 80) -> str:
    times = f'forward = "{forward} ms", backward = "{backward} ms"'
    return f"""
[[host]]
name = "node"
count = {count}
devices = [{{ name = "accelerator", kind = "gpu", emulation = {{ {times} }} }}]
inside = {{ name = "bus", bandwidth = "12 GB/s" }}
link = {{ name = "ethernet", bandwidth = "{rate}", latency = "{latency}" }}
"""


def _slow_host() -> str:
    return _hosts(rate="10 Gb/s", count=1) + _hosts(rate="10 Gb/s", count=1).replace('"node"', '"old"').replace(
        'backward = "80 ms"', 'backward = "80 ms", speed = 0.6'
    )


def _virtual(
    cluster: str, strategy: str = 'bucket = "128 KiB"', *, devices: str = "[2]", worker: str = "", **more: str
) -> Side:
    batch, source = more.get("batch", "[32]"), more.get("input", "resident")
    head = f'networks = ["resnet20"]\ndevices = {devices}\nbatch = {batch}\ninput = ["{source}"]\n'
    study = f'{head}[[strategy]]\nname = "asked"\n{strategy}\n'
    return Side(study, on="virtual", cluster=cluster, worker=worker)


def _local(batch: str = "[32]", extra: str = "", *, threads: int = 1, worker: str = "", devices: str = "[2]") -> Side:
    study = f'networks = ["resnet20"]\ndevices = {devices}\nbatch = {batch}\n{extra}'
    return Side(study + f"\n# threads {threads}\n", worker=worker)


def threads_of(side: Side) -> int:
    """Threads of each rank, as noted in the study's lines."""
    marks = [line.split()[-1] for line in side.study.splitlines() if line.startswith("# threads")]
    return int(marks[0]) if marks else 1


FAST, GOOD = _hosts(rate="10 Gb/s"), 'bucket = "128 KiB"'
STARTS = _hosts(rate="10 Gb/s").replace(
    'kind = "gpu", emulation = { forward = "40 ms", backward = "80 ms" }',
    'kind = "gpu", peak = { float32 = "1 Tflop/s" }, launch_overhead = "0.5 ms", emulation = {}',
)
"""Devices that take half a millisecond to start a layer, so that small batches leave them idle."""
SERVED = _hosts(rate="1 Gb/s", count=4, forward=60, backward=12)

CASES = (
    Planted("slow link", "slow_link", _virtual(_hosts(rate="80 Mb/s")), _virtual(FAST)),
    Planted(
        "tiny buckets",
        "small_buckets",
        _virtual(_hosts(rate="1 Gb/s", latency="1.5 ms"), 'bucket = "0 B"'),
        _virtual(_hosts(rate="1 Gb/s", latency="1.5 ms"), 'bucket = "512 KiB"'),
    ),
    Planted(
        "slow input",
        "slow_input",
        _local("[8]", 'input = ["files"]', worker="files"),
        _local("[8]", 'input = ["copied"]'),
        batch=8,
    ),
    Planted("one slow rank", "slow_rank", _virtual(_slow_host()), _virtual(FAST)),
    Planted(
        "oversubscribed threads",
        "oversubscribed_threads",
        _local("[2, 8]", threads=16),
        _local("[2, 8]"),
        batch=2,
    ),
    Planted(
        "no overlap",
        "no_overlap",
        _virtual(_hosts(rate="200 Mb/s"), GOOD + "\noverlap = false"),
        _virtual(_hosts(rate="200 Mb/s"), GOOD),
    ),
    Planted("large fixed overhead", "fixed_overhead", _local("[8]", worker="bookkeeping"), _local("[8]"), batch=8),
    Planted(
        "parameter-server hot spot",
        "server_hot_spot",
        _virtual(
            SERVED, 'aggregation = "parameter_server"\nservers = 1\noverlap = false', devices="[4]", worker="server"
        ),
        _virtual(SERVED, "overlap = false", devices="[4]"),
        ranks=4,
    ),
    Planted(
        "too small batch",
        "small_batch",
        _virtual(STARTS, batch="[1, 4]"),
        _virtual(STARTS, batch="[16]"),
        batch=1,
        removed_batch=16,
    ),
    Planted("control: nothing planted", None, _virtual(FAST), _virtual(FAST)),
)
