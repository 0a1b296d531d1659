"""The adapter that converts a case to SINGA processes."""

from __future__ import annotations

from typing import ClassVar

from paceline.bench.frameworks.policy_adapter import PolicyAdapter, mpi_processes
from paceline.bench.job import CaseLaunch
from paceline.bench.sites.site import Process

__all__ = ["Singa"]

VECTORS = "SINGA 3.0.0.dev1 for CPU fails with \"module 'singa.singa_wrap' has no attribute 'VecTensor'\""


class Singa(PolicyAdapter):
    """SINGA's autograd in each rank, gradients averaged by MPI."""

    name = "singa"
    module = "paceline.bench.frameworks.singa.worker"
    inputs = ("image",)
    missing: ClassVar = {
        "batch_norm": 'SINGA 3.0.0.dev1 for CPU fails with "cannot unpack non-iterable SwigPyObject object"',
        "groups": 'SINGA 3.0.0.dev1 for CPU aborts with "Check failed: W.shape(1) == ch.channels"',
        "concat": VECTORS,
        "pad_shortcut": VECTORS,
        "local_response_norm": "SINGA 3.0.0.dev1's autograd has no local response normalisation",
        "gelu": "SINGA 3.0.0.dev1's autograd has no gelu",
    }
    labels = ("unsupported combination: SINGA 3.0.0.dev1's extension for CPython 3.6 loaded into 3.11",)

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """All ranks under one mpirun."""
        return mpi_processes(launch, self.module)
