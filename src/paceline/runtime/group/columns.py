"""Exchange of gradients between units, some of them sharded: each part is summed over the ranks that hold it.

A column consists of one rank of each unit, and of the parts of parameters that these ranks hold. With units [0, 1] and
[2], ranks 0 and 2 sum the first rows of every parameter, and ranks 1 and 2 the other rows. Each column has its own
wire and `Reducer`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paceline.runtime.group.reducer import NOTES, Reducer
from paceline.runtime.group.shards import Unit, local_rows, rows_of
from paceline.runtime.group.wire import Broken, Wire

__all__ = ["ColumnReducer", "Columns", "columns_of", "complete_units"]

Part = tuple[int, int, int]
"""Index of a parameter, and begin and end of a range of elements of the whole parameter."""
Columns = dict[tuple[int, ...], list[Part]]
"""The parts that each column sums; a column is a tuple of ranks, one of each unit."""


def complete_units(
    firsts: Sequence[int], indices: Sequence[int], counts: Sequence[int], *, mine: Unit, rank: int
) -> list[list[int]]:
    """The ranks of each unit in the order of their shards, from the report of each rank.

    Ranks of a unit that has lost a rank cannot continue. On the other ranks this view ends, and the next view is
    formed without that unit.
    """
    units: dict[Any, list[tuple[int, int]]] = {}
    for number, (first, index) in enumerate(zip(firsts, indices, strict=True)):
        units.setdefault(first if first >= 0 else ("alone", number), []).append((index, number))
    ordered = [[number for _, number in sorted(members)] for members in units.values()]
    for unit in ordered:
        if len(unit) != counts[unit[0]] and rank in unit:
            raise mine.lost()
    if any(len(unit) != counts[unit[0]] for unit in ordered):
        raise Broken("ranks that hold shards of a lost unit leave")
    return ordered


def columns_of(units: Sequence[Sequence[int]], shapes: Sequence[torch.Size]) -> Columns:
    """The columns: which ranks sum which parts of the parameters."""
    columns: Columns = {}
    for number, shape in enumerate(shapes):
        rows = shape[0] if shape else 1
        width = shape.numel() // max(1, rows)
        cuts = sorted({rows_of(rows, len(unit), index)[0] for unit in units for index in range(len(unit))} | {rows})
        for begin, end in itertools.pairwise(cuts):
            owners = tuple(unit[begin // -(-rows // len(unit))] for unit in units)
            columns.setdefault(owners, []).append((number, begin * width, end * width))
    return columns


def _own(part: Part, shape: torch.Size, unit: Unit) -> tuple[int, int]:
    """Begin and end of a part, relative to the first element that this rank holds."""
    _, begin, end = part
    rows = shape[0] if shape else 1
    before = rows_of(rows, unit.ranks, unit.index)[0] * (shape.numel() // max(1, rows))
    return begin - before, end - before


class _Piece:
    """A part of a parameter that this rank holds; a `Reducer` treats it as a parameter."""

    requires_grad = True

    def __init__(self, parameter: nn.Parameter, begin: int, end: int, failed: list[Broken]) -> None:
        """`begin`, `end`: range of the elements that this rank holds."""
        self._parameter, self._begin, self._end, self._failed = parameter, begin, end, failed
        self.dtype, self.device, self.shape = parameter.dtype, parameter.device, torch.Size([end - begin])

    def numel(self) -> int:
        """Number of elements."""
        return self._end - self._begin

    def element_size(self) -> int:
        """Bytes of one element."""
        return self._parameter.element_size()

    @property
    def grad(self) -> Tensor | None:
        """The gradient of this part."""
        gradient = self._parameter.grad
        return None if gradient is None else local_rows(gradient).reshape(-1)[self._begin : self._end]

    @grad.setter
    def grad(self, total: Tensor | None) -> None:
        if total is None:
            self._parameter.grad = None
            return
        parameter, old = self._parameter, self._parameter.grad
        if old is None or not local_rows(old).is_contiguous():
            parameter.grad = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
            if old is not None:
                parameter.grad.copy_(old)
        local_rows(parameter.grad).view(-1)[self._begin : self._end] = total

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> Any:
        """Register a hook that FSDP2 calls during its backward pass. The backward pass must not be interrupted, so
        the hook stores a `Broken` error for later."""

        def guarded(parameter: Tensor) -> None:
            try:
                if not self._failed:
                    hook(parameter)
            except Broken as error:
                self._failed.append(error)

        return self._parameter.register_post_accumulate_grad_hook(guarded)


class ColumnReducer:
    """The exchange of the columns of this rank, with the methods of a `Reducer`."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        wire: Wire,
        columns: Columns,
        connect: Callable[[int, tuple[int, ...]], Wire],
        unit: Unit,
        **how: Any,
    ) -> None:
        """`wire`: connects all ranks, for their notes; `connect`: makes a wire for the ranks of a column."""
        self._wire, self._failed = wire, list[Broken]()
        self._notes = torch.zeros(NOTES, wire.size, dtype=torch.float64)
        self._norms = torch.zeros(len(columns), dtype=torch.float64)
        self.sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
        """Bytes of each gradient, summed over all shards."""
        self._columns: list[tuple[list[int], Reducer]] = []
        self._summed: list[tuple[int, list[_Piece]]] = []
        """Columns whose norm this rank contributes, by number, and their pieces."""
        for number, (owners, parts) in enumerate(columns.items()):
            if wire.rank not in owners:
                continue
            pieces = [
                _Piece(parameters[part[0]], *_own(part, parameters[part[0]].shape, unit), self._failed)
                for part in parts
            ]
            self._columns.append(([part[0] for part in parts], Reducer(pieces, connect(number, owners), **how)))
            if wire.rank == owners[0]:
                self._summed.append((number, pieces))

    @property
    def layout(self) -> list[list[int]]:
        """The buckets of all columns."""
        return [bucket for _, reducer in self._columns for bucket in reducer.layout]

    @property
    def ready_seconds(self) -> list[float]:
        """Seconds from the begin of the step until each gradient was ready, in the newest step."""
        latest = [0.0] * len(self.sizes)
        for numbers, reducer in self._columns:
            for number, seconds in zip(numbers, reducer.ready_seconds, strict=True):
                latest[number] = max(latest[number], seconds)
        return latest

    def arrange_as_ready(self, ready: Sequence[float]) -> None:
        """Fill buckets of the same sizes in the order in which gradients became ready."""
        for numbers, reducer in self._columns:
            reducer.arrange_as_ready([ready[number] for number in numbers])

    def arrange(self, buckets: Sequence[Sequence[int]]) -> None:
        """Use these buckets of parameters from now on."""
        for numbers, reducer in self._columns:
            places: dict[int, list[int]] = {}
            for place, number in enumerate(numbers):
                places.setdefault(number, []).append(place)
            own = [[place for number in bucket for place in places.get(number, [])] for bucket in buckets]
            reducer.arrange([bucket for bucket in own if bucket])

    def begin(self, weight: float, *, step_began: float, notes: Sequence[float]) -> None:
        """Exchange the gradients of the next backward pass, which is the last of this step."""
        self._failed.clear()
        self._notes.zero_()
        self._notes[: len(notes), self._wire.rank] = torch.tensor(notes, dtype=torch.float64)
        for _, reducer in self._columns:
            reducer.begin(weight, step_began=step_began, notes=())

    def flush(self) -> None:
        """Send the buckets that the backward pass did not complete."""
        if self._failed:
            raise self._failed[0]
        for _, reducer in self._columns:
            reducer.flush()
        self._wait_for_notes = self._wire.all_reduce(self._notes)

    def finish(self) -> None:
        """Wait for all columns; afterwards each gradient on this rank is the sum over all ranks."""
        for _, reducer in self._columns:
            reducer.finish()
        self._wait_for_notes()

    def norm(self) -> float:
        """The norm of the whole gradient; equal on all ranks, whichever parts they hold."""
        self._norms.zero_()
        for number, pieces in self._summed:
            found = [piece.grad.double().square().sum() for piece in pieces if piece.grad is not None]
            self._norms[number] = float(sum(found))
        self._wire.all_reduce(self._norms)()
        return float(self._norms.sum()) ** 0.5

    def noted(self) -> list[list[float]]:
        """The notes of all ranks that were sent with the gradients of this step."""
        noted: list[list[float]] = self._notes.tolist()
        return noted

    def close(self) -> None:
        """Remove the hooks from the model."""
        for _, reducer in self._columns:
            reducer.close()
