"""Why the same run differs under another framework: what its policy does otherwise, and which terms move."""

from __future__ import annotations

from typing import Any

from paceline.model.prediction import Curve
from paceline.units import BYTES, SECONDS

__all__ = ["reasons"]

_AGGREGATION = {
    "allreduce": "averages gradients by all-reduce",
    "parameter_server": "sends gradients to parameter servers and fetches weights from them",
    "sharded": "shards weights: gathers them before use and scatters gradients",
    "none": "exchanges nothing",
}
_SIMPLE = {
    "overlap": ("exchanges after the backward pass", "exchanges while backward still runs"),
    "input_overlap": ("reads input between steps", "reads the next batch while this one trains"),
}
"""What False and True of a field mean."""


def reasons(before: Curve, after: Curve) -> list[str]:
    """What `after` does otherwise than `before`, most telling first, then the terms that change most."""
    old, new = before.detail.get("policy", {}), after.detail.get("policy", {})
    said = [*_ways(old, new), *_moved(before, after)]
    return said or ["the same policy: nothing differs but the name"]


def _ways(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    said = []
    if old.get("aggregation") != new.get("aggregation"):
        said.append(_AGGREGATION[new["aggregation"]])
    for field, (off, on) in _SIMPLE.items():
        if old.get(field) != new.get(field):
            said.append(on if new.get(field) else off)
    if _fused(old) != _fused(new):
        said.append(f"{_fused(new)} instead of {_fused(old)}")
    if old.get("order") != new.get("order") and new.get("order") == "priority":
        said.append("sends gradients of the first layers first, so that the next forward can begin")
    if old.get("synchrony") != new.get("synchrony"):
        said.append("ranks do not wait for each other" if new["synchrony"] == "asynchronous" else "ranks wait")
    if old.get("compression") != new.get("compression"):
        said.append(f"compression {new['compression']}")
    return said


def _fused(policy: dict[str, Any]) -> str:
    if policy.get("bucket"):
        return f"buckets of {BYTES.format(policy['bucket'])}"
    return "everything at once" if policy.get("fusion") == "all" else f"one exchange per {policy.get('fusion')}"


def _moved(before: Curve, after: Curve) -> list[str]:
    """The terms that change by more than a hundredth of the step, at the largest number of devices."""
    old, new = before.predictions[-1], after.predictions[-1]
    change = {name: new.terms[name] - old.terms[name] for name in new.terms}
    large = [name for name in change if abs(change[name]) > 0.01 * old.step_s.value]
    large.sort(key=lambda name: -abs(change[name]))
    return [f"{name} {'+' if change[name] > 0 else '-'}{SECONDS.format(abs(change[name]))}" for name in large[:3]]
