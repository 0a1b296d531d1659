"""The collectives of one view over MPI, for clusters whose fast network needs MPI.

MPI ends a job when one of its processes fails, so a group over MPI is balanced but not fault-tolerant. The rendezvous
also uses MPI, so that no address and no secret have to be given.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paceline import variables
from paceline.errors import InputError, Unsupported
from paceline.runtime.group.wire import Broken, Wire
from paceline.runtime.members.rendezvous import LaunchContext, mpi_size

__all__ = ["MpiWire", "mpi_launch_context"]

TEST_INTERVAL = 0.00005
"""Seconds between two tests of an operation. MPI makes progress only when it is called, and a busy loop would occupy
the core beside the computation."""
GREETING = 256
"""Size in bytes of the message with address, port and secret."""


def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise Unsupported(
            f"a rendezvous or exchange over MPI needs mpi4py and an MPI library: {error}",
            hint="pip install mpi4py, on every host; or without transport='mpi' set MASTER_ADDR, MASTER_PORT and "
            f"{variables.SECRET}",
        ) from error
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise Unsupported("this MPI was built without threads", hint="use one with MPI_THREAD_SERIALIZED or better")
    return MPI


def mpi_launch_context() -> LaunchContext:
    """The launch context of a process under mpirun; rank 0 broadcasts the rendezvous and the secret."""
    mpi = _mpi()
    world, greeting = mpi.COMM_WORLD, bytearray(GREETING)
    _check_world(world.Get_size(), mpi.Get_library_version())
    one_host = world.Split_type(mpi.COMM_TYPE_SHARED).Get_size() == world.Get_size()
    if world.Get_rank() == 0:
        address = "127.0.0.1" if one_host else _own_address()
        with socket.socket() as probe:
            probe.bind((address, 0))
            text = f"{address} {probe.getsockname()[1]} {secrets.token_hex(32)}".encode()
        greeting[: len(text)] = text
    world.Bcast(greeting, root=0)
    address, port, secret = bytes(greeting).rstrip(b"\0").decode().split()
    return LaunchContext(world.Get_rank(), world.Get_size(), address, int(port), secret.encode())


def _check_world(size: int, library: str) -> None:
    """Refuse to train if mpi4py sees fewer processes than mpirun has started."""
    if size >= mpi_size():
        return
    raise Unsupported(
        f"mpirun has started {mpi_size()} processes, of which mpi4py sees {size}: it was built for another MPI than "
        f"this mpirun's ({library.splitlines()[0].strip(chr(0))[:80]})",
        hint="use the mpirun of that MPI, or build mpi4py for this one: pip install --no-binary mpi4py mpi4py",
    )


def _own_address() -> str:
    """The address by which other hosts reach this host."""
    try:
        return os.environ.get(variables.ADDRESS) or socket.gethostbyname(socket.gethostname())
    except OSError as error:
        raise InputError(
            f"the name of this host, {socket.gethostname()!r}, has no address: {error}",
            hint=f"set {variables.ADDRESS} to the address by which the other hosts reach rank 0",
        ) from error


class MpiWire(Wire):
    """A wire over an MPI communicator of the ranks of one view."""

    _swaps = False

    def __init__(self, store: Any, rank: int, size: int, *, interrupted: threading.Event) -> None:
        self._mpi = _mpi()
        world = self._mpi.COMM_WORLD
        try:
            store.set(f"mpi {rank}", str(world.Get_rank()).encode())
            ranks = [int(store.get(f"mpi {other}")) for other in range(size)]
        except RuntimeError as error:
            raise Broken(str(error)) from error
        self.rank, self.size, self._interrupted = rank, size, interrupted
        self._group: Any = world.Create_group(world.Get_group().Incl(ranks)) if size > 1 else None
        self._pending: list[Any] = []

    def all_reduce_promptly(self, tensor: Tensor) -> Callable[[], None]:
        """The same as `all_reduce`, because MPI chooses the algorithm."""
        return self.all_reduce(tensor)

    def _all_reduce(self, group: Any, tensor: Tensor) -> Any:
        return self._begun(tensor, lambda buffer: group.Iallreduce(self._mpi.IN_PLACE, buffer))

    def _broadcast(self, group: Any, tensor: Tensor, source: int) -> Any:
        return self._begun(tensor, lambda buffer: group.Ibcast(buffer, root=source))

    def _begun(self, tensor: Tensor, start: Callable[[Any], Any]) -> _Request:
        buffer = tensor if tensor.device.type == "cpu" and tensor.is_contiguous() else tensor.cpu().contiguous()
        if buffer.dtype in (torch.float16, torch.bfloat16):
            raise Unsupported(f"MPI has no arithmetic for {buffer.dtype}", hint="use transport='gloo' or float32")
        return _Request(start(buffer.numpy()), tensor, buffer)

    def _wait(self, work: _Request) -> None:
        while not work.is_completed():
            if self._interrupted.is_set():
                raise Broken("the group forms a new view")
            time.sleep(TEST_INTERVAL)
        if work.buffer is not work.tensor:
            work.tensor.copy_(work.buffer)


class _Request:
    """A pending operation, and the memory that it uses."""

    def __init__(self, request: Any, tensor: Tensor, buffer: Tensor) -> None:
        self._request, self.tensor, self.buffer = request, tensor, buffer
        self._done = False

    def is_completed(self) -> bool:
        """Whether the operation has ended; MPI makes progress during this call."""
        self._done = self._done or bool(self._request.Test())
        return self._done
