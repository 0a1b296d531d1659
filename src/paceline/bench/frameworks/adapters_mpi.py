"""Adapters of frameworks whose ranks run under one mpirun of their own environment."""

from __future__ import annotations

from typing import ClassVar

from paceline.bench.frameworks.policy_adapter import PolicyAdapter, mpi_processes
from paceline.bench.job import CaseLaunch
from paceline.bench.sites.site import Process

__all__ = ["Caffe", "CaffeMpi", "Chainer", "Cntk", "Singa"]


class Chainer(PolicyAdapter):
    """ChainerMN's naive communicator under mpirun."""

    name = "chainer"
    module = "paceline.bench.frameworks.chainer.worker"

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """All ranks under one mpirun."""
        return mpi_processes(launch, self.module)


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


SINGA_VECTORS = "SINGA 3.0.0.dev1 for CPU fails with \"module 'singa.singa_wrap' has no attribute 'VecTensor'\""


class Singa(PolicyAdapter):
    """SINGA's autograd in each rank, gradients averaged by MPI."""

    name = "singa"
    module = "paceline.bench.frameworks.singa.worker"
    inputs = ("image",)
    missing: ClassVar = {
        "batch_norm": 'SINGA 3.0.0.dev1 for CPU fails with "cannot unpack non-iterable SwigPyObject object"',
        "groups": 'SINGA 3.0.0.dev1 for CPU aborts with "Check failed: W.shape(1) == ch.channels"',
        "concat": SINGA_VECTORS,
        "pad_shortcut": SINGA_VECTORS,
        "local_response_norm": "SINGA 3.0.0.dev1's autograd has no local response normalisation",
        "gelu": "SINGA 3.0.0.dev1's autograd has no gelu",
    }
    labels = ("unsupported combination: SINGA 3.0.0.dev1's extension for CPython 3.6 loaded into 3.11",)

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """All ranks under one mpirun."""
        return mpi_processes(launch, self.module)
