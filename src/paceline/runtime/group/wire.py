"""The collectives of one view of the group: all-reduce and broadcast over Gloo, which can be interrupted.

A process group is used for one view only. When a view fails, the connections of its process group are shut down, so
that pending operations end. Operations that do not end are abandoned together with their buffers, because a peer that
resumes later may still write into this memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.cost.buckets import LinkCost, fit_link
from paceline.runtime.group.gloo_sockets import Endpoints, cut_connections, endpoints_of, ignore_callers
from paceline.runtime.members.member import Member

__all__ = ["BoardStore", "Broken", "Wire"]


class BoardStore(dist.Store):
    """The store for Gloo's rendezvous, over the authenticated connection to the leader."""

    def __init__(self, member: Member, view: int, prefix: str) -> None:
        super().__init__()
        self._member, self._view, self._prefix = member, view, prefix
        self.seen: list[bytes] = []
        """Every value that was written or read; Gloo's values are addresses."""

    def set(self, key: str, value: Any) -> None:
        """Write a value to the board."""
        content = value.encode() if isinstance(value, str) else bytes(value)
        self.seen.append(content)
        self._member.put(self._view, self._prefix + key, content)

    def get(self, key: str) -> bytes:
        """Wait for a value and return it."""
        value = self._member.read(self._view, self._prefix + key)
        if value is None:
            raise RuntimeError("the view ended before its members were connected")
        self.seen.append(value)
        return value

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys have values."""
        for key in keys:
            self.get(key)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys have values."""
        return all(self._member.has(self._view, self._prefix + key) for key in keys)

    def set_timeout(self, timeout: timedelta) -> None:
        """No effect: the end of the view is the only time limit."""


POLL = timedelta(milliseconds=100)
"""Interval of the check whether the view has ended; the longest delay of an interruption."""
OPERATION_TIMEOUT = timedelta(hours=1)
"""Gloo's own timeout, far above any step, because failures are detected by heartbeats."""
PROBE_BYTES = 1 << 20
"""Largest message of the probe: it saturates a fast link, and takes a tenth of a second at 100 Mb/s."""
PINGS = 4
"""Number of messages; the fastest counts, because other load may delay the others."""
CONNECT_TIMEOUT, CONNECT_EACH = timedelta(seconds=5), timedelta(seconds=0.5)
"""Time limits to connect all ranks of a view, and to connect one rank; Gloo tries four times. If a rank dies meanwhile,
an abandoned thread keeps its descriptors for this long."""
CONNECT_POLL = 0.02
"""Interval in seconds of the check whether the view has ended while its ranks connect."""
PING_ENOUGH = 0.3
"""Seconds after which the measurement of a slow link is good enough."""
PING_TIMEOUT = timedelta(seconds=10)
"""Timeout of one message; a barrier before it ensures that the peer is ready."""
_LEFT_BEHIND: list[tuple[Any, list[Any]]] = []
"""Process groups with operations that did not end, and their buffers. They are kept until the operations end: a peer
that resumes may still write into the buffers, so their memory must not be reused."""
CUT_TIMEOUT = 1.0
"""Seconds for operations to end after their connections were shut down; Gloo's threads notice at once."""


class Broken(Exception):
    """The view of the group has ended."""


