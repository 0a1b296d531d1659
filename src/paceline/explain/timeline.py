"""One step as spans, ranks x phases: as it was traced, and as the model predicts it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from paceline.cost.buckets import bucket_bytes
from paceline.cost.recurrence import finish_fifo
from paceline.explain.evidence import CaseEvidence
from paceline.explain.exchange import Exchange, exchange_of
from paceline.measurements.run import Span

__all__ = ["measured_step", "predicted_step"]


def measured_step(evidence: CaseEvidence) -> tuple[Span, ...]:
    """The last traced step of every rank: its layers, its gradients, and the exchanges where the framework tells."""
    steps = [span.step for span in evidence.spans]
    return tuple(span for span in evidence.spans if steps and span.step == max(steps))


def predicted_step(evidence: CaseEvidence) -> tuple[Span, ...]:
    """The same step by the model: measured compute, exchanges by the recurrence over buckets."""
    phases, exchange = evidence.result.phases, exchange_of(evidence)
    if not phases:
        return ()
    spans: list[Span] = []
    for rank in range(evidence.run.ranks):
        forward = phases["io"] + phases["h2d"]
        if forward:
            spans.append(_span(rank, "io", "batch", 0.0, forward))
        spans.append(_span(rank, "forward", "forward", forward, phases["forward"]))
        begin = forward + phases["forward"]
        spans.append(_span(rank, "backward", "backward", begin, phases["backward"]))
        end = begin + phases["backward"]
        if exchange is not None:
            buckets = list(_buckets(exchange, rank, begin))
            spans += buckets
            end = max(end, buckets[-1].start_s + buckets[-1].seconds)
        elif phases["aggregate"]:
            spans.append(_span(rank, "aggregate", "exposed exchange", end, phases["aggregate"]))
            end += phases["aggregate"]
        spans.append(_span(rank, "update", "update", end, phases["update"]))
    return tuple(spans)


def _buckets(exchange: Exchange, rank: int, begin: float) -> Iterable[Span]:
    last = list(exchange.last)
    sizes = np.asarray(bucket_bytes(exchange.sizes, last))
    costs = exchange.cost(sizes)
    ready = np.asarray(exchange.ready)[last]
    if not exchange.hides:
        ready = np.full_like(ready, exchange.ready[-1])
    ends = finish_fifo(ready, costs)
    for index, (size, cost, end) in enumerate(zip(sizes, costs, ends, strict=True)):
        name = f"bucket {index + 1} of {len(last)}"
        yield _span(rank, "aggregate", name, begin + float(end - cost), float(cost), round(float(size)))


def _span(rank: int, phase: str, name: str, start: float, seconds: float, size: int | None = None) -> Span:
    return Span(rank, 0, phase, name, start, max(0.0, seconds), size, source="model")
