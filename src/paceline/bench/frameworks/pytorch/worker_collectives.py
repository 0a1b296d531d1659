"""One rank of a sweep of collectives through torch.distributed: Gloo on processors, NCCL on GPUs."""

from __future__ import annotations

import itertools
import math
import os
import statistics
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from paceline.bench.frameworks.harness import opened_job, pin
from paceline.bench.frameworks.rendezvous import join_job
from paceline.bench.virtual.clock import real_time

__all__ = ["main"]

WARMUP = 3
MEETINGS = 3
"""Messages of a pair that are timed in each direction."""
ELEMENT = 4
EXCHANGED = 4 * 2**20
"""Bytes of the all-reduce that is timed during compute."""
SHARED_S, SHARED_TURNS = 0.2, 5
"""Seconds and repetitions of the step that is timed alone and concurrently with the other ranks."""
SUMMED, PRODUCTS = 2, 2
"""Convolutions of that step whose weight gradients the threads sum, and matrix products after each."""
COPIED = 32 * 2**20
"""Bytes of the buffer whose copy is timed, larger than the caches."""


def main() -> None:
    """Measure every collective at every size, then finalize."""
    job, rank, events = opened_job()
    events.write("phase", phase="setup")
    if job["real_time"]:
        real_time()
    everything = os.sched_getaffinity(0)
    pin()
    torch.set_num_threads(1)
    channel = join_job(rank, job["ranks"])
    dist.init_process_group(job["transport"], timeout=timedelta(seconds=job["timeout"]))
    events.write("facts", versions={"torch": torch.__version__}, labels=[], pid=os.getpid())
    events.write("phase", phase="measure")
    offsets = channel.clock_offsets()
    events.write("facts", facts={"clock_offsets_s": offsets} if rank == 0 else {})
    for name in job["collectives"]:
        for size in job["sizes"]:
            events.write("spans", spans=_sweep(name, size, rank, job))
    for pairs in job.get("pairs", ()):
        dist.barrier()
        events.write("spans", spans=_exchange_in_pairs(pairs, rank, job))
    if job["computes"]:
        dist.barrier()
        facts = {"copy_bytes_per_s": _copy_rate(), "overlap": _overlap(job["seconds_per_size"])}
        if len(job["cluster"]["hosts"][0]["devices"]) >= job["ranks"]:
            facts["sharing"] = _sharing(job["ranks"], everything)
        events.write("facts", facts=facts)
    events.write("done")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


def _copy_rate() -> float:
    """Memory copy rate of a rank while all ranks copy, which determines the cost of filling a bucket."""
    source, target = torch.ones(COPIED // ELEMENT), torch.empty(COPIED // ELEMENT)
    seconds = []
    for _ in range(12):
        begin = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - begin)
    return COPIED / statistics.median(seconds)


