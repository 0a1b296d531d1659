"""The adapter of Paceline's runtime: one balanced group, or groups of one rank with a syncer."""

from __future__ import annotations

import json

from paceline import variables
from paceline.bench.job import CaseLaunch, rank_processes
from paceline.bench.sites.site import Process
from paceline.spec.cluster import Placed
from paceline.spec.study import Case

__all__ = ["Paceline"]

WORKER = "paceline.runtime.measured"
"""Module of the worker, which is in the runtime: bench must not import the runtime."""
SYNCER = "paceline.runtime.syncer.shard"


class Paceline:
    """The balanced synchronous group over Gloo, and the asynchronous mode with a syncer."""

    name = "paceline"

    def environment(self, mode: str) -> str:
        """The environment of PyTorch."""
        return "pytorch"

    def refusal(self, case: Case) -> str | None:
        """Refuse strategies that the runtime does not implement."""
        strategy, hybrid = case.strategy, case.framework.endswith("/hybrid")
        way, pace = ("parameter_server", "asynchronous") if hybrid else ("allreduce", "synchronous")
        if strategy.aggregation not in (None, way):
            return f"{case.framework} aggregates by {way}, not {strategy.aggregation}"
        if strategy.synchrony not in (None, pace):
            return f"{case.framework} is {pace}"
        if strategy.transport not in (None, "gloo") or (hybrid and strategy.transport):
            return f"{case.framework} does not run over {strategy.transport}"
        if strategy.compression != "none":
            return f"compression {strategy.compression!r} is not offered"
        if strategy.overlap is not None and strategy.overlap == hybrid:
            return "the group always exchanges while it computes, the syncer never"
        if case.input != "resident":
            return f"input {case.input!r} is not offered; the runtime loads its own batches"
        return None

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """One worker per rank, and the syncer if there is one; the launch's token is the job's secret."""
        if launch.case.framework.endswith("/hybrid") and launch.case.ranks > 1:
            return [_syncer(launch), *rank_processes(launch, WORKER, lambda placed: _own_group(launch, placed))]
        place = f"{launch.rendezvous.address}:{launch.rendezvous.ports[1]}"
        meet = {variables.JOIN: place, variables.SECRET: launch.token, variables.SIZE: str(launch.case.ranks)}
        return rank_processes(launch, WORKER, lambda placed: meet)


def _own_group(launch: CaseLaunch, placed: Placed) -> dict[str, str]:
    """Each rank is a group of one with an equal share of the batch; fast ranks lease more samples."""
    return {
        variables.SIZE: "1",
        variables.GROUP: f"rank{placed.rank}",
        variables.GROUP_SHARE: repr(1 / launch.case.ranks),
        variables.SYNCER: f"{launch.rendezvous.address}:{launch.rendezvous.ports[2]}",
        variables.SYNCER_SECRET: launch.token,
    }


def _syncer(launch: CaseLaunch) -> Process:
    """One shard on the host of rank 0, with a quorum of one."""
    settings = {
        "index": 0,
        "folder": str(launch.folder),
        "address": launch.rendezvous.address,
        "port": launch.rendezvous.ports[2],
        "groups": launch.case.ranks,
        "quorum": 1,
    }
    path = launch.folder / "syncer.json"
    path.write_text(json.dumps(settings), encoding="utf-8")
    env = {"PYTHONPATH": str(launch.worker_path), "PYTHONUNBUFFERED": "1", variables.SECRET: launch.token}
    argv = (str(launch.python), "-m", SYNCER, str(path))
    return Process("syncer", launch.placement[0].host, argv, env, launch.folder / "syncer.log")
