"""How fast the model is: cases of the recurrence, events of the simulation, and series of measured points.

    .venv/bin/python benchmarks/predict_speed.py

Targets: 10,000 data-parallel cases of ResNet-50 (161 gradient tensors) in under 0.5 s; 1,024 unequal devices x 100
asynchronous iterations in about a second; predictions from points in under 1 s of processor time for one series, and
under 20 ms for each further one in the same file. Exits with 1 if a target is missed.
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
from paceline.model.measured.extrapolate import extrapolate_series
from paceline.model.measured.prior import shipped_population
from paceline.model.simulate.training import AsyncRun, simulate_async
from paceline.model.validation.campaigns import published_series

CASES = 10_000
SERIES = 40
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


def points_seconds() -> tuple[float, float]:
    """Processor seconds of one published series without its largest point, and of each further one."""
    long = [one for one in published_series() if one.num_points > 2 and one.has_one_batch][:SERIES]
    shorter = [one.first(one.num_points - 1) for one in long]
    times = []
    for count in (1, SERIES):
        start = time.process_time()
        extrapolate_series(shorter[:count], (16, 32), population=shipped_population(), force=True)
        times.append(time.process_time() - start)
    return times[0], (times[1] - times[0]) / (SERIES - 1)


def main() -> int:
    """Print all times; the median of five repetitions."""
    args = parser_of(__doc__).parse_args()
    recurrence = [recurrence_seconds() for _ in range(5)]
    simulation = [simulation_seconds() for _ in range(5)]
    cases = median_figure(f"{CASES:,} cases x {recurrence[0][1]} gradients", [item[0] for item in recurrence], "s")
    events = [count / seconds for seconds, count in simulation]
    simulated = median_figure(f"{DEVICES:,} devices x {ITERATIONS} iterations", [item[0] for item in simulation], "s")
    figures = [cases, simulated, median_figure("events of the simulation", events, "per second")]
    points = [points_seconds() for _ in range(5)]
    first = median_figure("one series of points, processor time", [item[0] for item in points], "s")
    further = median_figure("each further series, processor time", [1e3 * item[1] for item in points], "ms")
    turns = {"recurrence": recurrence, "simulation": simulation, "points": points}
    passed = cases.value < 0.5 and simulated.value < 1.5 and first.value < 1.0 and further.value < 20.0
    return publish(args, [*figures, first, further], turns=turns, passed=passed)


if __name__ == "__main__":
    sys.exit(main())
