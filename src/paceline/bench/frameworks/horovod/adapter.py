"""How a case becomes Horovod processes."""

from __future__ import annotations

from typing import ClassVar

from paceline.bench.frameworks.policy_adapter import PolicyAdapter, mpi_processes
from paceline.bench.job import Order, Process, rank_processes
from paceline.spec.cluster import Placed

__all__ = ["Horovod"]

FOLDER = "paceline.bench.frameworks.horovod"


class Horovod(PolicyAdapter):
    """The ring over Gloo, the ranks meeting at a rendezvous that rank 0 serves; or over MPI under mpirun."""

    name = "horovod"
    module = f"{FOLDER}.worker_pytorch"
    choices: ClassVar = {"transport": ("gloo", "mpi"), "bucket": ()}

    def environment(self, mode: str) -> str:
        """One per framework that it is built for."""
        return f"horovod-{mode}"

    def processes(self, order: Order) -> list[Process]:
        """One worker per rank, by the transport that is asked for."""
        worker = f"{FOLDER}.worker_{order.case.framework.split('/')[1]}"
        if order.case.strategy.transport == "mpi":
            return mpi_processes(order, worker, env={**self._tuning(order), "HOROVOD_CONTROLLER": "mpi"})
        ranks = rank_processes(order, worker, lambda placed: self.rank_env(order, placed))
        return [_rendezvous(order), *ranks]

    def rank_env(self, order: Order, placed: Placed) -> dict[str, str]:
        """What horovodrun would set."""
        mates = [other for other in order.placement if other.host == placed.host]
        hosts = len({other.host for other in order.placement})
        env = {
            "HOROVOD_RANK": str(placed.rank),
            "HOROVOD_SIZE": str(order.case.ranks),
            "HOROVOD_LOCAL_RANK": str(mates.index(placed)),
            "HOROVOD_LOCAL_SIZE": str(len(mates)),
            "HOROVOD_CROSS_RANK": str(placed.host),
            "HOROVOD_CROSS_SIZE": str(hosts),
            "HOROVOD_HOSTNAME": f"host-{placed.host}",
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": order.meet.address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(order.meet.ports[1]),
        }
        if order.meet.interface:
            env["HOROVOD_GLOO_IFACE"] = order.meet.interface
        return {**env, **self._tuning(order)}

    def _tuning(self, order: Order) -> dict[str, str]:
        bucket = order.case.strategy.bucket
        return {} if bucket is None else {"HOROVOD_FUSION_THRESHOLD": str(int(bucket))}


def _rendezvous(order: Order) -> Process:
    """Horovod's own key-value server, by which Gloo's ranks find each other; ends with them."""
    argv = (str(order.python), "-m", f"{FOLDER}.worker_rendezvous")
    sizes: dict[int, int] = {}
    for placed in order.placement:
        sizes[placed.host] = sizes.get(placed.host, 0) + 1
    hosts = ",".join(f"host-{host}:{count}" for host, count in sizes.items())
    env = {**order.env, "PYTHONPATH": str(order.worker_path), "PACELINE_HOSTS": hosts}
    env.update({"PACELINE_ADDRESS": order.meet.address, "PACELINE_PORT": str(order.meet.ports[1])})
    first = order.placement[0]
    return Process(name="rendezvous", host=first.host, argv=argv, env=env, log=order.folder / "rendezvous.log")
