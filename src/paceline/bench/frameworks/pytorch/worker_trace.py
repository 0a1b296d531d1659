"""Spans of exchanges in one traced step, from PyTorch's profiler on the communication threads."""

from __future__ import annotations

from math import prod
from types import TracebackType
from typing import Any

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

__all__ = ["ExchangeTrace"]

ORIGIN = "paceline: the step begins"
OTHERS = ("broadcast", "barrier", "send", "recv")
"""Names of exchanges other than gradients."""


class ExchangeTrace:
    """Profiles a block if there are several ranks, after a barrier."""

    def __init__(self) -> None:
        self._profile = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
        self._on = dist.is_initialized()

    def __enter__(self) -> ExchangeTrace:
        if self._on:
            self._profile.__enter__()
            dist.barrier()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._on:
            self._profile.__exit__(kind, error, trace)

    def begin(self) -> None:
        """Mark the start of the step, the origin of the spans."""
        if self._on:
            with record_function(ORIGIN):
                pass

    def spans(self, step: int, width: int) -> list[dict[str, Any]]:
        """One span for each exchange of gradients of `width` bytes each, in the order in which they began."""
        if not self._on:
            return []
        events = list(self._profile.events() or ())
        origin = next(event.time_range.start for event in events if event.name == ORIGIN)
        exchanges = [event for event in events if _is_exchange(event.name) and event.time_range.start >= origin]
        exchanges.sort(key=lambda event: event.time_range.start)
        return [
            {
                "step": step,
                "phase": "aggregate",
                "name": f"{event.name.partition(':')[2]} {number} of {len(exchanges)}",
                "start_s": (event.time_range.start - origin) / 1e6,
                "seconds": (event.time_range.end - event.time_range.start) / 1e6,
                "size_bytes": width * sum(prod(shape) for shape in event.input_shapes if shape),
            }
            for number, event in enumerate(exchanges, start=1)
        ]


def _is_exchange(name: str) -> bool:
    backend, colon, what = name.partition(":")
    return bool(colon) and backend in ("gloo", "nccl", "mpi") and not any(other in what for other in OTHERS)
