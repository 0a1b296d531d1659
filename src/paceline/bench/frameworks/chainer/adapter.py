"""How a case becomes Chainer processes."""

from __future__ import annotations

from paceline.bench.frameworks.policy_adapter import PolicyAdapter, mpi_processes
from paceline.bench.job import Order, Process

__all__ = ["Chainer"]


class Chainer(PolicyAdapter):
    """ChainerMN's naive communicator under mpirun."""

    name = "chainer"
    module = "paceline.bench.frameworks.chainer.worker"

    def processes(self, order: Order) -> list[Process]:
        """The ranks under one mpirun."""
        return mpi_processes(order, self.module)
