"""The table of all launchers, selected by the option --on."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from paceline.bench.sites.engines import Engine, MpiEngine, RayEngine, SshEngine
from paceline.bench.sites.local import LocalLauncher
from paceline.bench.sites.remote import RemoteLauncher
from paceline.bench.sites.schedulers import KubernetesEngine, SlurmEngine
from paceline.bench.sites.site import Launcher
from paceline.errors import InputError, UnknownName

__all__ = ["LAUNCHERS", "LaunchTarget", "make_launcher"]


@dataclass(frozen=True)
class LaunchTarget:
    """Where a study runs: this machine, a virtual cluster, or hosts of an engine."""

    on: str = "local"
    hosts: tuple[str, ...] = ()
    dilation: float | None = None
    options: tuple[str, ...] = ()
    """Options for the engine, such as `--partition=gpu` for Slurm."""

    @property
    def arguments(self) -> str:
        """The options of the command line, each with a leading blank."""
        parts = [f" --on {self.on}"] if self.on != "local" else []
        parts += [f" --hosts {','.join(self.hosts)}"] if self.hosts else []
        parts += [f" --dilation {self.dilation:g}"] if self.dilation is not None else []
        return "".join([*parts, *(f" --engine {shlex.quote(word)}" for word in self.options)])


def _local(target: LaunchTarget) -> Launcher:
    return LocalLauncher()


def _virtual(target: LaunchTarget) -> Launcher:
    from paceline.bench.sites.virtual import VirtualLauncher

    return VirtualLauncher(dilation=target.dilation)


def _by(engine: Callable[[tuple[str, ...]], Engine]) -> Callable[[LaunchTarget], Launcher]:
    def make(target: LaunchTarget) -> Launcher:
        return RemoteLauncher(engine(target.options), hosts=target.hosts)

    return make


LAUNCHERS: dict[str, Callable[[LaunchTarget], Launcher]] = {
    "local": _local,
    "virtual": _virtual,
    "ssh": _by(SshEngine),
    "mpi": _by(MpiEngine),
    "mpich": _by(functools.partial(MpiEngine, program="mpirun.mpich")),
    "slurm": _by(SlurmEngine),
    "slurm-batch": _by(functools.partial(SlurmEngine, kind="sbatch")),
    "slurm-array": _by(functools.partial(SlurmEngine, kind="array")),
    "slurm-het": _by(functools.partial(SlurmEngine, kind="hetjob")),
    "ray": _by(RayEngine),
    "kubernetes": _by(KubernetesEngine),
}


def make_launcher(target: LaunchTarget) -> Launcher:
    """The launcher of a target."""
    if target.on not in LAUNCHERS:
        raise UnknownName("launcher", target.on, LAUNCHERS)
    if target.dilation is not None and target.on != "virtual":
        raise InputError("only a virtual cluster can dilate time", hint="leave out --dilation, or use --on virtual")
    return LAUNCHERS[target.on](target)
