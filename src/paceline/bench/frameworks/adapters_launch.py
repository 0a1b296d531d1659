"""Adapters with a special way to start processes: Paceline's runtime, a user's command, frameworks under mpirun."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import ClassVar

from paceline import variables
from paceline.bench.environments import environment_variables, find_environment
from paceline.bench.frameworks.policy_adapter import MpiAdapter, PolicyAdapter, mpi_processes
from paceline.bench.job import CaseLaunch, rank_processes
from paceline.bench.sites.site import Process
from paceline.spec.cluster import Placed
from paceline.spec.study import Case

__all__ = ["Caffe", "CaffeMpi", "Chainer", "Cntk", "OwnScript", "Paceline", "Singa"]

RUNTIME_WORKER = "paceline.runtime.measured"
"""Module of the worker, which is in the runtime: bench must not import the runtime."""
RUNTIME_SHARD = "paceline.runtime.syncer.shard"


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
            return [
                _paceline_syncer(launch),
                *rank_processes(launch, RUNTIME_WORKER, lambda placed: _paceline_own_group(launch, placed)),
            ]
        place = f"{launch.rendezvous.address}:{launch.rendezvous.ports[1]}"
        meet = {variables.JOIN: place, variables.SECRET: launch.token, variables.SIZE: str(launch.case.ranks)}
        return rank_processes(launch, RUNTIME_WORKER, lambda placed: meet)


def _paceline_own_group(launch: CaseLaunch, placed: Placed) -> dict[str, str]:
    """Each rank is a group of one with an equal share of the batch; fast ranks lease more samples."""
    return {
        variables.SIZE: "1",
        variables.GROUP: f"rank{placed.rank}",
        variables.GROUP_SHARE: repr(1 / launch.case.ranks),
        variables.SYNCER: f"{launch.rendezvous.address}:{launch.rendezvous.ports[2]}",
        variables.SYNCER_SECRET: launch.token,
    }


def _paceline_syncer(launch: CaseLaunch) -> Process:
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
    argv = (str(launch.python), "-m", RUNTIME_SHARD, str(path))
    return Process("syncer", launch.placement[0].host, argv, env, launch.folder / "syncer.log")


SCRIPT_GROUPS = ("throughput", "per_rank", "seconds")


class OwnScript:
    """Runs the command of the study, which starts its own ranks, and extracts the speed from its output."""

    name = "script"

    def environment(self, mode: str) -> str:
        """An empty environment: the command has its own."""
        return "script"

    def refusal(self, case: Case) -> str | None:
        """Refuse a study without a command."""
        if case.script is None:
            return "the study has no [script] table: give command, and pattern unless it prints Paceline's lines"
        if case.script.environment and find_environment(case.script.environment) is None:
            name = case.script.environment
            return f"the {name} environment is not installed: paceline frameworks install {name}"
        if case.script.pattern is None:
            return None
        try:
            groups = set(re.compile(case.script.pattern).groupindex)
        except re.error as error:
            return f"script.pattern is no regular expression: {error}"
        return (
            None
            if groups & set(SCRIPT_GROUPS)
            else f"script.pattern needs one of the groups {', '.join(SCRIPT_GROUPS)}"
        )

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """One process, which runs the command and watches its output."""
        script = launch.case.script
        assert script is not None
        env = {variables.HERE: str(Path.cwd())}
        if script.environment:
            folder = find_environment(script.environment)
            env |= {**environment_variables(script.environment), variables.BIN: str(folder / "bin") if folder else ""}
        module = "paceline.bench.frameworks.script.worker"
        return [rank_processes(launch, module, lambda placed: env)[0]]


class Chainer(MpiAdapter):
    """ChainerMN's naive communicator under mpirun."""

    name = "chainer"
    module = "paceline.bench.frameworks.chainer.worker"
    missing: ClassVar = {"even_window": "Chainer's windows are symmetric"}


class Cntk(MpiAdapter):
    """CNTK's distributed learners under mpirun."""

    name = "cntk"
    module = "paceline.bench.frameworks.cntk.worker"
    inputs = ("image",)
    missing: ClassVar = {
        "gelu": "CNTK 2.7 has no gelu",
        "layer_norm": "Paceline builds none with CNTK",
        "even_window": "CNTK's windows are symmetric",
        "image_rows": "Paceline builds none with CNTK",
    }
    labels = ("unsupported combination: CNTK 2.7's extension for CPython 3.6 loaded into 3.11",)


class Caffe(PolicyAdapter):
    """Caffe's solver in one process, by Debian 11's own Python."""

    name = "caffe"
    module = "paceline.bench.frameworks.caffe.worker"
    inputs = ("image",)
    missing: ClassVar = {
        "gelu": "Caffe 1.0 has no gelu",
        "layer_norm": "Caffe 1.0 has no layer normalisation",
        "even_window": 'Caffe aborts with "LRN only supports odd values for local_size"',
        "image_rows": "Caffe's InnerProduct reads the whole image",
    }

    def environment(self, mode: str) -> str:
        """Caffe and the scheme on it share one."""
        return "caffe"

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """The ranks under one mpirun; a single rank without mpirun."""
        return mpi_processes(launch, self.module, python=str(launch.python.parent / "caffe-python"))


class CaffeMpi(Caffe):
    """Caffe-MPI's scheme, re-created: one MPI all-reduce per layer, overlapped with backward, and a parallel reader."""

    name = "caffe-mpi"
    labels = ("re-creation: Caffe-MPI's scheme driven on pycaffe's layer-wise backward; not the original program",)


class Singa(MpiAdapter):
    """SINGA's autograd in each rank, gradients averaged by MPI."""

    name = "singa"
    module = "paceline.bench.frameworks.singa.worker"
    inputs = ("image",)
    missing: ClassVar = {
        "groups": 'SINGA 3.0.0.dev1 for CPU aborts with "Check failed: W.shape(1) == ch.channels"',
        "gelu": "SINGA 3.0.0.dev1's autograd has no gelu",
        "layer_norm": "SINGA 3.0.0.dev1's autograd has no layer normalisation",
        "image_rows": "SINGA's matmul takes matrices only",
        "repeated_input": "SINGA's autograd adds gradients in place, also to those of the other layers of the sum",
    }
    labels = ("unsupported combination: SINGA 3.0.0.dev1's extension for CPython 3.6 loaded into 3.11",)
