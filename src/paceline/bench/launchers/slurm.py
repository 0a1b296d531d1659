"""Agents by Slurm: srun at once, or a batch job, an array of jobs, or a heterogeneous job where that was asked."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Literal

from paceline.bench.launchers.remote.launcher import Seats, ranks_by_host
from paceline.errors import Unsupported

__all__ = ["Slurm"]

Way = Literal["srun", "sbatch", "array", "hetjob"]


class Slurm:
    """Slurm places the agents; on named nodes if the cluster names them. A batch job is cancelled with the launch."""

    name = "slurm"
    patience_s = 86400.0
    """A job may queue for long; one that cannot run makes srun or sbatch end."""

    def __init__(self, options: tuple[str, ...] = (), *, way: Way = "srun") -> None:
        self._options, self._way = options, way
        self._log: Path | None = None

    def commands(self, seats: Seats) -> dict[str, list[str]]:
        """The one command that starts all agents."""
        if shutil.which("srun") is None:
            raise Unsupported("Slurm's srun is not installed here", hint="run on a login node of the cluster")
        self._log = seats.folder / "engine-slurm.log"
        made = {"srun": self._srun, "sbatch": self._sbatch, "array": self._array, "hetjob": self._hetjob}
        return {"slurm": made[self._way](seats)}

    def _srun(self, seats: Seats) -> list[str]:
        return ["srun", "--kill-on-bad-exit=0", *self._options, *self._places(seats), *seats.agent]

    def _places(self, seats: Seats) -> list[str]:
        """Tasks on the nodes they belong to; a node listed twice gets two."""
        if not seats.named:
            return [f"--ntasks={len(seats.hosts)}"]
        machines = seats.folder / "machines"
        machines.write_text("".join(f"{host}\n" for host in seats.hosts))
        nodes = len(set(seats.hosts))
        return [
            f"--ntasks={len(seats.hosts)}",
            f"--nodes={nodes}",
            "--distribution=arbitrary",
            f"--nodelist={machines}",
        ]

    def _sbatch(self, seats: Seats) -> list[str]:
        script = seats.folder / "job.sh"
        places = " ".join(self._places(seats))
        script.write_text(f"#!/bin/sh\nexec srun --kill-on-bad-exit=0 {places} {seats.shell_agent}\n")
        nodes = ranks_by_host(seats.hosts)
        named = [f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}"] if seats.named else []
        return [*self._batch(seats), f"--ntasks={len(seats.hosts)}", *named, str(script)]

    def _batch(self, seats: Seats) -> list[str]:
        output = f"--output={seats.folder}/slurm-%j.log"
        return ["sbatch", "--parsable", "--wait", "--job-name=paceline", output, *self._options]

    def _array(self, seats: Seats) -> list[str]:
        if seats.named and len(seats.hosts) > 1:
            raise Unsupported(
                "jobs of an array land wherever Slurm puts them, and this cluster names its hosts",
                hint="--on slurm, slurm-batch or slurm-het; or a cluster that names none, such as `local`",
            )
        script = seats.folder / "job.sh"
        script.write_text(f"#!/bin/sh\nexec {seats.shell_agent}\n")
        nodes = [f"--nodelist={seats.hosts[0]}"] if seats.named else []
        last = len(seats.hosts) - 1
        return [*self._batch(seats), f"--array=0-{last}", "--ntasks=1", *nodes, str(script)]

    def _hetjob(self, seats: Seats) -> list[str]:
        """One component for each node, so that unequal nodes are asked for with what each of them has."""
        words = ["srun", "--kill-on-bad-exit=0", *self._options]
        for number, (host, count) in enumerate(ranks_by_host(seats.hosts).items()):
            node = [f"--nodelist={host}", "--nodes=1"] if host else []
            words += [*([":"] if number else []), f"--ntasks={count}", *node, *seats.agent]
        return words

    def cancel(self) -> None:
        """Drop the batch job that was submitted, if any; its number is the first word sbatch said."""
        if self._way not in ("sbatch", "array") or self._log is None or not self._log.exists():
            return
        number = re.match(r"\d+", self._log.read_text(errors="replace"))
        if number:
            subprocess.run(["scancel", number.group()], capture_output=True, timeout=20, check=False)
