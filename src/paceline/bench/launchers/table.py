"""Every launcher in one table, made from what the command line says after --on."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from paceline.bench.job import Launcher
from paceline.bench.launchers.remote.launcher import RemoteLauncher
from paceline.bench.launchers.slurm import Slurm, Way
from paceline.errors import InputError, UnknownName

__all__ = ["LAUNCHERS", "Wish", "make_launcher"]


@dataclass(frozen=True)
class Wish:
    """Where a study shall run."""

    on: str = "local"
    hosts: tuple[str, ...] = ()
    dilation: float | None = None
    options: tuple[str, ...] = ()
    """Words passed on to the engine, such as `--partition=gpu` for Slurm."""

    @property
    def words(self) -> str:
        """As it is said on the command line, with a blank before each part."""
        parts = [f" --on {self.on}"] if self.on != "local" else []
        parts += [f" --hosts {','.join(self.hosts)}"] if self.hosts else []
        parts += [f" --dilation {self.dilation:g}"] if self.dilation is not None else []
        return "".join([*parts, *(f" --engine {shlex.quote(word)}" for word in self.options)])


def _local(wish: Wish) -> Launcher:
    from paceline.bench.launchers.local import LocalLauncher

    return LocalLauncher()


def _virtual(wish: Wish) -> Launcher:
    from paceline.bench.launchers.virtual import VirtualLauncher

    return VirtualLauncher(dilation=wish.dilation)


def _ssh(wish: Wish) -> Launcher:
    from paceline.bench.launchers.ssh import Ssh

    return RemoteLauncher(Ssh(wish.options), hosts=wish.hosts)


def _mpi(wish: Wish) -> Launcher:
    from paceline.bench.launchers.mpi import Mpi

    return RemoteLauncher(Mpi(wish.options), hosts=wish.hosts)


def _mpich(wish: Wish) -> Launcher:
    from paceline.bench.launchers.mpi import Mpi

    return RemoteLauncher(Mpi(wish.options, program="mpirun.mpich"), hosts=wish.hosts)


def _slurm(way: Way) -> Callable[[Wish], Launcher]:
    def make(wish: Wish) -> Launcher:
        return RemoteLauncher(Slurm(wish.options, way=way), hosts=wish.hosts)

    return make


def _ray(wish: Wish) -> Launcher:
    from paceline.bench.launchers.ray import Ray

    return RemoteLauncher(Ray(wish.options), hosts=wish.hosts)


def _kubernetes(wish: Wish) -> Launcher:
    from paceline.bench.launchers.kubernetes import Kubernetes

    return RemoteLauncher(Kubernetes(wish.options))


LAUNCHERS: dict[str, Callable[[Wish], Launcher]] = {
    "local": _local,
    "virtual": _virtual,
    "ssh": _ssh,
    "mpi": _mpi,
    "mpich": _mpich,
    "slurm": _slurm("srun"),
    "slurm-batch": _slurm("sbatch"),
    "slurm-array": _slurm("array"),
    "slurm-het": _slurm("hetjob"),
    "ray": _ray,
    "kubernetes": _kubernetes,
}


def make_launcher(wish: Wish) -> Launcher:
    """The launcher that was asked for."""
    if wish.on not in LAUNCHERS:
        raise UnknownName("launcher", wish.on, LAUNCHERS)
    if wish.dilation is not None and wish.on != "virtual":
        raise InputError("only a virtual cluster can dilate time", hint="leave out --dilation, or use --on virtual")
    return LAUNCHERS[wish.on](wish)