class Wire:
    """The collectives between the ranks of one view; all ranks call its methods in the same order."""

    _swaps = True
    """Whether two ranks sum by a pairwise exchange, which takes one message where Gloo's all-reduce takes two."""
    _endpoints: Endpoints = frozenset()
    """Endpoints of the Gloo listeners of all ranks; empty for other transports."""

    def __init__(
        self, store: Any, rank: int, size: int, *, address: str, interrupted: threading.Event, nccl: bool = False
    ) -> None:
        self.rank, self.size = rank, size
        self._interrupted = interrupted
        self._group: Any = _connect(store, rank, size, address, interrupted, nccl=nccl) if size > 1 else None
        self._endpoints = endpoints_of(getattr(store, "seen", ()))
        ignore_callers(self._endpoints)
        self._pending: list[Any] = []
        self._spare: dict[tuple[int, torch.dtype], list[Tensor]] = {}
        """Free buffers by size and data type."""

    def all_reduce(self, tensor: Tensor) -> Callable[[], None]:
        """Start summing a tensor over the ranks; the returned function waits for it."""
        if self._group is None:
            return lambda: None
        tensor = _as_real(tensor)
        if self.size == 2 and self._swaps and tensor.device.type == "cpu":
            return self._swapped(tensor)
        return self._started(lambda: self._all_reduce(self._group, tensor), tensor)

    def _swapped(self, tensor: Tensor) -> Callable[[], None]:
        count = tensor.numel()
        spare = self._spare.setdefault((count, tensor.dtype), [])
        taken, sizes = spare.pop() if spare else torch.empty(count, dtype=tensor.dtype), [count, count]
        sizes[self.rank] = 0
        wait = self._started(lambda: self._exchange(taken, tensor.view(-1), sizes, sizes), (taken, tensor))

        def finish() -> None:
            wait()
            tensor.add_(taken.view_as(tensor))
            spare.append(taken)

        return finish

    def all_reduce_promptly(self, tensor: Tensor) -> Callable[[], None]:
        """The same in two messages one after the other, where Gloo's ring of n ranks takes 2 (n - 1).

        Every rank receives one part of the tensor from all ranks, sums it, and sends the sum to all. The second message
        is sent when the returned function is called, so this does not overlap with computation.
        """
        if self._group is None or self.size < 3 or tensor.device.type != "cpu" or tensor.numel() < self.size:
            return self.all_reduce(tensor)
        tensor = _as_real(tensor)
        parts = [len(part) for part in tensor.tensor_split(self.size)]
        mine = parts[self.rank]
        taken = torch.empty(self.size * mine, dtype=tensor.dtype)
        wait = self._started(lambda: self._exchange(taken, tensor, [mine] * self.size, parts), (taken, tensor))

        def finish() -> None:
            wait()
            total = taken.view(self.size, mine).sum(0).repeat(self.size)
            self._started(lambda: self._exchange(tensor, total, parts, [mine] * self.size), (tensor, total))()

        return finish

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Broadcast the tensor of the source."""
        if self._group is not None:
            self._started(lambda: self._broadcast(self._group, tensor, source), tensor)()

    def _all_reduce(self, group: Any, tensor: Tensor) -> Any:
        return _serving(group, tensor).allreduce([tensor])

    def _broadcast(self, group: Any, tensor: Tensor, source: int) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        return _serving(group, tensor).broadcast([tensor], options)

    def _exchange(self, into: Tensor, out: Tensor, into_sizes: list[int], out_sizes: list[int]) -> Any:
        """Send a part of a tensor to every rank, and receive one from every rank."""
        return self._group["cpu"].alltoall_base(into, out, into_sizes, out_sizes, dist.AllToAllOptions())

    def barrier(self) -> None:
        """Barrier: return when every rank has called this method."""
        self.all_reduce(torch.zeros(1))()

    def probe(self, largest: int) -> LinkCost:
        """The measured cost of an all-reduce; all ranks get the value of the slowest rank."""
        small, large = 1 << 10, max(1 << 12, min(PROBE_BYTES, largest))
        (few, effort), (many, _) = self._timed(small, 8), self._timed(large, 3)
        slots = torch.zeros(self.size, 3, dtype=torch.float64)
        slots[self.rank] = torch.tensor([few, many, effort], dtype=torch.float64)
        self.all_reduce(slots)()
        slowest = slots.max(dim=0).values.tolist()
        return fit_link((small, slowest[0]), (large, slowest[1]), slowest[2])

    def ping(self, one: int, other: int, size: int) -> float:
        """Best one-way time in seconds of a message of `size` bytes between two ranks; 0 on all other ranks."""
        self.barrier()
        if self._group is None or self.rank not in (one, other):
            return 0.0
        tensor = torch.zeros(max(1, size // 4))
        asks, peer = self.rank == one, other if self.rank == one else one
        best, spent = float("inf"), 0.0
        for number in range(PINGS):
            if asks:  # only this side decides when to stop: the first element of a message marks the last one
                tensor[0] = float(number == PINGS - 1 or spent > PING_ENOUGH)
            begin = time.perf_counter()
            for sends in (asks, not asks):
                self._message(tensor, peer, sends=sends)
            seconds = time.perf_counter() - begin
            best, spent = min(best, seconds / 2), spent + seconds
            if tensor[0]:
                break
        return best

    def tell(self, text: str, source: int) -> str:
        """Broadcast a string of the source."""
        data = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
        length = torch.tensor([len(data)])
        self.broadcast(length, source)
        content = data if self.rank == source else torch.zeros(int(length), dtype=torch.uint8)
        self.broadcast(content, source)
        return content.numpy().tobytes().decode()

    def leave(self) -> None:
        """End this view; unfinished operations are abandoned."""
        if _unfinished(self._pending):
            cut_connections(self._endpoints)
            deadline = time.monotonic() + CUT_TIMEOUT
            while _unfinished(self._pending) and time.monotonic() < deadline:
                time.sleep(0.01)
            _LEFT_BEHIND.append((self._group, self._pending))
        _LEFT_BEHIND[:] = [left for left in _LEFT_BEHIND if _unfinished(left[1])]
        self._group = None
        self._pending = []

    def _timed(self, size: int, repeats: int) -> tuple[float, float]:
        """Seconds of the fastest of several all-reduces, and their mean CPU time in this process."""
        tensor = torch.zeros(size // 4)
        self.all_reduce(tensor)()
        best, spent = float("inf"), time.process_time()
        for _ in range(repeats):
            begin = time.perf_counter()
            self.all_reduce(tensor)()
            best = min(best, time.perf_counter() - begin)
        return best, (time.process_time() - spent) / repeats

    def _message(self, tensor: Tensor, peer: int, *, sends: bool) -> None:
        """Send to or receive from one rank; Gloo cancels a message when its wait times out, so the wait is not
        divided."""
        group = _serving(self._group, tensor)
        try:
            work = (group.send if sends else group.recv)([tensor], peer, 0)
            self._pending.append((work, tensor))
            work.wait(PING_TIMEOUT)
        except RuntimeError as error:
            raise Broken(str(error)) from error

    def _started(self, start: Callable[[], Any], memory: Any) -> Callable[[], None]:
        try:
            work = start()
        except RuntimeError as error:
            raise Broken(str(error)) from error
        self._pending = [item for item in self._pending if not item[0].is_completed()]
        self._pending.append((work, memory))
        return lambda: self._wait(work)

    def _wait(self, work: Any) -> None:
        while True:
            # An operation that had ended before this wait and still raises has failed. One that ends between these two
            # lines may have succeeded although the wait timed out: the next wait tells.
            ended = work.is_completed()
            try:
                work.wait(POLL)
                return
            except RuntimeError as error:
                if ended:
                    raise Broken(str(error)) from error
            if self._interrupted.is_set():
                raise Broken("the group forms a new view")


def _as_real(tensor: Tensor) -> Tensor:
    """A view of the same memory in a data type that Gloo can sum."""
    return torch.view_as_real(tensor).view(-1) if tensor.is_complex() else tensor


def _unfinished(pending: list[Any]) -> bool:
    return any(not work.is_completed() for work, _ in pending)


def _serving(groups: dict[str, Any], tensor: Tensor) -> Any:
    """The process group for a tensor: NCCL for tensors on a GPU if it is in use, otherwise Gloo."""
    return groups.get(tensor.device.type, groups["cpu"])


def _nccl(store: Any, rank: int, size: int) -> Any:
    """An NCCL process group: operations run on streams of their own, and `wait` orders them before the model's next."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = OPERATION_TIMEOUT
    return dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, size, options)


