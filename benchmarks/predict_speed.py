"""How fast the model is: cases of the recurrence and events of the simulation per second.

    .venv/bin/python benchmarks/predict_speed.py

Targets: 10,000 data-parallel cases of ResNet-50 (161 gradient tensors) in under 0.5 s; 1,024 unequal devices x 100
asynchronous iterations in about a second. Exits with 1 if a target is missed.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from lib.result import median_figure, parser_of, publish

from paceline import catalog
from paceline.cost.collective import Fabric, allreduce
from paceline.cost.recurrence import bucket_ready, exposed_fifo
from paceline.model.compute import roofline
from paceline.model.simulate.training import AsyncRun, simulate_async

CASES = 10_000
DEVICES, ITERATIONS = 1024, 100


def recurrence_seconds() -> tuple[float, int]:
    """Seconds for all cases, from costs to exposed aggregation; each case has its own link and its own speed."""
    work = roofline(catalog.network("resnet50"), catalog.device("v100-sxm2"), 64)
    rng = np.random.default_rng(0)
    speed, slow = rng.uniform(0.5, 2.0, (CASES, 1)), rng.uniform(0.5, 2.0, (CASES, 1))
    fabric = Fabric(32, 8, 4, 5e-6, 1e-10, 3e-5, 8e-10)
    start = time.perf_counter()
    late = allreduce(fabric.slowed(1.0, 0.0), work.gradients)
    wide = allreduce(fabric.slowed(0.0, 1.0), work.gradients)
    ready = bucket_ready(work.backward, np.arange(work.num_gradients)) * speed
    exposed = exposed_fifo(ready, late + wide * slow)
    seconds = time.perf_counter() - start
    assert exposed.shape == (CASES,)
    assert float(exposed.min()) > 0
    return seconds, work.num_gradients


def simulation_seconds() -> tuple[float, int]:
    """Seconds and events of the asynchronous run."""
    compute = np.random.default_rng(0).uniform(0.1, 0.4, DEVICES)
    run = AsyncRun(compute=compute, exchange=0.01, service=1e-4, iterations=ITERATIONS, jitter=0.05)
    start = time.perf_counter()
    result = simulate_async(run)
    assert result.updates == DEVICES * ITERATIONS
    return time.perf_counter() - start, result.num_events


def main() -> int:
    """Print both times; the median of five repetitions."""
    args = parser_of(__doc__).parse_args()
    recurrence = [recurrence_seconds() for _ in range(5)]
    simulation = [simulation_seconds() for _ in range(5)]
    cases = median_figure(f"{CASES:,} cases x {recurrence[0][1]} gradients", [item[0] for item in recurrence], "s")
    events = [count / seconds for seconds, count in simulation]
    simulated = median_figure(f"{DEVICES:,} devices x {ITERATIONS} iterations", [item[0] for item in simulation], "s")
    figures = [cases, simulated, median_figure("events of the simulation", events, "per second")]
    turns = {"recurrence": recurrence, "simulation": simulation}
    return publish(args, figures, turns=turns, passed=cases.value < 0.5 and simulated.value < 1.5)


if __name__ == "__main__":
    sys.exit(main())
