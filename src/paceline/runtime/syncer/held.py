"""The elements of the exchanged parameters that a rank holds: all of them, or the rows of its shards.

The elements of all trained parameters are sent to the syncer as one vector. A rank of a sharded unit holds spans of it.
Only the first rank of the group holds the whole vector, and only during an exchange. Inside the group the vector is
sent in pieces, so that other ranks need memory for their own spans and for one piece.
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
"""Number of elements in one message."""


class HeldNumbers:
    """The elements of some parameters that this rank holds, in the order of the parameters."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self.total = sum(parameter.numel() for parameter in parameters)
        """Number of elements of all parameters."""
        self.sharded = any(is_sharded(parameter) for parameter in parameters)
        self._spans = list(_spans(self._parameters)) if self.sharded else [(0, self.total)]
        self.count = sum(end - begin for begin, end in self._spans)
        """Number of elements that this rank holds."""

    def read(self) -> Tensor:
        """A copy of the elements of this rank."""
        return torch.cat([local.reshape(-1).cpu() for local in self._locals()])

    def write(self, numbers: Tensor) -> None:
        """Assign these values to the parameters."""
        for local, part in zip(self._locals(), self._parts(numbers), strict=True):
            local.copy_(part.view_as(local))

    def tensors(self, numbers: Tensor) -> list[Tensor]:
        """The elements as tensors of the shapes of the parameters, for states; sharded if the parameters are."""
        parts = zip(self._parameters, self._locals(), self._parts(numbers), strict=True)
        return [
            shard_like(part.view_as(local), parameter) if is_sharded(parameter) else part.view_as(local)
            for parameter, local, part in parts
        ]

    def numbers_of(self, tensors: Sequence[Tensor]) -> Tensor:
        """The elements of this rank, from whole tensors."""
        own = [own_rows(tensor, like) for tensor, like in zip(tensors, self._parameters, strict=True)]
        return torch.cat([local_rows(tensor).reshape(-1).cpu() for tensor in own])

    def put(self, numbers: Tensor, piece: Tensor, at: int) -> None:
        """Copy elements of this rank into a piece of the vector that begins at `at`."""
        for mine, there in self._overlaps(at, at + len(piece)):
            piece[there] = numbers[mine]

    def pick(self, piece: Tensor, at: int, numbers: Tensor) -> None:
        """Copy the elements of this rank out of a piece of the vector that begins at `at`."""
        for mine, there in self._overlaps(at, at + len(piece)):
            numbers[mine] = piece[there]

    def _overlaps(self, begin: int, end: int) -> Iterator[tuple[slice, slice]]:
        """Overlaps of the rank's spans with a piece: slices of the rank's elements, and slices of the piece."""
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
    """The whole vector on the first rank of the wire; `speaker` has the ranks of the unit of that rank."""
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
    """The elements of this rank, from the whole vector on the first rank of the wire."""
    own = torch.empty(held.count)
    for at in range(0, held.total, PIECE):
        size = min(PIECE, held.total - at)
        piece = torch.empty(size) if whole is None else whole[at : at + size]
        wire.broadcast(piece, 0)
        held.pick(piece, at, own)
    return own
