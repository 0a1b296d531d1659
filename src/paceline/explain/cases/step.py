"""One step of a case: traced, predicted by the model, and predicted with one change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from paceline.cost.buckets import bucket_bytes
from paceline.cost.recurrence import finish_fifo
from paceline.explain.cases.evidence import CaseEvidence
from paceline.explain.cases.exchange import GradientExchange, gradient_exchange
from paceline.measurements.run import Span

__all__ = ["Sensitivity", "WhatIf", "measured_step", "predicted_step", "scaled_step", "sensitivities", "what_if"]


def measured_step(evidence: CaseEvidence) -> tuple[Span, ...]:
    """The last traced step of every rank: layers, gradients, and exchanges if the framework reports them."""
    steps = [span.step for span in evidence.spans]
    return tuple(span for span in evidence.spans if steps and span.step == max(steps))


def scaled_step(evidence: CaseEvidence) -> tuple[tuple[Span, ...], float]:
    """The last traced step, scaled to the clean one, and the factor: hooks on every layer lengthen a traced step."""
    spans, phases = measured_step(evidence), evidence.result.phases
    if evidence.run.launcher == "import":  # no hooks of ours
        return spans, 1.0
    traced = max((span.start_s + span.seconds for span in spans), default=0.0)
    clean = sum(phases.get(name, 0.0) for name in ("io", "h2d", "forward", "backward", "aggregate"))
    factor = clean / traced if traced and clean else 1.0
    return tuple(replace(s, start_s=factor * s.start_s, seconds=factor * s.seconds) for s in spans), factor


def predicted_step(evidence: CaseEvidence) -> tuple[Span, ...]:
    """The step predicted by the model: measured compute, exchanges by the recurrence over buckets."""
    phases, exchange = evidence.result.phases, gradient_exchange(evidence)
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


def _buckets(exchange: GradientExchange, rank: int, begin: float) -> Iterable[Span]:
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


@dataclass(frozen=True)
class WhatIf:
    """One change and the step that the model predicts with it."""

    change: str
    predicted_step_s: float
    saved_s: float


@dataclass(frozen=True)
class Sensitivity:
    """The predicted step with half and with twice of one quantity."""

    quantity: str
    halved_s: float
    """Predicted step with half of the quantity."""
    doubled_s: float
    base_s: float

    @property
    def swing(self) -> float:
        """Difference between the two predicted steps."""
        return abs(self.doubled_s - self.halved_s)


def what_if(evidence: CaseEvidence) -> tuple[WhatIf, ...]:
    """The predictable changes of this case, largest gain first."""
    step, exchange = evidence.result.step_s, gradient_exchange(evidence)
    if step is None or exchange is None:
        return ()
    overlap = {
        "overlap on": replace(exchange, overlap=True),
        "overlap off": replace(exchange, overlap=False),
    }
    changed = {
        **({} if exchange.contended else overlap),
        "best buckets": exchange.best_buckets(),
        "every gradient by itself": exchange.rebucketed(0.0),
        "link twice as fast": replace(exchange, per_byte=exchange.per_byte / 2),
        "link ten times as fast": replace(exchange, per_byte=exchange.per_byte / 10),
        "half precision gradients": replace(exchange, sizes=tuple(size / 2 for size in exchange.sizes)),
        "no exchange at all": replace(exchange, startup=0.0, per_byte=0.0),
    }
    predicted = [_predict(name, exchange, then, step.value) for name, then in changed.items()]
    return tuple(sorted(predicted, key=lambda item: item.predicted_step_s))


def _predict(name: str, now: GradientExchange, then: GradientExchange, step_s: float) -> WhatIf:
    saved = now.exposed - then.exposed
    return WhatIf(name, step_s - saved, saved)


def sensitivities(evidence: CaseEvidence) -> tuple[Sensitivity, ...]:
    """The sensitivity of the step to each quantity, largest first."""
    step, phases = evidence.result.step_s, evidence.result.phases
    if step is None or not phases:
        return ()
    base = step.value
    items = [
        Sensitivity(name, base - phases[name] / 2, base + phases[name], base)
        for name in ("io", "h2d", "forward", "update")
        if phases[name] > 0
    ]
    items += _exchange_sensitivities(evidence, base)
    return tuple(sorted(items, key=lambda item: -item.swing))


def _exchange_sensitivities(evidence: CaseEvidence, base: float) -> list[Sensitivity]:
    exchange, backward = gradient_exchange(evidence), evidence.result.phases["backward"]
    if exchange is None:
        exposed = evidence.result.phases["aggregate"]
        parts = {"backward": backward, "exposed aggregate": exposed}
        return [Sensitivity(name, base - part / 2, base + part, base) for name, part in parts.items() if part > 0]

    def step(then: GradientExchange, more: float = 0.0) -> float:
        return base + more + then.exposed - exchange.exposed

    def slower(factor: float) -> GradientExchange:
        return replace(exchange, ready=tuple(time * factor for time in exchange.ready))

    return [
        Sensitivity("backward", step(slower(0.5), -backward / 2), step(slower(2.0), backward), base),
        Sensitivity(
            "seconds per byte of the link",
            step(replace(exchange, per_byte=exchange.per_byte / 2)),
            step(replace(exchange, per_byte=exchange.per_byte * 2)),
            base,
        ),
        Sensitivity(
            "start-up of an exchange",
            step(replace(exchange, startup=exchange.startup / 2)),
            step(replace(exchange, startup=exchange.startup * 2)),
            base,
        ),
    ]
