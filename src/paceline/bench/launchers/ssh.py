"""Agents over ssh: one connection for each process."""

from __future__ import annotations

from paceline.bench.launchers.remote.launcher import Seats
from paceline.errors import InputError

__all__ = ["Ssh"]


class Ssh:
    """OpenSSH's client with the user's own configuration and keys; asks for nothing, gives up in ten seconds."""

    name = "ssh"
    patience_s = 60.0

    def __init__(self, options: tuple[str, ...] = ()) -> None:
        self._options = options

    def commands(self, seats: Seats) -> dict[str, list[str]]:
        """One ssh for each process."""
        if not seats.named:
            raise InputError("ssh needs to know the hosts", hint="name them: --on ssh --hosts a,b, or a cluster file")
        ssh = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", *self._options]
        return {f"ssh {number}": [*ssh, host, seats.shell_agent] for number, host in enumerate(seats.hosts)}

    def cancel(self) -> None:
        """Agents end by themselves when their leash breaks."""
