"""How a case becomes Keras processes, by the backend that the mode names."""

from __future__ import annotations

from typing import ClassVar

from paceline.bench.frameworks.policy_adapter import PolicyAdapter
from paceline.bench.frameworks.tensorflow.adapter import cluster_config
from paceline.bench.job import Order, Process, rank_processes
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

    def processes(self, order: Order) -> list[Process]:
        """One worker per rank, of the backend's own kind."""
        backend = order.case.framework.split("/")[1]
        module = f"paceline.bench.frameworks.keras.worker_{backend}"
        return rank_processes(order, module, lambda placed: self.rank_env(order, placed))

    def rank_env(self, order: Order, placed: Placed) -> dict[str, str]:
        """The backend, and what it needs to find the other ranks."""
        backend = order.case.framework.split("/")[1]
        env = {"KERAS_BACKEND": backend}
        several = order.case.ranks > 1 and backend == "tensorflow"
        return {**env, **cluster_config(order, placed)} if several else env
