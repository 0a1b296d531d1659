"""The adapter that converts a case to Horovod processes."""

from __future__ import annotations

from typing import ClassVar

from paceline import variables
from paceline.bench.frameworks.policy_adapter import PolicyAdapter, mpi_processes
from paceline.bench.job import CaseLaunch, rank_processes
from paceline.bench.sites.site import Process
from paceline.spec.cluster import Placed

__all__ = ["Horovod"]

FOLDER = "paceline.bench.frameworks.horovod"


class Horovod(PolicyAdapter):
    """Horovod's ring over Gloo with a rendezvous on the host of rank 0, or over MPI under mpirun."""

    name = "horovod"
    module = f"{FOLDER}.worker_pytorch"
    choices: ClassVar = {"transport": ("gloo", "mpi"), "bucket": ()}

    def environment(self, mode: str) -> str:
        """One environment per framework that Horovod is built for."""
        return f"horovod-{mode}"

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """One worker per rank, for the transport of the case."""
        worker = f"{FOLDER}.worker_{launch.case.framework.split('/')[1]}"
        if launch.case.strategy.transport == "mpi":
            return mpi_processes(launch, worker, env={**self._tuning(launch), "HOROVOD_CONTROLLER": "mpi"})
        ranks = rank_processes(launch, worker, lambda placed: self.rank_env(launch, placed))
        return [_rendezvous(launch), *ranks]

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


def _rendezvous(launch: CaseLaunch) -> Process:
    """Horovod's key-value server, the rendezvous of Gloo's ranks; it ends with them."""
    argv = (str(launch.python), "-m", f"{FOLDER}.worker_rendezvous")
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
