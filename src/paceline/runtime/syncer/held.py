"""What a rank holds of the numbers that its group exchanges with others: all of them, or the rows of its shards.

The numbers of all trained parameters, one after the other, travel to the syncer. A rank of a sharded unit holds spans
of them. Only the rank that speaks for the group has the whole, and only while it does; inside the group the numbers
travel in pieces, so that another rank needs room for its own and for one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.runtime.group.shards import is_sharded, local_rows, own_rows, rows_of, shard_like

if TYPE_CHECKING:
    from paceline.runtime.group.wire import Wire

__all__ = ["HeldNumbers", "gather_numbers", "spread_numbers"]

PIECE = 4 << 20
"""Numbers of a message."""


class HeldNumbers:
    """The numbers of some parameters that this rank holds, in the order of the parameters."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self.total = sum(parameter.numel() for parameter in parameters)
        """Their number, for any holder."""
        self.sharded = any(is_sharded(parameter) for parameter in parameters)
        self._spans = list(_spans(self._parameters)) if self.sharded else [(0, self.total)]
        self.count = sum(end - begin for begin, end in self._spans)
        """How many this rank holds."""

    def read(self) -> Tensor:
        """A copy of them."""
        return torch.cat([local.reshape(-1).cpu() for local in self._locals()])

    def write(self, numbers: Tensor) -> None:
        """Give the parameters these values."""
        for local, part in zip(self._locals(), self._parts(numbers), strict=True):
            local.copy_(part.view_as(local))

    def tensors(self, numbers: Tensor) -> list[Tensor]:
        """Numbers in the form of the parameters, for states: in shards where those are."""
        parts = zip(self._parameters, self._locals(), self._parts(numbers), strict=True)
        return [
            shard_like(part.view_as(local), parameter) if is_sharded(parameter) else part.view_as(local)
            for parameter, local, part in parts
        ]

    def numbers_of(self, tensors: Sequence[Tensor]) -> Tensor:
        """The numbers of this rank, from whole tensors."""
        own = [own_rows(tensor, like) for tensor, like in zip(tensors, self._parameters, strict=True)]
        return torch.cat([local_rows(tensor).reshape(-1).cpu() for tensor in own])

    def put(self, numbers: Tensor, piece: Tensor, at: int) -> None:
        """Those that belong into a piece of all numbers, which begins `at`."""
        for mine, there in self._overlaps(at, at + len(piece)):
            piece[there] = numbers[mine]

    def pick(self, piece: Tensor, at: int, numbers: Tensor) -> None:
        """Take those that this rank holds out of a piece of all numbers."""
        for mine, there in self._overlaps(at, at + len(piece)):
            numbers[mine] = piece[there]

    def _overlaps(self, begin: int, end: int) -> Iterator[tuple[slice, slice]]:
        """Where spans and a piece meet: in the rank's own numbers, and in the piece."""
        before = 0
        for first, last in self._spans:
            low, high = max(first, begin), min(last, end)
            if low < high:
                yield slice(before + low - first, before + high - first), slice(low - begin, high - begin)
            before += last - first

    def _locals(self) -> list[Tensor]:
        return [local_rows(parameter.detach()) for parameter in self._parameters]

    def _parts(self, numbers: Tensor) -> Sequence[Tensor]:
        return numbers.split([local.numel() for local in self._locals()])


def _spans(parameters: Sequence[nn.Parameter]) -> Iterator[tuple[int, int]]:
    at = 0
    for parameter in parameters:
        begin, end = 0, len(parameter)
        if is_sharded(parameter):
            begin, end = rows_of(end, parameter.device_mesh.size(), parameter.device_mesh.get_local_rank())
        width = parameter.numel() // max(1, len(parameter))
        yield at + begin * width, at + end * width
        at += parameter.numel()


def gather_numbers(held: HeldNumbers, own: Tensor, wire: Wire, speaker: Sequence[int]) -> Tensor | None:
    """All numbers on the wire's first rank; `speaker` has the ranks of the unit to which it belongs."""
    if len(speaker) == 1:
        return own if wire.rank == 0 else None
    whole = torch.empty(held.total) if wire.rank == 0 else None
    for at in range(0, held.total, PIECE):
        piece = torch.zeros(min(PIECE, held.total - at))
        if wire.rank in speaker:
            held.put(own, piece, at)
        wire.all_reduce(piece)()
        if whole is not None:
            whole[at : at + len(piece)] = piece
    return whole


def spread_numbers(held: HeldNumbers, whole: Tensor | None, wire: Wire) -> Tensor:
    """The numbers of this rank, from all numbers on the wire's first rank."""
    own = torch.empty(held.count)
    for at in range(0, held.total, PIECE):
        size = min(PIECE, held.total - at)
        piece = torch.empty(size) if whole is None else whole[at : at + size]
        wire.broadcast(piece, 0)
        held.pick(piece, at, own)
    return own
