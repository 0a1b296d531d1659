"""The adapter that converts a case to Keras processes, by the backend that the mode names."""

from __future__ import annotations

from typing import ClassVar

from paceline.bench.frameworks.policy_adapter import PolicyAdapter
from paceline.bench.frameworks.tensorflow.adapter import cluster_config
from paceline.bench.job import CaseLaunch, rank_processes
from paceline.bench.sites.site import Process
from paceline.spec.cluster import Placed
from paceline.spec.study import Case

__all__ = ["Keras"]


class Keras(PolicyAdapter):
    """Keras 3 layers; the backend trains and aggregates."""

    name = "keras"
    module = "paceline.bench.frameworks.keras.worker_tensorflow"
    choices: ClassVar = {"bucket": ()}

    def _refused_network(self, case: Case) -> str | None:
        grouped = any(layer.kind == "conv2d" and layer.groups > 1 for layer in case.network.layers)
        if grouped and case.framework == "keras/tensorflow":
            return 'TensorFlow says: "Gradients for grouped convolutions are not supported on CPU"'
        return super()._refused_network(case)

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """One worker per rank, of the backend's own kind."""
        backend = launch.case.framework.split("/")[1]
        module = f"paceline.bench.frameworks.keras.worker_{backend}"
        return rank_processes(launch, module, lambda placed: self.rank_env(launch, placed))

    def rank_env(self, launch: CaseLaunch, placed: Placed) -> dict[str, str]:
        """The backend, and what it needs to find the other ranks."""
        backend = launch.case.framework.split("/")[1]
        env = {"KERAS_BACKEND": backend}
        several = launch.case.ranks > 1 and backend == "tensorflow"
        return {**env, **cluster_config(launch, placed)} if several else env
