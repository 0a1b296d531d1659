"""The adapter that converts a case to Caffe processes."""

from __future__ import annotations

from typing import ClassVar

from paceline.bench.frameworks.policy_adapter import PolicyAdapter, mpi_processes
from paceline.bench.job import CaseLaunch
from paceline.bench.sites.site import Process

__all__ = ["Caffe", "CaffeMpi"]


class Caffe(PolicyAdapter):
    """Caffe's solver in one process, by Debian 11's own Python."""

    name = "caffe"
    module = "paceline.bench.frameworks.caffe.worker"
    inputs = ("image",)
    missing: ClassVar = {"gelu": "Caffe 1.0 has no gelu", "layer_norm": "Caffe 1.0 has no layer normalisation"}

    def environment(self, mode: str) -> str:
        """Caffe and the scheme on it share one."""
        return "caffe"

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """The ranks under one mpirun; one rank by itself."""
        return mpi_processes(launch, self.module, python=str(launch.python.parent / "caffe-python"))


class CaffeMpi(Caffe):
    """Caffe-MPI's scheme, re-created: one MPI all-reduce per layer, overlapped with backward, and a parallel reader."""

    name = "caffe-mpi"
    labels = ("re-creation: Caffe-MPI's scheme driven on pycaffe's layer-wise backward; not the original program",)
