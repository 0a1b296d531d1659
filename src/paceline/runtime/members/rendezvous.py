"""The rendezvous of a job's processes, from the environment variables of their launcher.

PACELINE_JOIN, PACELINE_SECRET     set by `paceline train`: host:port of the first leader, and the secret of the job
torchrun                           its store has the endpoint of rank 0, with a proof by the secret of the job
MASTER_ADDR, MASTER_PORT           the rendezvous under mpirun and srun, whose variables have the ranks
mpirun without them                MPI sends the endpoint of rank 0 and the secret: `group/mpi.py`
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch.distributed as dist

from paceline import variables
from paceline.errors import InputError
from paceline.runtime.members.channel import Endpoint
from paceline.runtime.members.member import Member
from paceline.runtime.members.secret import given_secret, local_secret, seal_endpoint, unseal_endpoint
from paceline.runtime.members.view import Peer, Timeouts

__all__ = ["LaunchContext", "launch_context", "launched_size", "meet", "mpi_size", "number_of", "only_mpi_knows"]

FORGED_TIMEOUT = 10.0
"""Seconds to wait for an endpoint with a valid proof, after one without."""
MOST_RANKS, MOST_PORT = 1 << 24, (1 << 16) - 1
RANKS = (variables.RANK, "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Variables with the number of processes: of Open MPI, and of MPICH and its derivatives."""
SIZES = (variables.SIZE, "WORLD_SIZE", *MPI_SIZES, "SLURM_NTASKS")

_OPEN: dict[Endpoint, Member] = {}
"""The newest member of this process for each rendezvous."""


@dataclass(frozen=True)
class LaunchContext:
    """What the launcher of this process says about the job."""

    rank: int
    size: int
    host: str
    """With `port`, the rendezvous: the endpoint of the first rank, or of torchrun's store."""
    port: int
    secret: bytes | None
    session: str = ""
    """Distinguishes jobs that have the same secret."""
    torchrun: bool = False
    """Whether the rendezvous is torchrun's store, which has the endpoint of the first rank."""
    roster: Path | None = None
    """File with the endpoints of members, for late joiners."""
    late: bool = False
    """Whether this process was restarted after the job began; it never leads from the start."""

    def of_join(self, number: int) -> LaunchContext:
        """The context of a later join() of the same processes; all processes call join() in the same order."""
        if number == 0:
            return self
        roster = self.roster.with_name(f"{self.roster.stem}-join{number}.json") if self.roster is not None else None
        return replace(self, session=f"{self.session} join {number}", roster=roster)


def launch_context(env: Mapping[str, str] = os.environ) -> LaunchContext:
    """What the launcher says; a process without a launcher is alone."""
    rank = number_of(env, RANKS, otherwise=0)
    size = launched_size(env)
    roster = Path(env[variables.ROSTER]) if variables.ROSTER in env else None
    secret = given_secret(env)
    if variables.JOIN in env:
        host, _, port = env[variables.JOIN].rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= MOST_PORT):
            raise InputError(f"{variables.JOIN} is {env[variables.JOIN]!r}, expected host:port")
        session = _session(env, port)
        return LaunchContext(rank, size, host, int(port), secret, session, roster=roster, late=variables.LATE in env)
    if size == 1:
        return LaunchContext(0, 1, "127.0.0.1", 0, secret, roster=roster)
    if "MASTER_ADDR" not in env or "MASTER_PORT" not in env:
        raise InputError(
            f"{size} processes were started, but there is no rendezvous",
            hint="start them with torchrun or `paceline train`, or set MASTER_ADDR and MASTER_PORT",
        )
    meeting = (env["MASTER_ADDR"], number_of(env, ("MASTER_PORT",), otherwise=0, most=MOST_PORT))
    if env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return LaunchContext(rank, size, *meeting, secret, _session(env, str(meeting[1])), roster=roster)
    session = _session(env, str(meeting[1]), "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    return LaunchContext(rank, size, *meeting, secret or local_secret(env), session, torchrun=True, roster=roster)


def _session(env: Mapping[str, str], port: str, *more: str) -> str:
    """Distinguishes this group from other groups and jobs with the same secret.

    The port of the rendezvous is the same on all ranks; the name of its host may be spelled in several ways.
    """
    texts = [env.get(name, "") for name in (variables.GROUP, *more)]
    return f"port {int(port)} {hashlib.sha256(os.fsencode(chr(10).join(texts))).hexdigest()[:16]}"


def launched_size(env: Mapping[str, str] = os.environ) -> int:
    """Processes of this group that the launcher has started."""
    return number_of(env, SIZES, otherwise=1, least=1)


def mpi_size(env: Mapping[str, str] = os.environ) -> int:
    """Processes that mpirun has started, by its own count; 1 without mpirun."""
    return max(number_of(env, (name,), otherwise=1, least=1) for name in MPI_SIZES)


def number_of(
    env: Mapping[str, str], names: Sequence[str], *, otherwise: int, least: int = 0, most: int = MOST_RANKS
) -> int:
    """The value of the first of these variables that is set."""
    name = next((name for name in names if name in env), None)
    if name is None:
        return otherwise
    text = env[name].strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and least <= int(text) <= most):
        raise InputError(f"{name} is {env[name][:40]!r}, expected a number from {least} to {most}")
    return int(text)


