"""Adapters of frameworks that start one process per rank; bench/adapters.py lists them all."""

from __future__ import annotations

import json
from typing import ClassVar

from paceline import variables
from paceline.bench.frameworks.policy_adapter import PolicyAdapter, mpi_processes, rank_endpoint
from paceline.bench.job import CaseLaunch, rank_processes, shared_env
from paceline.bench.sites.site import Process
from paceline.catalog.frameworks import resolve
from paceline.spec.cluster import Placed
from paceline.spec.strategy import Strategy
from paceline.spec.study import Case

__all__ = [
    "DeepSpeed",
    "Horovod",
    "Jax",
    "Keras",
    "Mxnet",
    "Paddle",
    "PyTorch",
    "TensorFlow",
    "cluster_config",
]


class PyTorch:
    """DDP or FSDP2 over Gloo on CPUs and NCCL on GPUs; one rank runs without a wrapper."""

    name = "pytorch"

    def environment(self, mode: str) -> str:
        """All modes share one environment."""
        return "pytorch"

    def refusal(self, case: Case) -> str | None:
        """Refuse strategies that DDP or FSDP2 does not implement."""
        strategy = case.strategy
        if strategy.precision == "tf32" and not case.has_tf32:
            return f"no device of {case.cluster.name} computes in TF32"
        if case.framework == "pytorch/fsdp2":
            return _pytorch_refused_by_fsdp(strategy)
        if strategy.aggregation not in (None, "none", "allreduce"):
            return f"DDP aggregates by all-reduce, not {strategy.aggregation}"
        if strategy.transport not in (None, "gloo", "nccl"):
            return f"DDP runs over gloo or nccl here, not {strategy.transport}"
        if strategy.compression not in ("none", "float16"):
            return f"compression {strategy.compression!r} is not offered for DDP"
        if strategy.synchrony == "asynchronous":
            return "DDP is synchronous"
        return None

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """One worker per rank."""
        return rank_processes(launch, "paceline.bench.frameworks.pytorch.worker")


def _pytorch_refused_by_fsdp(strategy: Strategy) -> str | None:
    if strategy.aggregation not in (None, "sharded") or strategy.shard_stage not in (None, 3):
        return "FSDP2 shards parameters, gradients and optimiser state: aggregation 'sharded', shard_stage 3"
    if strategy.transport not in (None, "gloo", "nccl"):
        return f"FSDP2 runs over gloo or nccl here, not {strategy.transport}"
    if strategy.overlap is False or strategy.bucket is not None or strategy.compression != "none":
        return "FSDP2 gathers and scatters layer by layer, overlapped, uncompressed: none of this can be changed"
    return "FSDP2 is synchronous" if strategy.synchrony == "asynchronous" else None


TENSORFLOW_SERVED = "paceline.bench.frameworks.tensorflow.worker_ps"


class TensorFlow(PolicyAdapter):
    """MultiWorkerMirroredStrategy over gRPC, or a chief that drives workers and one parameter server."""

    name = "tensorflow"
    module = "paceline.bench.frameworks.tensorflow.worker"
    choices: ClassVar = {"transport": ("grpc", "nccl"), "algorithm": ("ring",), "bucket": ()}

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """One worker per rank, and the parameter server if the mode has one."""
        if launch.case.framework.endswith("/parameter_server"):
            ranks = rank_processes(launch, TENSORFLOW_SERVED, lambda placed: _tensorflow_server_cluster(launch))
            return [*_tensorflow_servers(launch), *ranks]
        return super().processes(launch)

    def rank_env(self, launch: CaseLaunch, placed: Placed) -> dict[str, str]:
        """The cluster in TensorFlow's format."""
        return cluster_config(launch, placed) if launch.case.ranks > 1 else {}


def _tensorflow_servers(launch: CaseLaunch) -> list[Process]:
    """The parameter server, and the worker of each rank."""
    tasks = [("ps 0", launch.placement[0]), *((f"worker {placed.rank}", placed) for placed in launch.placement)]
    return [
        Process(
            name=task,
            host=placed.host,
            argv=(str(launch.python), "-m", TENSORFLOW_SERVED),
            env={
                **shared_env(launch, placed),
                **launch.env,
                **_tensorflow_server_cluster(launch),
                variables.TENSORFLOW_TASK: task,
            },
            log=launch.folder / f"{task.replace(' ', '-')}.log",
        )
        for task, placed in tasks
    ]


