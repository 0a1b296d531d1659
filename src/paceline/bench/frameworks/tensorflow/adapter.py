"""The adapter that converts a case to TensorFlow processes."""

from __future__ import annotations

import json
from typing import ClassVar

from paceline import variables
from paceline.bench.frameworks.policy_adapter import PolicyAdapter, rank_endpoint
from paceline.bench.job import CaseLaunch, rank_processes, shared_env
from paceline.bench.sites.site import Process
from paceline.spec.cluster import Placed

__all__ = ["TensorFlow", "cluster_config"]

FOLDER = "paceline.bench.frameworks.tensorflow"


class TensorFlow(PolicyAdapter):
    """MultiWorkerMirroredStrategy over gRPC, or a chief that drives workers and one parameter server."""

    name = "tensorflow"
    module = f"{FOLDER}.worker"
    choices: ClassVar = {"transport": ("grpc", "nccl"), "algorithm": ("ring",), "bucket": ()}

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """One worker per rank, and the parameter server if the mode has one."""
        if launch.case.framework.endswith("/parameter_server"):
            ranks = rank_processes(launch, f"{FOLDER}.worker_ps", lambda placed: _server_cluster(launch))
            return [*_servers(launch), *ranks]
        return super().processes(launch)

    def rank_env(self, launch: CaseLaunch, placed: Placed) -> dict[str, str]:
        """The cluster in TensorFlow's format."""
        return cluster_config(launch, placed) if launch.case.ranks > 1 else {}


def _servers(launch: CaseLaunch) -> list[Process]:
    """The parameter server, and the worker of each rank."""
    tasks = [("ps 0", launch.placement[0]), *((f"worker {placed.rank}", placed) for placed in launch.placement)]
    return [
        Process(
            name=task,
            host=placed.host,
            argv=(str(launch.python), "-m", f"{FOLDER}.worker_server"),
            env={
                **shared_env(launch, placed),
                **launch.env,
                **_server_cluster(launch),
                variables.TENSORFLOW_TASK: task,
            },
            log=launch.folder / f"{task.replace(' ', '-')}.log",
        )
        for task, placed in tasks
    ]


def _server_cluster(launch: CaseLaunch) -> dict[str, str]:
    """The chief, one parameter server beside it, and a worker in every rank."""
    workers = [rank_endpoint(launch, placed) for placed in launch.placement]
    servers = [f"{launch.rendezvous.address}:{launch.rendezvous.ports[3]}"]
    chief = [f"{launch.rendezvous.address}:{launch.rendezvous.ports[2]}"]
    cluster = {"chief": chief, "ps": servers, "worker": workers}
    return {variables.TENSORFLOW_CLUSTER: json.dumps(cluster), "GRPC_FAIL_FAST": "use_caller"}


def cluster_config(launch: CaseLaunch, placed: Placed) -> dict[str, str]:
    """TF_CONFIG of a rank."""
    workers = [rank_endpoint(launch, other) for other in launch.placement]
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": placed.rank}}
    return {"TF_CONFIG": json.dumps(config), "GRPC_FAIL_FAST": "use_caller"}
