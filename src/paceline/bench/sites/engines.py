"""Engines that start agents on hosts: ssh, mpirun and Ray; `schedulers.py` has Slurm and Kubernetes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from paceline import variables
from paceline.errors import InputError, Unsupported

__all__ = ["Agents", "Engine", "MpiEngine", "RayEngine", "SshEngine", "Submission", "write_private"]

HOST = re.compile(r"(?!-)([\w.-]+@(?!-))?[\w.:%\[\]-]+", flags=re.ASCII)
"""Host names and addresses: no text that a command could parse as an option, or a list as two entries."""


@dataclass(frozen=True)
class Agents:
    """A request to an engine: start one agent for each entry of `hosts`."""

    hosts: tuple[str, ...]
    """Host of each agent; an empty name means any host."""
    command: tuple[str, ...]
    folder: Path
    token: str = ""
    """Secret of the launch; passed by environment, by a file of mode 0600 or inside ssh, never as an argument."""

    def __post_init__(self) -> None:
        for host in self.hosts:
            if host and not HOST.fullmatch(host):
                raise InputError(
                    f"{host!r} is not the name of a host",
                    hint="letters, digits, and . _ - : %, after user@ if need be; it does not begin with -",
                )

    @property
    def named(self) -> bool:
        """Whether hosts are specified."""
        return all(self.hosts)

    @property
    def shell_command(self) -> str:
        """The agent's command as one line for a shell."""
        return shlex.join(self.command)

    @property
    def num_by_host(self) -> dict[str, int]:
        """Number of agents by host, in order of first mention."""
        return dict(Counter(self.hosts))

    def log(self, name: str) -> Path:
        """The log of one of the engine's commands."""
        return self.folder / f"engine-{name.replace(' ', '-')}.log"


def _nothing() -> None:
    """No effect, because most engines end when their agents end."""


@dataclass(frozen=True)
class Submission:
    """How an engine starts agents: local commands by name, and a function that cancels the job."""

    commands: dict[str, list[str]]
    cancel: Callable[[], None] = _nothing


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read."""
    if path.exists() and not path.is_file():
        raise InputError(
            f"{path} is a folder or a device, expected a file", hint="name a file, or one that is not there yet"
        )
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
        file.write(text)


class Engine(Protocol):
    """Starts agents on hosts."""

    name: str
    carries: bool
    """Whether each command carries the connection of its agent by standard input and output."""
    timeout_s: float
    """Seconds that its agents may take to connect."""

    def submission(self, agents: Agents) -> Submission:
        """The commands that start the agents."""
        ...


class SshEngine:
    """OpenSSH's client with the user's configuration and keys, in batch mode with a timeout of ten seconds."""

    name = "ssh"
    carries = True
    timeout_s = 60.0

    def __init__(self, options: tuple[str, ...] = ()) -> None:
        self._options = options

    def submission(self, agents: Agents) -> Submission:
        """One ssh per agent; an agent ends when its connection breaks."""
        if not agents.named:
            raise InputError("ssh needs to know the hosts", hint="name them: --on ssh --hosts a,b, or a cluster file")
        ssh = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", *self._options]
        commands = {
            f"ssh {number}": [*ssh, "--", host, agents.shell_command] for number, host in enumerate(agents.hosts)
        }
        return Submission(commands)


class MpiEngine:
    """mpirun, OpenMPI's or MPICH's, whichever is installed; the agents use no MPI themselves."""

    name = "mpi"
    carries = False
    timeout_s = 60.0

    def __init__(self, options: tuple[str, ...] = (), *, program: str = "mpirun") -> None:
        self._options, self._program = options, program

    def submission(self, agents: Agents) -> Submission:
        """One mpirun for all agents; it ends when they do."""
        program = shutil.which(self._program)
        if program is None:
            raise Unsupported(f"{self._program} is not installed", hint="apt install openmpi-bin, or mpich")
        version = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
        words = self._open_mpi(agents) if "Open MPI" in version else self._mpich(agents)
        return Submission({"mpirun": [program, *words, *self._options, *agents.command]})

    def _open_mpi(self, agents: Agents) -> list[str]:
        words = ["--allow-run-as-root", "--oversubscribe", "-np", str(len(agents.hosts)), "--bind-to", "none"]
        words += ["-x", variables.AGENT_TOKEN]
        if agents.named:
            slots = ",".join(f"{host}:{count}" for host, count in agents.num_by_host.items())
            words += ["--host", slots, "--map-by", "slot"]
        return words

    def _mpich(self, agents: Agents) -> list[str]:
        words = ["-n", str(len(agents.hosts)), "-bind-to", "none"]
        if agents.named:
            machines = agents.folder / "machines"
            machines.write_text("".join(f"{host}:{count}\n" for host, count in agents.num_by_host.items()))
            words += ["-f", str(machines)]
        return words


class RayEngine:
    """A driver connects to a running Ray cluster and starts the agents as tasks, each on its node."""

    name = "ray"
    carries = False
    timeout_s = 300.0

    def __init__(self, options: tuple[str, ...] = (), *, python: str | None = None) -> None:
        self._address = next(
            (word for word in options if not word.startswith("-")), os.environ.get("RAY_ADDRESS", "auto")
        )
        self._python = python or os.environ.get(variables.RAY_PYTHON) or _python_of_ray()

    def submission(self, agents: Agents) -> Submission:
        """One driver for all agents, which end with it."""
        request = agents.folder / "ray.json"
        env = {variables.AGENT_TOKEN: agents.token}
        document = {"address": self._address, "hosts": agents.hosts, "agent": agents.command, "env": env}
        write_private(request, json.dumps(document))
        # A copy, because modules in the folder of the original would shadow packages with the same names.
        driver = agents.folder / "driver.py"
        driver.write_text(files("paceline.bench.sites").joinpath("ray_driver.py").read_text(encoding="utf-8"))
        return Submission({"ray": [self._python, str(driver), str(request)]})


def _python_of_ray() -> str:
    """The interpreter that has Ray: in the folder of the `ray` command, or this one."""
    command = shutil.which("ray")
    if command is not None:
        return str(Path(command).parent / "python")
    beside = Path(sys.executable).parent / "ray"
    if not beside.exists():
        raise Unsupported(
            "Ray is not installed here",
            hint=f"pip install 'ray[default]', or set {variables.RAY_PYTHON} to a Python with it",
        )
    return sys.executable
