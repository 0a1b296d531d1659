"""How a case becomes MXNet processes: workers, and for distributed stores a scheduler and servers."""

from __future__ import annotations

from typing import ClassVar

from paceline.bench.frameworks.policy_adapter import PolicyAdapter
from paceline.bench.job import Order, Process, shared_env
from paceline.catalog.frameworks import resolve
from paceline.spec.cluster import Placed
from paceline.spec.study import Case

__all__ = ["Mxnet"]


class Mxnet(PolicyAdapter):
    """The kvstore of the mode's name; `local` stays in one process."""

    name = "mxnet"
    module = "paceline.bench.frameworks.mxnet.worker"
    choices: ClassVar = {"servers": ()}

    def _refused_ranks(self, case: Case) -> str | None:
        if case.ranks > 1 and case.framework.endswith("/local"):
            return "mxnet/local keeps its store in one process: ranks need mxnet/dist_sync"
        return None

    def processes(self, order: Order) -> list[Process]:
        """Workers; with more than one also the scheduler and the servers, which end with them."""
        workers = super().processes(order)
        if order.case.ranks == 1:
            return workers
        helpers = [("scheduler", order.placement[0])]
        helpers += [(f"server {index}", order.placement[index % order.case.ranks]) for index in range(_servers(order))]
        return [*(_helper(order, name, placed) for name, placed in helpers), *workers]

    def rank_env(self, order: Order, placed: Placed) -> dict[str, str]:
        """The addresses of the parameter-server library."""
        return {} if order.case.ranks == 1 else {**_addresses(order), "DMLC_ROLE": "worker"}


def _servers(order: Order) -> int:
    asked = resolve(order.case.framework, order.case.strategy).servers
    return asked or order.case.ranks


def _addresses(order: Order) -> dict[str, str]:
    env = {
        "DMLC_PS_ROOT_URI": order.meet.address,
        "DMLC_PS_ROOT_PORT": str(order.meet.ports[1]),
        "DMLC_NUM_SERVER": str(_servers(order)),
        "DMLC_NUM_WORKER": str(order.case.ranks),
    }
    return {**env, "DMLC_INTERFACE": order.meet.interface} if order.meet.interface else env


def _helper(order: Order, name: str, placed: Placed) -> Process:
    env = {**shared_env(order, placed), **order.env, **_addresses(order), "DMLC_ROLE": name.split()[0]}
    return Process(
        name=name,
        host=placed.host,
        argv=(str(order.python), "-c", "import mxnet"),
        env={**env, "OMP_NUM_THREADS": "1"},
        log=order.folder / f"{name.replace(' ', '-')}.log",
    )
