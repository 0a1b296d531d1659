"""Change one thing, predict again: the step under each change, and how sensitive it is (a tornado)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.explain.evidence import CaseEvidence
from paceline.explain.exchange import Exchange, exchange_of

__all__ = ["Sensitivity", "WhatIf", "sensitivities", "what_if"]


@dataclass(frozen=True)
class WhatIf:
    """One change and the step that the model predicts with it."""

    change: str
    predicted_step_s: float
    saved_s: float


@dataclass(frozen=True)
class Sensitivity:
    """What halving and doubling one quantity does to the step."""

    quantity: str
    halved_s: float
    """Predicted step with half of it."""
    doubled_s: float
    base_s: float

    @property
    def swing(self) -> float:
        """Distance between both ends."""
        return abs(self.doubled_s - self.halved_s)


def what_if(evidence: CaseEvidence) -> tuple[WhatIf, ...]:
    """The changes that can be predicted for this case, the most helpful first."""
    step, exchange = evidence.result.step_s, exchange_of(evidence)
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
    found = [_predict(name, exchange, then, step.value) for name, then in changed.items()]
    return tuple(sorted(found, key=lambda item: item.predicted_step_s))


def _predict(name: str, now: Exchange, then: Exchange, step_s: float) -> WhatIf:
    saved = now.exposed - then.exposed
    return WhatIf(name, step_s - saved, saved)


def sensitivities(evidence: CaseEvidence) -> tuple[Sensitivity, ...]:
    """Halving and doubling each quantity of the step, the widest swing first."""
    step, phases = evidence.result.step_s, evidence.result.phases
    if step is None or not phases:
        return ()
    base = step.value
    found = [
        Sensitivity(name, base - phases[name] / 2, base + phases[name], base)
        for name in ("io", "h2d", "forward", "update")
        if phases[name] > 0
    ]
    found += _exchange_sensitivities(evidence, base)
    return tuple(sorted(found, key=lambda item: -item.swing))


def _exchange_sensitivities(evidence: CaseEvidence, base: float) -> list[Sensitivity]:
    exchange, backward = exchange_of(evidence), evidence.result.phases["backward"]
    if exchange is None:
        exposed = evidence.result.phases["aggregate"]
        found = {"backward": backward, "exposed aggregate": exposed}
        return [Sensitivity(name, base - part / 2, base + part, base) for name, part in found.items() if part > 0]

    def step(then: Exchange, more: float = 0.0) -> float:
        return base + more + then.exposed - exchange.exposed

    def slower(factor: float) -> Exchange:
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
