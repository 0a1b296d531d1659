"""The PyTorch profiler's export as the trace of one rank, in one pass over the file and in bounded memory.

On a host, phases are operators: autograd's evaluation is backward, annotations of optimizer and data loader are update
and io, other operators are forward, `gloo:` annotations are exchanges. Where a device ran kernels, phases are kernels:
a kernel belongs to the phase in which the host launched it.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import InputError
from paceline.measurements.run import Span
from paceline.measurements.trace.chrome import checked_events
from paceline.measurements.trace.intervals import Cover, Floats, Gathering, divide
from paceline.measurements.trace.kineto import GRADIENT, STEP, info_of, phase_of, shape_bytes, size_of
from paceline.measurements.trace.rank_trace import MOST_EXCHANGES, ON_HOST, WAIT, RankTrace, check_clock
from paceline.measurements.trace.stream import EventStream

__all__ = ["PhaseScan", "scan_kineto"]

MICRO = 1e-6
FORMER = {"Operator": "cpu_op", "Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset",
          "Runtime": "cuda_runtime"}  # fmt: skip
"""Categories as PyTorch 1.8 to 1.11 wrote them."""
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
MOST_KERNELS = 5_000_000
EXCHANGES = ("gloo:", "nccl:", "mpi:", "ucc:")
"""Annotations that last as long as the exchange; the operators that enqueue it do not."""
PHASE_MARKS = ("Optimizer.step", "Optimizer.zero_grad", "enumerate(DataLoader")
"""Annotations that mean a phase; all other annotations are the user's own ranges."""
ENQUEUES = re.compile(r"^(c10d::|record_param_comms)")
WAITS = re.compile(r"^(_c10d_functional::wait_tensor|c10d::(send|recv_\w*))$")
"""Operators of the host that last until an exchange ends: tensor parallelism, stages of a pipeline."""
READY = "torch::autograd::AccumulateGrad"
LAUNCHES = re.compile(r"^\w+_(runtime|driver)$")
"""Categories of calls that launch kernels: of CUDA, HIP, XPU and others."""
COLLECTIVE_KERNELS = re.compile(r"nccl|rccl|msccl|oneccl|nvshmem|multimem_|cross_device_reduce|_shot_all_reduce", re.I)
TO_DEVICE = re.compile(r"HtoD|Host ?To ?Device", re.I)
"""The direction of a copy, as CUDA, HIP and XPU name it."""


def scan_kineto(path: Path, *, fallback_rank: int = 0) -> RankTrace:
    """The trace of the rank that wrote this file; refuses what cannot be split into steps and phases."""
    stream, scan = EventStream(path), PhaseScan(path)
    for event in checked_events(stream, ranks=False):
        if event.get("ph") == "X":
            scan.take(event)
    info = info_of(stream)
    return scan.result(rank=info.get("rank", fallback_rank), world=info.get("world_size"))


