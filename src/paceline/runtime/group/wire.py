"""The collectives of one view of the group: all-reduce and broadcast on Gloo, interruptible while they wait.

A view's process group is never reused. When a view fails, the connections of its group are shut down, so that pending
operations end. Operations that do not end are abandoned with their buffers: a peer that wakes up later writes into
memory that is no longer read.
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
    """What Gloo's rendezvous needs of a store, over the authenticated connection to the leader."""

    def __init__(self, member: Member, view: int, prefix: str) -> None:
        super().__init__()
        self._member, self._view, self._prefix = member, view, prefix
        self.seen: list[bytes] = []
        """Every value that was written or read, of which Gloo's are addresses."""

    def set(self, key: str, value: Any) -> None:
        """Publish a value."""
        content = value.encode() if isinstance(value, str) else bytes(value)
        self.seen.append(content)
        self._member.put(self._view, self._prefix + key, content)

    def get(self, key: str) -> bytes:
        """Wait for a value."""
        value = self._member.read(self._view, self._prefix + key)
        if value is None:
            raise RuntimeError("the view ended before its members were connected")
        self.seen.append(value)
        return value

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait for all keys."""
        for key in keys:
            self.get(key)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys have values."""
        return all(self._member.has(self._view, self._prefix + key) for key in keys)

    def set_timeout(self, timeout: timedelta) -> None:
        """No effect: the end of the view is the only time limit."""


POLL = timedelta(milliseconds=100)
"""Between two looks at whether the view has ended: the delay of an interruption, and no cost while a step runs."""
OPERATION_TIMEOUT = timedelta(hours=1)
"""Far above any step: failures are detected by heartbeats, not by Gloo."""
PROBE_BYTES = 1 << 20
"""Largest message of the probe: enough to fill a fast link, and a tenth of a second on one of 100 Mb/s."""
PINGS = 4
"""Number of messages, of which the fastest counts, because others may be disturbed by load."""
CONNECT_TIMEOUT, CONNECT_EACH = timedelta(seconds=5), timedelta(seconds=0.5)
"""Within which all ranks of a view connect, and for each of them; Gloo tries four times. One that dies meanwhile is
waited for in vain for so long, by a thread that nobody waits for, which has descriptors."""
CONNECT_POLL = 0.02
"""Seconds between two looks at whether the view has ended while its ranks connect."""
PING_ENOUGH = 0.3
"""Seconds after which a slow link is known well enough."""
PING_TIMEOUT = timedelta(seconds=10)
"""Timeout in seconds of one message; a barrier before it ensures that the peer is ready."""
_LEFT_BEHIND: list[tuple[Any, list[Any]]] = []
"""Process groups with operations that did not end, and their buffers. They are kept until the operations have ended: a
peer that wakes up may still write into the buffers, so that memory must not be used again."""
CUT_TIMEOUT = 1.0
"""Seconds for operations to end after their connections were cut: Gloo's threads notice at once."""


class Broken(Exception):
    """The view of the group has ended."""


class Wire:
    """The ranks of one view; every method but `wait` is called by all of them in the same order."""

    _swaps = True
    """Whether two ranks sum by a pairwise exchange: one message, where Gloo's all-reduce takes two."""
    _endpoints: Endpoints = frozenset()
    """Where the Gloo of each rank listens; other wires have none."""

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
        """Buffers that no exchange uses."""

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
        """The same in two messages, where Gloo's ring of n ranks takes 2 (n - 1), one after the other.

        Every rank sums one part of the tensor that all sent it, and sends that to all. The second message leaves when
        somebody waits for the first: good for what everybody is about to wait for, not beside computation.
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
        """A part of a tensor to every rank, and one from every rank."""
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
        """Seconds of a message of `size` bytes from one rank to another, at best; 0 on ranks that are neither."""
        self.barrier()
        if self._group is None or self.rank not in (one, other):
            return 0.0
        tensor = torch.zeros(max(1, size // 4))
        asks, peer = self.rank == one, other if self.rank == one else one
        best, spent = float("inf"), 0.0
        for number in range(PINGS):
            if asks:  # the first number of a message says whether it is the last, since only one side can decide
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
        """Broadcast a text of the source."""
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
        """The quickest of some, and what they took of this process's processor time on average."""
        tensor = torch.zeros(size // 4)
        self.all_reduce(tensor)()
        best, spent = float("inf"), time.process_time()
        for _ in range(repeats):
            begin = time.perf_counter()
            self.all_reduce(tensor)()
            best = min(best, time.perf_counter() - begin)
        return best, (time.process_time() - spent) / repeats

    def _message(self, tensor: Tensor, peer: int, *, sends: bool) -> None:
        """To or from one rank; Gloo gives a message up when its wait ends, so that cannot be cut into pieces."""
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
            # What ended before this piece of waiting and still raises has failed. What ends between the two lines has
            # timed out for us and may have succeeded: the next piece tells.
            ended = work.is_completed()
            try:
                work.wait(POLL)
                return
            except RuntimeError as error:
                if ended:
                    raise Broken(str(error)) from error
            if self._interrupted.is_set():
                raise Broken("the group is being formed anew")


def _as_real(tensor: Tensor) -> Tensor:
    """The same memory as numbers that Gloo can sum."""
    return torch.view_as_real(tensor).view(-1) if tensor.is_complex() else tensor


def _unfinished(pending: list[Any]) -> bool:
    return any(not work.is_completed() for work, _ in pending)


def _serving(groups: dict[str, Any], tensor: Tensor) -> Any:
    """NCCL for what is on a GPU where there is NCCL, Gloo for everything else."""
    return groups.get(tensor.device.type, groups["cpu"])


def _nccl(store: Any, rank: int, size: int) -> Any:
    """Ranks on GPUs; operations run on its own streams and `wait` orders them before what the model does next."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = OPERATION_TIMEOUT
    return dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, size, options)


def _connect(store: Any, rank: int, size: int, address: str, interrupted: threading.Event, *, nccl: bool) -> Any:
    """Make the process group in a thread of its own, so that a peer that fails meanwhile cannot hold us."""
    made: list[Any] = []
    failed: list[str] = []

    def make() -> None:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        # What connects may not wait for as long as what trains; older versions of PyTorch have one timeout for both.
        two_timeouts = hasattr(dist.ProcessGroupGloo, "set_timeout")
        options._timeout = CONNECT_TIMEOUT + size * CONNECT_EACH if two_timeouts else OPERATION_TIMEOUT
        try:
            groups = {"cpu": dist.ProcessGroupGloo(store, rank, size, options)}
            if two_timeouts:
                groups["cpu"].set_timeout(OPERATION_TIMEOUT)
            made.append(groups | ({"cuda": _nccl(store, rank, size)} if nccl else {}))
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits
            failed.append(str(error))  # its words: its frames would keep the threads of Gloo

    thread = threading.Thread(target=make, daemon=True, name="paceline-connect")
    thread.start()
    while thread.is_alive():
        thread.join(CONNECT_POLL)
        if interrupted.is_set():
            raise Broken("the group changed while it was being connected")
    if failed:
        raise Broken(failed[0])
    return made[0]
