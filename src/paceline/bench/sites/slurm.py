"""Agents by Slurm: srun, a batch job, a job array, or a heterogeneous job."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from pathlib import Path
from typing import Literal

from paceline.bench.sites.engines import Agents, Submission
from paceline.errors import Unsupported

__all__ = ["JobKind", "SlurmEngine"]

JobKind = Literal["srun", "sbatch", "array", "hetjob"]


class SlurmEngine:
    """Slurm places the agents; on named nodes if the cluster names them. A batch job is cancelled with the launch."""

    name = "slurm"
    carries = False
    timeout_s = 86400.0
    """Seconds that a job may be queued; if it cannot run, srun or sbatch ends earlier."""

    def __init__(self, options: tuple[str, ...] = (), *, kind: JobKind = "srun") -> None:
        self._options, self._kind = options, kind

    def submission(self, agents: Agents) -> Submission:
        """The one command that starts all agents."""
        if shutil.which("srun") is None:
            raise Unsupported("Slurm's srun is not installed here", hint="run on a login node of the cluster")
        make = {"srun": self._srun, "sbatch": self._sbatch, "array": self._array, "hetjob": self._hetjob}
        commands = {"slurm": make[self._kind](agents)}
        if self._kind in ("sbatch", "array"):
            return Submission(commands, functools.partial(_cancel, agents.log("slurm")))
        return Submission(commands)

    def _srun(self, agents: Agents) -> list[str]:
        return ["srun", "--kill-on-bad-exit=0", *self._options, *_tasks(agents), *agents.command]

    def _sbatch(self, agents: Agents) -> list[str]:
        script = agents.folder / "job.sh"
        tasks = " ".join(_tasks(agents))
        script.write_text(f"#!/bin/sh\nexec srun --kill-on-bad-exit=0 {tasks} {agents.shell_command}\n")
        nodes = agents.num_by_host
        named = [f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}"] if agents.named else []
        return [*self._batch(agents), f"--ntasks={len(agents.hosts)}", *named, str(script)]

    def _batch(self, agents: Agents) -> list[str]:
        output = f"--output={agents.folder}/slurm-%j.log"
        return ["sbatch", "--parsable", "--wait", "--job-name=paceline", output, *self._options]

    def _array(self, agents: Agents) -> list[str]:
        if agents.named and len(agents.hosts) > 1:
            raise Unsupported(
                "jobs of an array land wherever Slurm puts them, and this cluster names its hosts",
                hint="--on slurm, slurm-batch or slurm-het; or a cluster that names none, such as `local`",
            )
        script = agents.folder / "job.sh"
        script.write_text(f"#!/bin/sh\nexec {agents.shell_command}\n")
        nodes = [f"--nodelist={agents.hosts[0]}"] if agents.named else []
        last = len(agents.hosts) - 1
        return [*self._batch(agents), f"--array=0-{last}", "--ntasks=1", *nodes, str(script)]

    def _hetjob(self, agents: Agents) -> list[str]:
        """One component per node, so that each node is requested with its own resources."""
        words = ["srun", "--kill-on-bad-exit=0", *self._options]
        for number, (host, count) in enumerate(agents.num_by_host.items()):
            node = [f"--nodelist={host}", "--nodes=1"] if host else []
            words += [*([":"] if number else []), f"--ntasks={count}", *node, *agents.command]
        return words


def _tasks(agents: Agents) -> list[str]:
    """The distribution of tasks over nodes; a node that is listed twice gets two tasks."""
    if not agents.named:
        return [f"--ntasks={len(agents.hosts)}"]
    machines = agents.folder / "machines"
    machines.write_text("".join(f"{host}\n" for host in agents.hosts))
    nodes = len(agents.num_by_host)
    return [f"--ntasks={len(agents.hosts)}", f"--nodes={nodes}", "--distribution=arbitrary", f"--nodelist={machines}"]


def _cancel(log: Path) -> None:
    """Cancel the submitted batch job, if any; its id is the first word of the output of sbatch."""
    number = re.match(r"\d+", log.read_text(errors="replace")) if log.exists() else None
    if number:
        subprocess.run(["scancel", number.group()], capture_output=True, timeout=20, check=False)