def _tensorflow_server_cluster(launch: CaseLaunch) -> dict[str, str]:
    """The chief with one co-located parameter server, and a worker in every rank."""
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


class Jax(PolicyAdapter):
    """One process per rank; they form one mesh and average gradients by a collective inside the compiled step."""

    name = "jax"
    module = "paceline.bench.frameworks.jax.worker"


class Mxnet(PolicyAdapter):
    """The kvstore of the mode's name; `local` stays in one process."""

    name = "mxnet"
    module = "paceline.bench.frameworks.mxnet.worker"
    missing: ClassVar = {"even_window": "MXNet's windows are symmetric"}
    choices: ClassVar = {"servers": ()}

    def _refused_ranks(self, case: Case) -> str | None:
        if case.ranks > 1 and case.framework.endswith("/local"):
            return "mxnet/local keeps its store in one process: ranks need mxnet/dist_sync"
        return None

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """The workers; with several ranks also the scheduler and the servers, which end with them."""
        workers = super().processes(launch)
        if launch.case.ranks == 1:
            return workers
        helpers = [("scheduler", launch.placement[0])]
        helpers += [
            (f"server {index}", launch.placement[index % launch.case.ranks]) for index in range(_mxnet_servers(launch))
        ]
        return [*(_mxnet_helper(launch, name, placed) for name, placed in helpers), *workers]

    def rank_env(self, launch: CaseLaunch, placed: Placed) -> dict[str, str]:
        """The addresses of the parameter-server library."""
        return {} if launch.case.ranks == 1 else {**_mxnet_addresses(launch), "DMLC_ROLE": "worker"}


def _mxnet_servers(launch: CaseLaunch) -> int:
    asked = resolve(launch.case.framework, launch.case.strategy).servers
    return asked or launch.case.ranks


def _mxnet_addresses(launch: CaseLaunch) -> dict[str, str]:
    env = {
        "DMLC_PS_ROOT_URI": launch.rendezvous.address,
        "DMLC_PS_ROOT_PORT": str(launch.rendezvous.ports[1]),
        "DMLC_NUM_SERVER": str(_mxnet_servers(launch)),
        "DMLC_NUM_WORKER": str(launch.case.ranks),
    }
    return {**env, "DMLC_INTERFACE": launch.rendezvous.interface} if launch.rendezvous.interface else env


def _mxnet_helper(launch: CaseLaunch, name: str, placed: Placed) -> Process:
    env = {**shared_env(launch, placed), **launch.env, **_mxnet_addresses(launch), "DMLC_ROLE": name.split()[0]}
    return Process(
        name=name,
        host=placed.host,
        argv=(str(launch.python), "-c", "import mxnet"),
        env={**env, "OMP_NUM_THREADS": "1"},
        log=launch.folder / f"{name.replace(' ', '-')}.log",
    )


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
        """One worker per rank, with the worker module of the backend."""
        backend = launch.case.framework.split("/")[1]
        module = f"paceline.bench.frameworks.keras.worker_{backend}"
        return rank_processes(launch, module, lambda placed: self.rank_env(launch, placed))

    def rank_env(self, launch: CaseLaunch, placed: Placed) -> dict[str, str]:
        """The backend, and the variables by which it connects to the other ranks."""
        backend = launch.case.framework.split("/")[1]
        env = {"KERAS_BACKEND": backend}
        several = launch.case.ranks > 1 and backend == "tensorflow"
        return {**env, **cluster_config(launch, placed)} if several else env


HOROVOD_FOLDER = "paceline.bench.frameworks.horovod"


