"""The adapter that converts a case to CNTK processes."""

from __future__ import annotations

from typing import ClassVar

from paceline.bench.frameworks.policy_adapter import PolicyAdapter, mpi_processes
from paceline.bench.job import CaseLaunch
from paceline.bench.sites.site import Process

__all__ = ["Cntk"]


class Cntk(PolicyAdapter):
    """CNTK's distributed learners under mpirun."""

    name = "cntk"
    module = "paceline.bench.frameworks.cntk.worker"
    inputs = ("image",)
    missing: ClassVar = {
        "gelu": "CNTK 2.7 has no gelu",
    }
    labels = ("unsupported combination: CNTK 2.7's extension for CPython 3.6 loaded into 3.11",)

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """All ranks under one mpirun."""
        return mpi_processes(launch, self.module)
