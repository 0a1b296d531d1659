"""The adapter that converts a case to MXNet processes: workers, and for distributed stores a scheduler and servers."""

from __future__ import annotations

from typing import ClassVar

from paceline.bench.frameworks.policy_adapter import PolicyAdapter
from paceline.bench.job import CaseLaunch, shared_env
from paceline.bench.sites.site import Process
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

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """The workers; with several ranks also the scheduler and the servers, which end with them."""
        workers = super().processes(launch)
        if launch.case.ranks == 1:
            return workers
        helpers = [("scheduler", launch.placement[0])]
        helpers += [
            (f"server {index}", launch.placement[index % launch.case.ranks]) for index in range(_servers(launch))
        ]
        return [*(_helper(launch, name, placed) for name, placed in helpers), *workers]

    def rank_env(self, launch: CaseLaunch, placed: Placed) -> dict[str, str]:
        """The addresses of the parameter-server library."""
        return {} if launch.case.ranks == 1 else {**_addresses(launch), "DMLC_ROLE": "worker"}


def _servers(launch: CaseLaunch) -> int:
    asked = resolve(launch.case.framework, launch.case.strategy).servers
    return asked or launch.case.ranks


def _addresses(launch: CaseLaunch) -> dict[str, str]:
    env = {
        "DMLC_PS_ROOT_URI": launch.rendezvous.address,
        "DMLC_PS_ROOT_PORT": str(launch.rendezvous.ports[1]),
        "DMLC_NUM_SERVER": str(_servers(launch)),
        "DMLC_NUM_WORKER": str(launch.case.ranks),
    }
    return {**env, "DMLC_INTERFACE": launch.rendezvous.interface} if launch.rendezvous.interface else env


def _helper(launch: CaseLaunch, name: str, placed: Placed) -> Process:
    env = {**shared_env(launch, placed), **launch.env, **_addresses(launch), "DMLC_ROLE": name.split()[0]}
    return Process(
        name=name,
        host=placed.host,
        argv=(str(launch.python), "-c", "import mxnet"),
        env={**env, "OMP_NUM_THREADS": "1"},
        log=launch.folder / f"{name.replace(' ', '-')}.log",
    )
