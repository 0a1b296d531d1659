"""One synchronous step played as events: the oracle of the recurrence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.model.simulate.training import FifoServer, Simulation

Floats = NDArray[np.float64]


def simulate_step(ready: Floats, exchange: Floats) -> float:
    """End of the last exchange of one synchronous step: ready (devices, buckets), exchange seconds per bucket."""
    simulation, link = Simulation(), FifoServer()
    waiting = [ready.shape[0]] * ready.shape[1]
    state = {"next": 0, "end": 0.0}

    def arrived(bucket: int) -> None:
        waiting[bucket] -= 1
        while state["next"] < len(waiting) and waiting[int(state["next"])] == 0:
            state["end"] = link.serve(simulation.now, float(exchange[int(state["next"])]))
            state["next"] += 1

    for device in ready.tolist():
        for bucket, time in enumerate(device):
            simulation.at(time, arrived, bucket)
    simulation.run()
    return float(state["end"])
