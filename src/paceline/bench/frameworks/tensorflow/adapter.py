"""How a case becomes TensorFlow processes."""

from __future__ import annotations

import json
from typing import ClassVar

from paceline.bench.frameworks.policy_adapter import PolicyAdapter, rank_endpoint
from paceline.bench.job import Order, Process, rank_processes, shared_env
from paceline.spec.cluster import Placed

__all__ = ["TensorFlow", "cluster_config"]

FOLDER = "paceline.bench.frameworks.tensorflow"


class TensorFlow(PolicyAdapter):
    """MultiWorkerMirroredStrategy over gRPC, or a chief that drives workers and one parameter server."""

    name = "tensorflow"
    module = f"{FOLDER}.worker"
    choices: ClassVar = {"transport": ("grpc", "nccl"), "algorithm": ("ring",), "bucket": ()}

    def processes(self, order: Order) -> list[Process]:
        """One worker per rank; with a parameter server, that too."""
        if order.case.framework.endswith("/parameter_server"):
            ranks = rank_processes(order, f"{FOLDER}.worker_ps", lambda placed: _server_cluster(order))
            return [*_servers(order), *ranks]
        return super().processes(order)

    def rank_env(self, order: Order, placed: Placed) -> dict[str, str]:
        """The cluster as TensorFlow wants to read it."""
        return cluster_config(order, placed) if order.case.ranks > 1 else {}


def _servers(order: Order) -> list[Process]:
    """The parameter server, and the worker of each rank."""
    tasks = [("ps 0", order.placement[0]), *((f"worker {placed.rank}", placed) for placed in order.placement)]
    return [
        Process(
            name=task,
            host=placed.host,
            argv=(str(order.python), "-m", f"{FOLDER}.worker_server"),
            env={**shared_env(order, placed), **order.env, **_server_cluster(order), "PACELINE_TASK": task},
            log=order.folder / f"{task.replace(' ', '-')}.log",
        )
        for task, placed in tasks
    ]


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