def _overlap(seconds: float) -> dict[str, float]:
    """Relative speed of compute during an exchange, and of an exchange during compute, on the same cores."""
    whole = torch.ones(EXCHANGED // ELEMENT)
    free = _exchange_for(whole, seconds)
    compute = _Compute()
    try:
        alone = compute.rate(lambda: time.sleep(seconds))
        beside: list[float] = []
        shared = compute.rate(lambda: beside.append(_exchange_for(whole, 2 * seconds)))
    finally:
        compute.stop()
    return {"exchange": free / beside[0], "compute": shared / alone}


def _sharing(ranks: int, everything: set[int]) -> list[dict[str, float]]:
    """What ranks cost each other beyond the sharing of cores, on one pinned thread, and on a thread per core.

    Turns alone and together alternate, because of drift.
    """
    cores, pinned, plain, mixed = len(everything), os.sched_getaffinity(0), _small_step(0), _small_step(PRODUCTS)
    excesses, waits = [], []
    for _ in range(SHARED_TURNS):
        single, shared = _alone_and_together(plain, ranks)
        excesses.append(shared / single / max(1.0, ranks / cores))
        if cores > 1:
            single, _ = _alone_and_together(mixed, 0)
            os.sched_setaffinity(0, everything)
            torch.set_num_threads(cores)
            several, shared = _alone_and_together(mixed, ranks)
            os.sched_setaffinity(0, pinned)
            torch.set_num_threads(1)
            explained = several * _turns(single / several, ranks, cores) * excesses[-1]
            waits.append((shared - explained) * cores / (ranks * SUMMED))
    dist.barrier()
    if dist.get_rank() != 0:
        return []
    spread = statistics.stdev(map(math.log, excesses)) / len(excesses) ** 0.5
    found = {"cores": cores, "ranks": ranks, "excess": statistics.median(excesses), "spread": spread}
    several_threads = {**found, "threads": cores, "wait": max(0.0, statistics.median(waits or [0.0]))}
    return [{**found, "threads": 1}, *([several_threads] if waits else [])]


def _turns(gain: float, ranks: int, cores: int) -> float:
    """How many times as long ranks of a thread per core compute as one alone, by the cores that each keeps busy."""
    return max(min(1.0, gain), ranks * gain / cores) if ranks > 1 else 1.0


def _alone_and_together(step: Callable[[], object], ranks: int) -> tuple[float, float]:
    """Seconds of a step of the first rank alone, and of this many ranks at once; 0 where none are asked."""
    dist.barrier()
    rates = torch.tensor([_rate(step, SHARED_S) if dist.get_rank() == 0 else 0.0])
    dist.broadcast(rates, 0)
    if not ranks:
        return 1 / float(rates), 0.0
    shared = torch.tensor([_rate(step, SHARED_S * ranks)])
    dist.all_reduce(shared)
    return 1 / float(rates), ranks / float(shared)


def _rate(step: Callable[[], object], seconds: float) -> float:
    """Steps per second over that time: the scheduler serves ranks unevenly, so that none has a typical step."""
    step()
    count, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        step()
        count += 1
    return count / elapsed


def _small_step(products: int) -> Callable[[], object]:
    """Convolutions whose weight gradients the threads sum, each followed by matrix products: milliseconds between two
    meetings of the threads, as in networks."""
    layers = [torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.Conv2d(32, 16, 3, padding=1)]
    batches = [torch.randn(16, 16, 24, 24), torch.randn(16, 32, 24, 24)]
    left, right = torch.randn(512, 512), torch.randn(512, 512)

    def step() -> None:
        for layer, batch in zip(layers, batches):
            torch.relu(layer(batch)).sum().backward()
            for _ in range(products):
                torch.mm(left, right)

    return step


def _exchange_for(whole: torch.Tensor, seconds: float) -> float:
    """Median seconds of an all-reduce, repeated for about `seconds`; rank 0 decides the number of repetitions."""
    dist.all_reduce(whole)
    begin = time.perf_counter()
    dist.all_reduce(whole)
    count = torch.tensor([max(3.0, seconds / (time.perf_counter() - begin))])
    dist.broadcast(count, 0)
    times = []
    for _ in range(int(count)):
        begin = time.perf_counter()
        dist.all_reduce(whole)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


class _Compute:
    """A thread that multiplies matrices continuously, like a backward pass, and counts the products."""

    def __init__(self) -> None:
        self._left, self._right = torch.ones(256, 256), torch.ones(256, 256)
        self._count, self._going = 0, True
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._going:
            torch.mm(self._left, self._right)
            self._count += 1

    def rate(self, action: Callable[[], object]) -> float:
        """Products per second during an action."""
        dist.barrier()
        begin, before = time.perf_counter(), self._count
        action()
        return (self._count - before) / (time.perf_counter() - begin)

    def stop(self) -> None:
        """Stop the thread."""
        self._going = False
        self._thread.join()


def _sweep(name: str, size: int, rank: int, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Time one collective at one size repeatedly within its time limit."""
    device = _device(job)
    act = _actions(rank, job["ranks"], max(1, size // ELEMENT), device)[name]
    for _ in range(WARMUP):
        act()
    count = _repeats(act, job["seconds_per_size"])
    return _timed(act, count, {"phase": "aggregate", "name": name, "size_bytes": size}, device, dist.barrier)


def _timed(
    act: Callable[[], object], count: int, entry: dict[str, Any], device: torch.device,
    before: Callable[[], object] = lambda: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """One span for each repetition."""
    spans, origin = [], time.perf_counter()
    for step in range(count):
        before()
        begin = time.perf_counter()
        act()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - begin
        spans.append({**entry, "step": step, "start_s": begin - origin, "seconds": seconds})
    return spans


def _device(job: dict[str, Any]) -> torch.device:
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if job["transport"] == "nccl" else torch.device("cpu")


def _exchange_in_pairs(pairs: list[tuple[int, int]], rank: int, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Time messages to the other rank of this rank's pair and back, in turns; each is answered by one element."""
    mine = next((pair for pair in pairs if rank in pair), None)
    if mine is None:
        return []
    device, size, turns = _device(job), max(job["sizes"]), itertools.count()
    other, whole = mine[0] if rank == mine[1] else mine[1], torch.ones(max(1, size // ELEMENT), device=device)

    def act() -> None:
        sends = (next(turns) % 2 == 0) == (rank == mine[0])
        for part in (whole, whole[:1]):
            dist.send(part, other) if sends else dist.recv(part, other)
            sends = not sends

    act()
    act()
    name = f"pair {mine[0]}-{mine[1]}"
    return _timed(act, 2 * MEETINGS, {"phase": "aggregate", "name": name, "size_bytes": size}, device)


def _repeats(act: Callable[[], object], seconds: float) -> int:
    """Number of repetitions within the time limit, decided by rank 0."""
    begin = time.perf_counter()
    act()
    estimate = torch.tensor([time.perf_counter() - begin])
    dist.broadcast(estimate, 0)
    return max(5, min(200, int(seconds / max(float(estimate), 1e-5))))


def _actions(rank: int, ranks: int, elements: int, device: torch.device) -> dict[str, Callable[[], object]]:
    """Each collective as nccl-tests counts its size: the whole buffer of one rank."""
    share = max(1, elements // ranks)
    whole = torch.ones(share * ranks, device=device)
    part = torch.ones(share, device=device)
    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "point_to_point": lambda: _pass_on(whole, rank, ranks),
    }


def _pass_on(tensor: torch.Tensor, rank: int, ranks: int) -> None:
    """Each rank sends to the next rank and receives from the previous rank concurrently."""
    arriving = torch.empty_like(tensor)
    sending = dist.isend(tensor, (rank + 1) % ranks)
    dist.recv(arriving, (rank - 1) % ranks)
    if sending is not None:
        sending.wait()


if __name__ == "__main__":
    main()
