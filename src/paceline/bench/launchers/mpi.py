"""Agents by mpirun, OpenMPI's or MPICH's, whichever is installed."""

from __future__ import annotations

import shutil
import subprocess

from paceline.bench.launchers.remote.launcher import Seats, ranks_by_host
from paceline.errors import Unsupported

__all__ = ["Mpi"]


class Mpi:
    """mpirun starts as many agents on each host as it has processes; the agents use no MPI themselves."""

    name = "mpi"
    patience_s = 60.0

    def __init__(self, options: tuple[str, ...] = (), *, program: str = "mpirun") -> None:
        self._options, self._program = options, program

    def commands(self, seats: Seats) -> dict[str, list[str]]:
        """One mpirun for all."""
        program = shutil.which(self._program)
        if program is None:
            raise Unsupported(f"{self._program} is not installed", hint="apt install openmpi-bin, or mpich")
        version = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
        words = self._open_mpi(seats) if "Open MPI" in version else self._mpich(seats)
        return {"mpirun": [program, *words, *self._options, *seats.agent]}

    def _open_mpi(self, seats: Seats) -> list[str]:
        words = ["--allow-run-as-root", "--oversubscribe", "-np", str(len(seats.hosts)), "--bind-to", "none"]
        if seats.named:
            places = ",".join(f"{host}:{count}" for host, count in ranks_by_host(seats.hosts).items())
            words += ["--host", places, "--map-by", "slot"]
        return words

    def _mpich(self, seats: Seats) -> list[str]:
        words = ["-n", str(len(seats.hosts)), "-bind-to", "none"]
        if seats.named:
            machines = seats.folder / "machines"
            machines.write_text("".join(f"{host}:{count}\n" for host, count in ranks_by_host(seats.hosts).items()))
            words += ["-f", str(machines)]
        return words

    def cancel(self) -> None:
        """mpirun ends when its agents do."""
