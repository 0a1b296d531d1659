"""How a case becomes TensorFlow processes."""

from __future__ import annotations

import json

from paceline.bench.frameworks.policy_adapter import PolicyAdapter, rank_endpoint
from paceline.bench.job import Order, Process, rank_processes
from paceline.spec.cluster import Placed

__all__ = ["TensorFlow", "cluster_config"]

WORKER = "paceline.bench.frameworks.tensorflow.worker"
PS_WORKER = "paceline.bench.frameworks.tensorflow.worker_ps"


class TensorFlow(PolicyAdapter):
    """MultiWorkerMirroredStrategy over gRPC, or a chief that drives workers and one parameter server."""

    name = "tensorflow"
    module = WORKER
    choices = {"transport": ("grpc", "nccl"), "algorithm": ("ring",), "bucket": ()}

    def processes(self, order: Order) -> list[Process]:
        """One worker per rank; with a parameter server, that too."""
        if order.case.framework.endswith("/parameter_server"):
            return rank_processes(order, PS_WORKER, lambda placed: _server_cluster(order))
        return super().processes(order)

    def rank_env(self, order: Order, placed: Placed) -> dict[str, str]:
        """The cluster as TensorFlow wants to read it."""
        return cluster_config(order, placed) if order.case.ranks > 1 else {}


def _server_cluster(order: Order) -> dict[str, str]:
    """The chief, one parameter server beside it, and a worker in every rank."""
    workers = [rank_endpoint(order, placed) for placed in order.placement]
    servers = [f"{order.meet.address}:{order.meet.ports[3]}"]
    chief = [f"{order.meet.address}:{order.meet.ports[2]}"]
    cluster = {"chief": chief, "ps": servers, "worker": workers}
    return {"PACELINE_CLUSTER": json.dumps(cluster), "GRPC_FAIL_FAST": "use_caller"}


def cluster_config(order: Order, placed: Placed) -> dict[str, str]:
    """TF_CONFIG of a rank."""
    workers = [rank_endpoint(order, other) for other in order.placement]
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": placed.rank}}
    return {"TF_CONFIG": json.dumps(config), "GRPC_FAIL_FAST": "use_caller"}