class PhaseScan:
    """The state of a scan over the events of a rank."""

    def __init__(self, path: Path, source: str = "kineto") -> None:
        self.path, self.source = path, source
        self.host: dict[str, Gathering] = defaultdict(Gathering)
        self.device: dict[str, Gathering] = defaultdict(Gathering)
        self.marks: dict[str, dict[int, tuple[float, float]]] = {"host": {}, "device": {}}
        self.exchanges: dict[str, list[Span]] = {"host": [], "device": []}
        self.sizes: list[int | None] = []
        self.gradients: list[Span] = []
        self.kernels = _Kernels()

    def take(self, event: dict[str, Any]) -> None:
        """Note one complete event."""
        kind, name = str(event.get("cat", "")), str(event["name"])
        kind = FORMER.get(kind, kind)
        begin = float(event["ts"]) * MICRO
        end = begin + float(event.get("dur", 0.0)) * MICRO
        if kind in KERNELS:
            self._kernel(kind, name, begin, end, event)
        elif name.startswith(STEP):
            self._mark(kind, name, begin, end)
        elif kind == "cpu_op" or kind == "user_annotation":
            self._operator(kind, name, begin, end, event)
        elif LAUNCHES.match(kind):
            self.kernels.launched(event, begin)

    def _mark(self, kind: str, name: str, begin: float, end: float) -> None:
        number = name[len(STEP) :]
        if not (number.isascii() and number.isdigit()) or len(number) > 9:
            raise InputError(f"{self.path}: {name[:40]!r} is no mark of a step", hint="expected ProfilerStep#3")
        marks = self.marks["device" if kind.startswith("gpu") else "host"]
        before = marks.get(int(number))
        if before is not None and kind.startswith("gpu"):  # one per stream
            begin, end = min(begin, before[0]), max(end, before[1])
        elif before is not None:
            raise InputError(
                f"{self.path}: step {number} is marked twice",
                hint="call `prof.step()` in one thread only, and export one cycle of the schedule per file (repeat=1)",
            )
        marks[int(number)] = (begin, end)

    def _operator(self, kind: str, name: str, begin: float, end: float, event: dict[str, Any]) -> None:
        if WAITS.match(name):
            self.host["aggregate"].add(begin, end)
            self.host[WAIT].add(begin, end)
        elif ENQUEUES.match(name):
            size = size_of(event.get("args") or {})
            self.sizes += [size] if size else []
        elif name.startswith(EXCHANGES):
            self.host["aggregate"].add(begin, end)
            self._exchange("host", name, begin, end, event)
        elif kind == "cpu_op" or name.startswith(PHASE_MARKS):
            phase = phase_of(name)
            self.host["forward" if phase == "aggregate" else phase].add(begin, end)
            size = shape_bytes(event.get("args") or {}) if name == READY else None
            if size and len(self.gradients) < MOST_EXCHANGES:
                self.gradients.append(Span(0, 0, "backward", GRADIENT, end, 0.0, size, self.source))

    def _kernel(self, kind: str, name: str, begin: float, end: float, event: dict[str, Any]) -> None:
        if kind == "kernel" and COLLECTIVE_KERNELS.search(name):
            self.device["aggregate"].add(begin, end)
            self._exchange("device", name, begin, end, event)
        elif kind == "gpu_memcpy" and TO_DEVICE.search(name):
            self.device["h2d"].add(begin, end)
        else:
            self.kernels.ran(event, begin, end)
            if len(self.kernels) > MOST_KERNELS:
                hint = "profile fewer steps: torch.profiler.schedule(wait=1, warmup=1, active=3)"
                raise InputError(f"{self.path} has more than {MOST_KERNELS:,} kernels", hint=hint)

    def _exchange(self, place: str, name: str, begin: float, end: float, event: dict[str, Any]) -> None:
        if len(self.exchanges[place]) < MOST_EXCHANGES:
            given = event.get("args") or {}
            size, named = size_of(given) or shape_bytes(given), str(given.get("Collective name", ""))[:20]
            full = name[:80] if named.lower() in name.lower() else f"{name[:59]} {named}"
            self.exchanges[place].append(Span(0, 0, "aggregate", full, begin, end - begin, size, self.source))

    def result(self, *, rank: int, world: int | None) -> RankTrace:
        """The trace of this rank; refuses what has no steps or no phases."""
        host = {phase: parts.cover() for phase, parts in self.host.items()}
        on_device = len(self.kernels) > 0
        place = "device" if on_device else "host"
        device_steps = _one_after_another(self.marks["device"])
        steps = device_steps if on_device and len(device_steps) > 1 else self.marks["host"]
        _check_steps(self.path, steps)
        if self.source == "kineto":
            _check_phases(self.path, host, on_device=on_device)
        covers = self._device_covers(host) if on_device else host
        gathered = self.device if on_device else self.host
        return RankTrace(
            path=str(self.path),
            rank=rank,
            world=world,
            steps=steps,
            covers=covers,
            exchanges=tuple(self._sized(place) or _last_passes(self.gradients, host, steps)),
            source=self.source,
            on_device=on_device,
            closed_s=sum(parts.closed_s for parts in gathered.values()),
        )

    def _sized(self, place: str) -> list[Span]:
        """Exchanges with their bytes; gloo states them when an exchange is enqueued, in the same order."""
        exchanges = sorted(self.exchanges[place], key=lambda span: span.start_s)
        if len(self.sizes) != len(exchanges) or any(span.size_bytes for span in exchanges):
            return exchanges
        return [Span(s.rank, s.step, s.phase, s.name, s.start_s, s.seconds, size, s.source)
                for s, size in zip(exchanges, self.sizes, strict=True)]  # fmt: skip

    def _device_covers(self, host: dict[str, Cover]) -> dict[str, Cover]:
        for phase, begins, ends in self.kernels.by_phase(host):
            self.device[phase].extend(begins, ends)
        read = {"io": host["io"]} if "io" in host else {}
        return {**read, **{phase: parts.cover() for phase, parts in self.device.items()}}