def only_mpi_knows(env: Mapping[str, str] = os.environ) -> bool:
    """Whether mpirun has started several processes and no variable has a rendezvous."""
    told = variables.JOIN in env or ("MASTER_ADDR" in env and "MASTER_PORT" in env)
    return not told and mpi_size(env) > 1


def meet(start: LaunchContext, timeouts: Timeouts) -> Member:
    """Join the job as a member; the caller then waits for the first view."""
    _check_alone(start)
    address = _own_address(start.host)
    port = start.port if start.rank == 0 and not start.torchrun else 0
    server = _listen(address, port, late=start.late)
    endpoint, secret = (start.host, start.port), start.secret
    if start.torchrun:
        endpoint = _through_torchrun(start, server)
    if secret is None:
        if start.size > 1:
            raise InputError(
                "the job has no secret", hint=f"set {variables.SECRET} to the same long random text on every process"
            )
        secret = secrets.token_hex(32).encode()
    identity = f"rank{start.rank}-{secrets.token_hex(3)}"
    peer = Peer(identity, start.rank, address, server.getsockname()[1])
    member = Member(server, secret, peer=peer, timeouts=timeouts, session=start.session)
    first = start.size if start.rank == 0 and not start.late else None
    member.start(endpoint, first=first, roster=start.roster)
    _OPEN[start.host, start.port] = member
    return member


def _check_alone(start: LaunchContext) -> None:
    """Refuse a second open join() on every rank; otherwise only rank 0 would fail, because its port is taken."""
    before = _OPEN.get((start.host, start.port))
    if start.size > 1 and not start.torchrun and before is not None and not before.machine.ended:
        raise InputError(
            f"join() was called while an earlier join() is still open; both use {start.host}:{start.port}",
            hint="join one nn.ModuleList of both models, with a list of their optimizers; or begin the second after "
            "the `with` block of the first; under torchrun several may be open",
        )


def _listen(address: str, port: int, *, late: bool) -> socket.socket:
    """Listen on the interface of the job only; a late joiner may use any port, because the roster lists it."""
    try:
        return socket.create_server((address, port), backlog=128)
    except OSError as error:
        if late:
            return socket.create_server((address, 0), backlog=128)
        raise InputError(
            f"the rendezvous of the ranks is {address}:{port}, where this process cannot listen: {error.strerror}",
            hint="another process has that port: torch.distributed.init_process_group() in the same script takes "
            "MASTER_PORT as well and is not needed, join() connects the ranks; a join() before this one has it until "
            "its `with` block ends; else choose another MASTER_PORT",
        ) from error


def _through_torchrun(start: LaunchContext, server: socket.socket) -> Endpoint:
    """The endpoint of rank 0 through torchrun's store. Any process can write to the store, so it comes with a proof."""
    assert start.secret is not None, "torchrun's ranks have a secret"
    store = dist.TCPStore(start.host, start.port, is_master=False)
    key = f"paceline/{start.session}/endpoint"
    if start.rank == 0:
        own = server.getsockname()
        store.set(key, seal_endpoint(start.secret, start.session, f"{own[0]}:{own[1]}"))
        return (own[0], own[1])
    deadline = time.monotonic() + FORGED_TIMEOUT
    while True:
        found = unseal_endpoint(start.secret, start.session, store.get(key).decode(errors="replace"))
        if found is not None:
            host, _, port = found.rpartition(":")
            return (host, int(port))
        if time.monotonic() > deadline:
            raise InputError(
                "rank 0 and this process have different secrets, or another process writes to torchrun's store",
                hint=f"set {variables.SECRET} to the same value on every host",
            )
        time.sleep(0.1)


def _own_address(host: str) -> str:
    """The address of the interface that leads to the rendezvous."""
    given = os.environ.get(variables.ADDRESS)
    if given:
        return given
    try:
        resolved = socket.gethostbyname(host)
        if ipaddress.ip_address(resolved).is_loopback:
            return resolved
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((resolved, 9))
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"the rendezvous of the ranks is {host[:80]!r}, which this host cannot find or reach: {error}",
            hint=f"give MASTER_ADDR or {variables.JOIN} an address, or {variables.ADDRESS} this host's own",
        ) from error
