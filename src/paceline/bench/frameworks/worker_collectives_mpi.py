"""One rank of a sweep of collectives that calls OpenMPI's library directly."""

from __future__ import annotations

import ctypes
import ctypes.util
import time
from collections.abc import Callable
from typing import Any

from paceline.bench.frameworks.harness import opened_job
from paceline.bench.frameworks.rendezvous import join_job

__all__ = ["MpiLibrary", "main"]

WARMUP = 3
ELEMENT = 4
_LIBRARY = "libmpi.so.40"


class MpiLibrary:
    """The MPI calls of a sweep, on the world communicator in single precision."""

    def __init__(self) -> None:
        # The library's plug-ins need its symbols to be global.
        self._library = ctypes.CDLL(ctypes.util.find_library("mpi") or _LIBRARY, mode=ctypes.RTLD_GLOBAL)
        self._world, self._float, self._sum = (self._object(n) for n in ("comm_world", "mpi_float", "op_sum"))
        self.call("MPI_Init", None, None)
        self.rank, self.size = self._number("MPI_Comm_rank"), self._number("MPI_Comm_size")

    def _object(self, name: str) -> ctypes.c_void_p:
        """The address of one of OpenMPI's predefined objects."""
        symbol = {"comm_world": "ompi_mpi_comm_world", "mpi_float": "ompi_mpi_float", "op_sum": "ompi_mpi_op_sum"}[name]
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self._library, symbol)))

    def _number(self, function: str) -> int:
        value = ctypes.c_int()
        self.call(function, self._world, ctypes.byref(value))
        return value.value

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the library."""
        code = getattr(self._library, function)(*arguments)
        if code != 0:
            raise RuntimeError(f"{function} returned {code}")

    def barrier(self) -> None:
        """Barrier: return when every rank has called this method."""
        self.call("MPI_Barrier", self._world)

    def actions(self, elements: int) -> dict[str, Callable[[], None]]:
        """Each collective as nccl-tests counts its size: the whole buffer of one rank."""
        share = max(1, elements // self.size)
        whole, other = ((ctypes.c_float * (share * self.size))() for _ in range(2))
        part, count, world, kind = (ctypes.c_float * share)(), share * self.size, self._world, self._float
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        calls: dict[str, tuple[Any, ...]] = {
            "all_reduce": ("MPI_Allreduce", whole, other, count, kind, self._sum, world),
            "reduce_scatter": ("MPI_Reduce_scatter_block", whole, part, share, kind, self._sum, world),
            "all_gather": ("MPI_Allgather", part, share, kind, whole, share, kind, world),
            "broadcast": ("MPI_Bcast", whole, count, kind, 0, world),
            "point_to_point": (
                *("MPI_Sendrecv", whole, count, kind, after, 0),
                *(other, count, kind, before, 0, world, None),
            ),
        }
        return {name: lambda words=words: self.call(*words) for name, words in calls.items()}  # type: ignore[misc]


def main() -> None:
    """Measure every collective at every size, then finalize."""
    job, rank, events = opened_job()
    events.write("phase", phase="setup")
    channel = join_job(rank, job["ranks"])
    mpi = MpiLibrary()
    if mpi.size != job["ranks"]:
        raise RuntimeError(f"MPI sees {mpi.size} ranks instead of {job['ranks']}: start them with --on mpi (OpenMPI)")
    offsets = channel.clock_offsets()
    events.write(
        "facts", versions={"mpi": _LIBRARY}, labels=[], facts={"clock_offsets_s": offsets} if rank == 0 else {}
    )
    events.write("phase", phase="measure")
    for name in job["collectives"]:
        for size in job["sizes"]:
            act = mpi.actions(max(1, size // ELEMENT))[name]
            events.write("spans", spans=_sweep(act, mpi, channel, name, size, job["seconds_per_size"]))
    events.write("done")
    mpi.call("MPI_Finalize")


def _sweep(
    act: Callable[[], None], mpi: MpiLibrary, channel: Any, name: str, size: int, seconds: float
) -> list[dict[str, Any]]:
    """Time one collective at one size repeatedly within its time limit; rank 0 decides the number of repetitions."""
    for _ in range(WARMUP):
        act()
    begin = time.perf_counter()
    act()
    count = channel.agree(max(5, min(200, int(seconds / max(time.perf_counter() - begin, 1e-5)))))
    origin, spans = time.perf_counter(), []
    for step in range(count):
        mpi.barrier()
        begin = time.perf_counter()
        act()
        elapsed = time.perf_counter() - begin
        entry = {"step": step, "phase": "aggregate", "name": name, "start_s": begin - origin, "seconds": elapsed}
        spans.append({**entry, "size_bytes": size})
    return spans


if __name__ == "__main__":
    main()