class Horovod(PolicyAdapter):
    """Horovod's ring over Gloo with a rendezvous on the host of rank 0, or over MPI under mpirun."""

    name = "horovod"
    module = f"{HOROVOD_FOLDER}.worker_pytorch"
    choices: ClassVar = {"transport": ("gloo", "mpi"), "bucket": ()}

    def environment(self, mode: str) -> str:
        """One environment per framework that Horovod is built for."""
        return f"horovod-{mode}"

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """One worker per rank, for the transport of the case."""
        worker = f"{HOROVOD_FOLDER}.worker_{launch.case.framework.split('/')[1]}"
        if launch.case.strategy.transport == "mpi":
            return mpi_processes(launch, worker, env={**self._tuning(launch), "HOROVOD_CONTROLLER": "mpi"})
        ranks = rank_processes(launch, worker, lambda placed: self.rank_env(launch, placed))
        return [_horovod_rendezvous(launch), *ranks]

    def rank_env(self, launch: CaseLaunch, placed: Placed) -> dict[str, str]:
        """The environment variables that horovodrun sets."""
        mates = [other for other in launch.placement if other.host == placed.host]
        hosts = len({other.host for other in launch.placement})
        env = {
            "HOROVOD_RANK": str(placed.rank),
            "HOROVOD_SIZE": str(launch.case.ranks),
            "HOROVOD_LOCAL_RANK": str(mates.index(placed)),
            "HOROVOD_LOCAL_SIZE": str(len(mates)),
            "HOROVOD_CROSS_RANK": str(placed.host),
            "HOROVOD_CROSS_SIZE": str(hosts),
            "HOROVOD_HOSTNAME": f"host-{placed.host}",
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": launch.rendezvous.address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(launch.rendezvous.ports[1]),
        }
        if launch.rendezvous.interface:
            env["HOROVOD_GLOO_IFACE"] = launch.rendezvous.interface
        return {**env, **self._tuning(launch)}

    def _tuning(self, launch: CaseLaunch) -> dict[str, str]:
        bucket = launch.case.strategy.bucket
        return {} if bucket is None else {"HOROVOD_FUSION_THRESHOLD": str(int(bucket))}


def _horovod_rendezvous(launch: CaseLaunch) -> Process:
    """Horovod's key-value server, the rendezvous of Gloo's ranks; it ends with them."""
    argv = (str(launch.python), "-m", f"{HOROVOD_FOLDER}.worker_rendezvous")
    sizes: dict[int, int] = {}
    for placed in launch.placement:
        sizes[placed.host] = sizes.get(placed.host, 0) + 1
    hosts = ",".join(f"host-{host}:{count}" for host, count in sizes.items())
    env = {**launch.env, "PYTHONPATH": str(launch.worker_path), variables.HOROVOD_HOSTS: hosts}
    env.update(
        {variables.HOROVOD_ADDRESS: launch.rendezvous.address, variables.HOROVOD_PORT: str(launch.rendezvous.ports[1])}
    )
    first = launch.placement[0]
    return Process(name="rendezvous", host=first.host, argv=argv, env=env, log=launch.folder / "rendezvous.log")


class DeepSpeed(PolicyAdapter):
    """ZeRO by the stage that the mode names, over Gloo."""

    name = "deepspeed"
    module = "paceline.bench.frameworks.deepspeed.worker"
    choices: ClassVar = {"bucket": ()}


class Paddle(PolicyAdapter):
    """paddle.DataParallel over Gloo; with the variables of its own launcher."""

    name = "paddle"
    module = "paceline.bench.frameworks.paddle.worker"

    def rank_env(self, launch: CaseLaunch, placed: Placed) -> dict[str, str]:
        """Variables of the rank among the trainers."""
        if launch.case.ranks == 1:
            return {}
        meet = launch.rendezvous
        endpoints = [rank_endpoint(launch, other) for other in launch.placement]
        return {
            "PADDLE_MASTER": f"{meet.address}:{meet.ports[1]}",
            "PADDLE_DISTRI_BACKEND": "gloo",
            "PADDLE_TRAINER_ID": str(placed.rank),
            "PADDLE_TRAINERS_NUM": str(launch.case.ranks),
            "PADDLE_LOCAL_RANK": str(placed.local_rank),
            "PADDLE_LOCAL_SIZE": str(launch.case.ranks),
            "PADDLE_GLOBAL_RANK": str(placed.rank),
            "PADDLE_GLOBAL_SIZE": str(launch.case.ranks),
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_CURRENT_ENDPOINT": endpoints[placed.rank],
            "PADDLE_NNODES": "1",
            "FLAGS_selected_cpus": "0",
        }