def _last_passes(
    gradients: list[Span], host: Mapping[str, Cover], steps: Mapping[int, tuple[float, float]]
) -> list[Span]:
    """The gradients of the last backward pass of each step: between accumulated passes lies a forward pass."""

    def forward(begin: float, end: float) -> float:
        return divide(host, ON_HOST, begin, end).seconds.get("forward", 0.0)

    found: list[Span] = []
    ordered = sorted(gradients, key=lambda span: span.start_s)
    times = [span.start_s for span in ordered]
    for begin, end in steps.values():
        inside = ordered[bisect_left(times, begin) : bisect_left(times, end)]
        first = forward(begin, inside[0].start_s) if inside else 0.0
        cut = max((place for place, (one, other) in enumerate(pairwise(inside), start=1)
                   if 2 * (other.start_s - one.start_s) > first
                   and 2 * forward(one.start_s, other.start_s) > first), default=0)  # fmt: skip
        found += inside[cut:]
    return found


def _one_after_another(marks: dict[int, tuple[float, float]]) -> dict[int, tuple[float, float]]:
    """Steps of all streams of a device: one ends where the next begins, though its exchanges may still run."""
    steps = dict(sorted(marks.items()))
    for (number, (begin, end)), (_, (after, _)) in pairwise(list(steps.items())):
        if after > begin:
            steps[number] = (begin, min(end, after))
    return steps


class _Kernels:
    """Kernels and their launches, matched by the profiler's number of their correlation."""

    def __init__(self) -> None:
        self._launches, self._launched_s = array("q"), array("d")
        self._numbers, self._begins, self._ends = array("q"), array("d"), array("d")

    def __len__(self) -> int:
        return len(self._numbers)

    def launched(self, event: dict[str, Any], begin: float) -> None:
        """Note when the host launched something."""
        number = _correlation(event)
        if number:
            self._launches.append(number)
            self._launched_s.append(begin)

    def ran(self, event: dict[str, Any], begin: float, end: float) -> None:
        """Note a kernel."""
        self._numbers.append(_correlation(event))
        self._begins.append(begin)
        self._ends.append(end)

    def times(self) -> tuple[Floats, Floats, Floats]:
        """When each kernel was launched (nan if that is unknown), began and ended."""
        launches, times = np.array(self._launches), np.array(self._launched_s)
        order = np.argsort(launches, kind="stable")
        numbers, begins, ends = np.array(self._numbers), np.array(self._begins), np.array(self._ends)
        place = np.minimum(np.searchsorted(launches[order], numbers), max(0, launches.size - 1))
        launched = np.full(numbers.shape, np.nan)
        if launches.size:
            known = launches[order][place] == numbers
            launched[known] = times[order][place[known]]
        return launched, begins, ends

    def by_phase(self, host: dict[str, Cover]) -> list[tuple[str, Floats, Floats]]:
        """Phase, starts and ends: the phase in which the host launched a kernel, forward if that is unknown."""
        launched, begins, ends = self.times()
        rest, found = np.ones(begins.shape, dtype=bool), []
        for phase in ("update", "backward"):
            chosen = rest & host[phase].holds(launched) if phase in host else np.zeros(begins.shape, dtype=bool)
            rest &= ~chosen
            found.append((phase, begins[chosen], ends[chosen]))
        return [*found, ("forward", begins[rest], ends[rest])]


def _correlation(event: dict[str, Any]) -> int:
    number = (event.get("args") or {}).get("correlation", 0)
    return number if isinstance(number, int) and 0 <= number < 2**62 else 0


def _check_steps(path: Path, steps: dict[int, tuple[float, float]]) -> None:
    if len(steps) < 2:
        found = f"only one step, {STEP}{next(iter(steps))}" if steps else f"no mark of a step ({STEP}N)"
        raise InputError(
            f"{path} has {found}",
            hint="a step can be judged beside others: torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, "
            "warmup=1, active=5)), and `prof.step()` after every iteration",
        )
    check_clock(str(path), steps)


def _check_phases(path: Path, host: dict[str, Cover], *, on_device: bool) -> None:
    if "backward" not in host:
        what = "kernels, but no operators of the host" if on_device else "no backward pass"
        raise InputError(
            f"{path} has {what}: no autograd annotation tells backward from forward",
            hint="torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]), around training "
            "steps with `loss.backward()`",
        )
