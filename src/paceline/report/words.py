"""Intervals, gains and trials in words, the same in terminal, page and Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from paceline.cost.host import shared_words
from paceline.measurements.results import Usage
from paceline.measurements.run import Run
from paceline.measurements.summary import Interval
from paceline.units import format_share

if TYPE_CHECKING:  # Importing the model would make every verb slow to start.
    from paceline.explain.findings import Finding
    from paceline.explain.gap import Bar
    from paceline.model.plan.make import Plan
    from paceline.model.prediction import Curve, Prediction

__all__ = [
    "MOST_OTHERS",
    "baseline_words",
    "common_label",
    "dominant_words",
    "file_name",
    "gain_words",
    "host_words",
    "mfu_words",
    "noise_words",
    "over_peak_words",
    "percent_half",
    "predicted_words",
    "refuted_words",
    "span_ms",
    "tried_words",
]

WORTH_NAMING = 0.05
"""Minimum share of a step for a term to be named besides compute."""
WIDEST = 10.0
"""Half of an interval beyond which its number is not printed."""
MOST_OTHERS = 5
"""Further cases of the same cause that are named."""


def percent_half(interval: Interval | None) -> str:
    """Half-width of an interval in percent; empty for one launch, or if the interval is too wide to be useful."""
    if interval is None or not math.isfinite(interval.half):
        return "one launch"
    return (
        f"± {100 * interval.half:.1f} %" if interval.half < WIDEST else f"more than ± {WIDEST:.0%}".replace("%", " %")
    )


def mfu_words(share: float) -> str:
    """Share of the peak; above it with a mark, which `over_peak_words` explains."""
    return f"{100 * share:.1f} %{' !' if share > 1 else ''}"


def over_peak_words(usages: Iterable[Usage | None]) -> list[str]:
    """Explanation of an MFU above 100 %; empty if there is none."""
    if not any(usage and usage.mfu is not None and usage.mfu > 1 for usage in usages):
        return []
    return [
        "Note: an MFU above 100 % (!) is more than the named devices can do in the strategy's precision: another "
        "device, a lower precision (TF32, amp), or fewer samples than counted."
    ]


def span_ms(interval: Interval | None, form: str = ".2f") -> str:
    """The ends of an interval in milliseconds; empty where there is none, as with one launch."""
    if interval is None or not math.isfinite(interval.low) or not math.isfinite(interval.high):
        return ""
    return f"{1e3 * interval.low:{form}} to {1e3 * interval.high:{form}}"


def gain_words(gain: Interval) -> str:
    """A gain with its interval."""
    return f"{format_share(gain.value)} of the time per sample ({_span(gain)})"


def predicted_words(finding: Finding) -> str:
    """The predicted gain of a finding, or why it is unknown."""
    if finding.unknown:
        return f"unknown, {finding.unknown}"
    if finding.first and not finding.gain.value >= WORTH_NAMING:
        return f"about none ({_span(finding.gain)}): it is a condition of these numbers"
    return gain_words(finding.gain)


def refuted_words(refuted: Sequence[Finding]) -> list[str]:
    """Changes that were tried and did not help, a sentence each."""
    return [
        f"Refuted by a trial: {item.change.what} for {item.case}. Predicted to save {gain_words(item.gain)}; "
        f"measured: {gain_words(item.measured_gain)}."
        for item in refuted
        if item.measured_gain
    ]


def noise_words(unsure: Sequence[Finding]) -> str:
    """Changes on which the launches do not agree, in one sentence."""
    named = "; ".join(f"{item.title}, {item.case} ({_span(item.gain)})" for item in unsure[:MOST_OTHERS])
    more = f"; and {len(unsure) - MOST_OTHERS} more" if len(unsure) > MOST_OTHERS else ""
    return f"Not advised, because it is within the noise of these launches or their phases do not close: {named}{more}."


def _span(gain: Interval) -> str:
    if not math.isfinite(gain.low) or not math.isfinite(gain.high):
        return "one launch: no interval"
    return f"{format_share(gain.low)} to {format_share(gain.high)}"


def tried_words(bar: Bar) -> str:
    """The result of a run that changed only this cause; empty if there was none."""
    if bar.measured_s is None:
        return bar.tried
    span = span_ms(bar.measured_s, "+.3f")
    return f"tried, {bar.tried}: {1e3 * bar.measured_s.value:+z.3f} ms" + (f" ({span})" if span else "")


def dominant_words(prediction: Prediction) -> str:
    """The largest term of a step; if that is compute, also the next largest term unless it is very small."""
    name, share = prediction.beside_compute
    if prediction.dominant != "compute" or share < WORTH_NAMING:
        return prediction.dominant
    return f"compute, then {name} {100 * share:.0f} %"


def baseline_words(plan: Plan) -> list[str]:
    """Plain DDP on the cluster of a plan, and the gain of the plan over it."""
    baseline = plan.baseline
    if baseline is None:
        return ["no baseline: DDP needs a sample for every device"]
    (low, high), (least, most) = baseline.throughput.interval_90, baseline.gain.interval_90
    passes = f", in {baseline.passes} passes on the smallest device" if baseline.passes > 1 else ""
    return [
        f"baseline, DDP with equal shares: {baseline.throughput.value:,.1f} samples/s "
        f"(90 %: {low:,.1f} .. {high:,.1f}){passes}",
        f"gain of the plan over it: {100 * baseline.gain.value:+z.1f} % "
        f"(90 %: {100 * least:+z.1f} .. {100 * most:+z.1f} %)",
    ]


def file_name(text: str) -> str:
    """A file name that cannot leave its directory, for any name of a study or case."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-") or "study"


def common_label(curves: Sequence[Curve]) -> str:
    """The common part of the labels of all curves."""
    parts = [curve.label.split(", ") for curve in curves]
    return ", ".join(part for part in parts[0] if all(part in other for other in parts)) or "predictions"


def host_words(runs: Sequence[Run]) -> str:
    """How the ranks of these runs use the cores of their host; empty where no rank computes on this machine's cores."""
    local = [run for run in runs if run.launcher == "local" and run.machine.threads]
    uses = sorted({(run.ranks, run.machine.threads or 1, run.machine.cores) for run in local})
    return "; ".join(shared_words(*use) for use in uses)