def _connect(store: Any, rank: int, size: int, address: str, interrupted: threading.Event, *, nccl: bool) -> Any:
    """Make the process group in a separate thread, so that a peer that fails meanwhile does not block this rank."""
    made: list[Any] = []
    failed: list[str] = []

    def make() -> None:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        # The timeout for connecting is shorter than that of operations; older versions of PyTorch have only one for
        # both.
        two_timeouts = hasattr(dist.ProcessGroupGloo, "set_timeout")
        options._timeout = CONNECT_TIMEOUT + size * CONNECT_EACH if two_timeouts else OPERATION_TIMEOUT
        try:
            groups = {"cpu": dist.ProcessGroupGloo(store, rank, size, options)}
            if two_timeouts:
                groups["cpu"].set_timeout(OPERATION_TIMEOUT)
            made.append(groups | ({"cuda": _nccl(store, rank, size)} if nccl else {}))
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits
            failed.append(str(error))  # only the text: the frames would keep Gloo's threads

    thread = threading.Thread(target=make, daemon=True, name="paceline-connect")
    thread.start()
    while thread.is_alive():
        thread.join(CONNECT_POLL)
        if interrupted.is_set():
            raise Broken("the group changed while it was being connected")
    if failed:
        raise Broken(failed[0])
    return made[0]
