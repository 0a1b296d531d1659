"""How a case becomes SINGA processes."""

from __future__ import annotations

from typing import ClassVar

from paceline.bench.frameworks.policy_adapter import PolicyAdapter, mpi_processes
from paceline.bench.job import Order, Process

__all__ = ["Singa"]

VECTOR = "the preview wheel's SWIG layer returns an unknown vector type from CPU batch normalisation"


class Singa(PolicyAdapter):
    """SINGA's autograd in each rank, gradients averaged by MPI."""

    name = "singa"
    module = "paceline.bench.frameworks.singa.worker"
    inputs = ("image",)
    missing: ClassVar = {
        "batch_norm": VECTOR,
        "groups": "SINGA 3.0.0.dev1's CPU convolution knows no groups",
        "local_response_norm": "SINGA 3.0.0.dev1 has no local response normalisation operator",
        "gelu": "SINGA 3.0.0.dev1 has no gelu",
        "pad_shortcut": "SINGA 3.0.0.dev1 has no constant padding operator on CPU",
        "global_avg_pool": "SINGA 3.0.0.dev1's global average pooling needs GPU tensors",
    }
    labels = ("unsupported combination: SINGA 3.0.0.dev1's extension for CPython 3.6 loaded into 3.11",)

    def processes(self, order: Order) -> list[Process]:
        """The ranks under one mpirun."""
        return mpi_processes(order, self.module)
