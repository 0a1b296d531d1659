"""Profiles of devices of several makers, beside a calculation by brute force over microseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.measurements.trace.job import read_job

Event = tuple[str, str, int, int, int]
"""Category, name, stream, start and end in microseconds."""
STEP_US = 10_000
MAKERS = {
    "cuda of 1.8": ("Runtime", "Kernel", "Memcpy", "ncclKernel_AllReduce_RING_LL_Sum_float(ncclColl)",
                    "Memcpy HtoD (Pinned -> Device)"),
    "cuda": ("cuda_runtime", "kernel", "gpu_memcpy", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)",
             "Memcpy HtoD (Pageable -> Device)"),
    "hip": ("hip_runtime", "kernel", "gpu_memcpy", "mscclKernel_Sum_float_Simple_false", "CopyHostToDevice"),
    "xpu": ("xpu_runtime", "kernel", "gpu_memcpy", "oneccl_allreduce_kernel", "Memory Copy (Host to Device)"),
}  # fmt: skip


def document(maker: str, *, seed: int) -> tuple[dict[str, Any], dict[str, list[tuple[int, int]]]]:
    """Three steps whose kernels overlap at random, with exchanges beyond the end of their step; and their phases."""
    runtime, kernel, copy, exchange, to_device = MAKERS[maker]
    rng, events, phases, number = np.random.default_rng(seed), [], {}, 0

    def add(category: str, name: str, tid: int, begin: int, end: int, **args: Any) -> None:
        events.append({"ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, "ts": begin, "dur": end - begin,
                       "args": args})  # fmt: skip

    for step in range(3):
        base, late = step * STEP_US, 1500 if step < 2 else 0
        former = maker == "cuda of 1.8"
        add("Operator" if former else "user_annotation", f"ProfilerStep#{step}", 1, base, base + STEP_US)
        if not former:
            add("gpu_user_annotation", f"ProfilerStep#{step}", 7, base, base + STEP_US)
            add("gpu_user_annotation", f"ProfilerStep#{step}", 20, base + 3000, base + STEP_US + late)
        operator = "Operator" if former else "cpu_op"
        add(operator, "aten::linear", 1, base, base + 2000)
        add(operator, "autograd::engine::evaluate_function: AddmmBackward0", 2, base + 2000, base + 6000)
        add(operator, "Optimizer.step#SGD.step", 1, base + 6000, base + 8000)
        for phase, first, last in (("forward", 0, 2000), ("backward", 2000, 6000), ("update", 6000, 8000)):
            for _ in range(6):
                number += 1
                launched, begin = int(rng.integers(first, last)), int(rng.integers(first, last + 1000))
                end = begin + int(rng.integers(1, 800))
                add(runtime, "launch", 1, base + launched, base + launched + 3, correlation=number)
                add(kernel, "void gemm<float>", 7, base + begin, base + end, correlation=number)
                phases.setdefault(phase, []).append((base + begin, base + end))
        for begin, end in ((3000, 3900), (7000, STEP_US + late)):
            add(kernel, exchange, 20, base + begin, base + end, correlation=0)
            phases.setdefault("aggregate", []).append((base + begin, base + end))
        add(copy, to_device, 7, base + 9000, base + 9400, correlation=0)
        phases.setdefault("h2d", []).append((base + 9000, base + 9400))
    return {"schemaVersion": 1, "traceEvents": events}, phases


def brute_force(phases: dict[str, list[tuple[int, int]]], step: int) -> dict[str, float]:
    """Exposed seconds by phase: each microsecond belongs to the first phase that covers it."""
    free, found = np.ones(STEP_US, dtype=bool), {}
    for phase in ("update", "backward", "forward", "aggregate", "h2d"):
        covered = np.zeros(STEP_US, dtype=bool)
        for begin, end in phases[phase]:
            covered[max(0, begin - step * STEP_US) : max(0, end - step * STEP_US)] = True
        found[phase] = 1e-6 * float((covered & free).sum())
        free &= ~covered
    return found


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("seed", range(5))
def test_the_breakdown_of_a_device_is_that_of_brute_force(tmp_path: Path, maker: str, seed: int) -> None:
    content, phases = document(maker, seed=seed)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    job = read_job([path])
    for share in job.shares:
        assert share.seconds == pytest.approx(1e-6 * STEP_US)
        assert share.exposed == pytest.approx(brute_force(phases, share.step), abs=1e-9)
