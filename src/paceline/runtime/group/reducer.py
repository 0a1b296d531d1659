"""Sums gradients over the ranks in buckets, while the backward pass computes further gradients.

Each gradient is multiplied by the weight of the rank when it is copied into a bucket, as DistributedDataParallel
multiplies by 1 / ranks: with equal shares both send the same values. After the exchange, gradients are views into the
buckets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from paceline.cost.buckets import bucket_members, fill_buckets
from paceline.errors import InputError
from paceline.runtime.group.wire import Wire

__all__ = ["NOTES", "Reducer"]

NOTES = 7
"""Number of values that each rank sends with its gradients."""


class _Bucket:
    """Several gradients in one contiguous buffer."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, more: int = 0) -> None:
        """`more`: number of values that are sent after the gradients."""
        first = parameters[0]
        total = sum(parameter.numel() for parameter in parameters)
        self.buffer = torch.zeros(total + more, dtype=first.dtype, device=first.device)
        self.parameters = parameters
        self.views = []
        offset = 0
        for parameter in parameters:
            self.views.append(self.buffer[offset : offset + parameter.numel()].view(parameter.shape))
            offset += parameter.numel()
        self.missing = len(parameters)
        self.wait: Callable[[], None] | None = None

    def fill(self, weight: float) -> None:
        """Copy weighted gradients into the buffer; a parameter without gradient counts as zero."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad.is_sparse:
                raise InputError(
                    f"a parameter of shape {tuple(parameter.shape)} has a sparse gradient; ranks sum dense ones only",
                    hint="make its layer with sparse=False",
                )
            else:
                torch.mul(parameter.grad, weight, out=view)


def _laid_out(view: Tensor, parameter: nn.Parameter) -> Tensor:
    """A summed gradient with the strides of its parameter, which fused optimizers take for granted."""
    if not isinstance(parameter, Tensor) or view.stride() == parameter.stride():
        return view
    return torch.empty_like(parameter).copy_(view)


class Reducer:
    """The exchange of the gradients of one model in one view of the group."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], wire: Wire, *, limits: Sequence[float], prompt: bool = False
    ) -> None:
        """`prompt`: send the last bucket, for which all ranks wait, in as few messages as possible, with the notes.

        Otherwise messages are those of DistributedDataParallel, and notes are sent in a separate message.
        """
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._wire, self._prompt = wire, prompt
        self._weight = 0.0
        self._armed = False
        self._unused: list[int] = []
        self._complete = [False] * len(self._parameters)
        """Whether the gradient of each parameter has been added to in this step."""
        self._whole: bool | None = None
        """Whether each gradient is added to once in a backward pass, and is then complete; None before the first."""
        self._began = 0.0
        self.ready_seconds = [0.0] * len(self._parameters)
        """Seconds from the begin of the step until each gradient was ready, in the newest step."""
        self._limits = tuple(limits)
        self.arrange(list(reversed(bucket_members(fill_buckets(self.sizes, self._limits)))))
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._hook(index))
            for index, parameter in enumerate(self._parameters)
        ]

    @property
    def sizes(self) -> list[int]:
        """Bytes of each gradient."""
        return [self._size(index) for index in range(len(self._parameters))]

    def arrange_as_ready(self, ready: Sequence[float]) -> None:
        """Fill buckets of the same sizes in the order in which gradients became ready."""
        order = sorted(range(len(ready)), key=lambda index: (ready[index], -index))
        last = fill_buckets([self._size(index) for index in order], self._limits)
        self.arrange([[order[i] for i in bucket] for bucket in bucket_members(last)])

    def arrange(self, buckets: Sequence[Sequence[int]]) -> None:
        """Use these buckets from now on; each bucket has gradients of one data type."""
        pure = [part for bucket in buckets for part in self._by_type(bucket)]
        *early, last = [[self._parameters[index] for index in bucket] for bucket in pure]
        ranks = self._wire.size
        # The notes of each rank, and the number of ranks that have not used every parameter.
        numbers = NOTES * ranks + 1
        along = numbers if self._prompt and last[0].dtype in (torch.float32, torch.float64) else 0
        self._buckets = [*map(_Bucket, early), _Bucket(last, more=along)]
        self._notes = self._buckets[-1].buffer[-along:] if along else torch.zeros(numbers, dtype=torch.float64)
        self._apart = not along
        self._bucket_of = {index: bucket for bucket, part in zip(self._buckets, pure, strict=True) for index in part}
        self.layout = [list(part) for part in pure]

    def begin(self, weight: float, *, step_began: float, notes: Sequence[float]) -> None:
        """Exchange the weighted gradients of the next backward pass, which is the last of this step, and the notes.

        The weight of a rank without samples is 0.
        """
        self._weight, self._armed, self._began = weight, True, step_began
        self._complete = [False] * len(self._parameters)
        self._notes.zero_()
        for number, note in enumerate(notes):
            self._notes[number * self._wire.size + self._wire.rank] = note
        self._next = 0
        for bucket in self._buckets:
            bucket.missing, bucket.wait = len(bucket.parameters), None

    def flush(self) -> None:
        """Send the buckets that the backward pass did not complete."""
        self._armed = False
        if self._whole is None and any(self._complete):
            self._whole = True
        self._unused = [index for index, parameter in enumerate(self._parameters) if parameter.grad is None]
        if self._unused and self._weight:
            self._notes[-1] = 1.0
        while self._next < len(self._buckets):
            self._send()

    def finish(self) -> None:
        """Wait for all buckets. Each gradient is then the weighted sum, or None if no rank used the parameter."""
        for bucket in self._buckets:
            assert bucket.wait is not None
            bucket.wait()
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                parameter.grad = _laid_out(view, parameter)
        if self._apart:
            self._wait_for_notes()
        if float(self._notes[-1]) > 0:
            self._drop_unused()

    def _drop_unused(self) -> None:
        """Remove gradients of parameters that no rank used, so that the optimizer applies no decay to them."""
        used = torch.ones(len(self._parameters))
        used[self._unused] = 0.0
        self._wire.all_reduce(used)()
        for parameter, users in zip(self._parameters, used.tolist(), strict=True):
            if not users:
                parameter.grad = None

    def noted(self) -> list[list[float]]:
        """The notes sent with the gradients of this step: a list of the first values of all ranks, and so on."""
        ranks, notes = self._wire.size, self._notes.tolist()
        return [notes[number * ranks : (number + 1) * ranks] for number in range(NOTES)]

    def close(self) -> None:
        """Remove the hooks from the model."""
        self._armed = False
        for handle in self._handles:
            handle.remove()

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        def ready(_: Tensor) -> None:
            if not self._armed:
                return
            self.ready_seconds[index] = time.perf_counter() - self._began
            if self._complete[index]:
                self._add_again(index)
                return
            self._complete[index] = True
            self._bucket_of[index].missing -= 1
            while self._whole and self._next < len(self._buckets) and self._buckets[self._next].missing == 0:
                self._send()

        return ready

    def _add_again(self, index: int) -> None:
        """A gradient is added to again, as by reentrant checkpoints around the same layer: from now on buckets are sent
        after the backward pass."""
        self._whole = False
        if self._buckets.index(self._bucket_of[index]) < self._next:
            raise InputError(
                f"a gradient of shape {tuple(self._parameters[index].shape)} was added to after it was sent",
                hint="torch.utils.checkpoint with use_reentrant=False, where several checkpoints share a layer",
            )

    def _send(self) -> None:
        """Send the next bucket.

        Every rank sends buckets in the same order, whichever is filled first, because collectives match by call order.
        """
        bucket = self._buckets[self._next]
        self._next += 1
        bucket.fill(self._weight)
        last = self._next == len(self._buckets)
        promptly = last and self._prompt
        bucket.wait = (self._wire.all_reduce_promptly if promptly else self._wire.all_reduce)(bucket.buffer)
        if last and self._apart:
            self._wait_for_notes = self._wire.all_reduce(self._notes)

    def _size(self, index: int) -> int:
        parameter = self._parameters[index]
        return parameter.numel() * parameter.element_size()

    def _by_type(self, bucket: Sequence[int]) -> list[list[int]]:
        kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for index in bucket:
            parameter = self._parameters[index]
            kinds.setdefault((parameter.dtype, parameter.device), []).append(index)
        return list(kinds.values())
