"""A measured process that computes next to nothing; the batch says how it behaves."""

from __future__ import annotations

import time
from typing import Any

from paceline.bench.frameworks.harness import Job, Session, main

HANG, CRASH, HUNGRY, OPEN = 1001, 1002, 1003, 1004


class QuickSession(Session):
    def __init__(self, job: Job, rank: int) -> None:
        self.batch = job["batch"]
        self.versions = {"quick": "1"}
        self.labels: list[str] = []
        self.last = rank == job["ranks"] - 1
        self.count = 0
        self.late = job["ranks"] > 1 and job["strategy"]["overlap"] is False
        self.traced = 2 if job["ranks"] > 1 else 0

    def step(self, upto: str) -> None:
        self.count += 1
        if self.last and self.count == 5:
            if self.batch == HANG:
                time.sleep(3600)
            if self.batch == CRASH:
                raise RuntimeError("the planted crash")
            if self.batch == HUNGRY:
                raise MemoryError("the planted hunger")
        time.sleep(0.004 if self.batch == OPEN and upto == "forward" else 0.002 if self.batch == OPEN else 0.0005)
        if self.late and upto not in ("forward", "compute"):
            time.sleep(0.003)

    def trace(self, step: int) -> list[dict[str, Any]]:
        """Two gradients, if there is anybody to exchange them with."""
        size = {"step": step, "seconds": 0.0002, "size_bytes": 2**21}
        return [
            {**size, "phase": "backward", "name": f"layer{n}.weight", "start_s": 0.0002 * n} for n in range(self.traced)
        ]


main(QuickSession)
