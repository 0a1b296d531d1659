"""The adapter that converts a case to Chainer processes."""

from __future__ import annotations

from paceline.bench.frameworks.policy_adapter import PolicyAdapter, mpi_processes
from paceline.bench.job import CaseLaunch
from paceline.bench.sites.site import Process

__all__ = ["Chainer"]


class Chainer(PolicyAdapter):
    """ChainerMN's naive communicator under mpirun."""

    name = "chainer"
    module = "paceline.bench.frameworks.chainer.worker"

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """All ranks under one mpirun."""
        return mpi_processes(launch, self.module)
