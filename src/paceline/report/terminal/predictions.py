"""Terminal output of predictions: tables, terms of a step, character plots, reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from paceline.model.plan.bucket_size import BucketRecommendation
from paceline.model.plan.file import PlanFile
from paceline.model.plan.make import Plan
from paceline.model.prediction import Curve, Prediction, reasons
from paceline.model.simulate.scenario import Simulated
from paceline.report.tables import plan_table
from paceline.report.terminal import print_rows, print_table, say
from paceline.report.words import baseline_words, common_label, dominant_words
from paceline.units import BYTES, SECONDS, format_count, format_share

__all__ = ["show_buckets", "show_changed", "show_checked", "show_curves", "show_plan", "show_reached", "show_simulated"]

WIDTH = 56
SHOWN_LOADS = 16
MARKS = {"compute": "#", "exchange and rest": "=", "other jobs": "o", "jitter": "j", "stragglers": "s",
         "failures": "f", "queue and stragglers": "q"}  # fmt: skip
"""Characters of the bars of a simulation."""


def show_curves(curves: Sequence[Curve], names: Sequence[str], *, compared: bool) -> None:
    """One curve, or several curves compared with the first."""
    if compared and len(curves) > 1:
        _show_comparison(curves, names)
        return
    for curve in curves:
        _show_curve(curve)


def _show_curve(curve: Curve) -> None:
    """Table, terms, plot, and the data of the curve."""
    priced = any(prediction.cost is not None for prediction in curve.predictions)
    columns = [">devices", ">step", ">samples/s", ">50 %", ">90 %", ">efficiency", "dominant"]
    rows = [_row(prediction, priced) for prediction in curve.predictions]
    print_rows(curve.label, columns + ([">cost/1M samples"] if priced else []), rows)
    show_everyday(curve.predictions)
    names = [name for name in curve.predictions[0].terms if any(p.terms[name] > 0 for p in curve.predictions)]
    say(*curve.notes)
    terms = [[p.devices, *(SECONDS.format(p.terms[name]) for name in names)] for p in curve.predictions]
    print_rows("\nterms of a step", [">devices", *names], terms)
    say("", *_plot_lines(curve.predictions))
    knee = f"after {format_count(curve.knee, 'device')}" if curve.knee else "not reached"
    say(f"\nknee (a doubling adds less than {format_share(curve.knee_gain)}): {knee}")
    choices = curve.detail.get("fusion", {})
    if choices:
        listed = [
            f"{one['exchanges']} {FUSED[name]} ({SECONDS.format(one['exposed_s'])})" for name, one in choices.items()
        ]
        count = format_count(curve.predictions[-1].devices, "device")
        say(f"exchanges of a step, and what compute does not hide of them, at {count}: {', '.join(listed)}")
    say(*precision_lines([curve]), *memory_lines(curve))
    say(*(f"rests on: {line}" for line in curve.basis), f"to narrow the interval: {curve.advice}")


FUSED = {"policy": "as the framework does it", "mgwfbp": "by MG-WFBP", "optimal": "at best"}
"""How gradients are put together into exchanges."""
EVERYDAY: dict[str, tuple[str, Callable[[float], str]]] = {
    "mfu": ("MFU", lambda value: f"{100 * value:.1f} %"),
    "power_w": ("kW", lambda value: f"{value / 1e3:,.2f}"),
    "price_per_h": ("per hour", lambda value: f"{value:,.2f}"),
    "epoch_s": ("epoch", SECONDS.format),
    "epoch_cost": ("its cost", lambda value: f"{value:,.2f}"),
    "run_s": ("run", SECONDS.format),
    "run_cost": ("its cost", lambda value: f"{value:,.2f}"),
    "run_kwh": ("kWh", lambda value: f"{value:,.1f}"),
}
"""Everyday units that are shown where they are known, with their heads."""


def show_everyday(predictions: Sequence[Prediction]) -> None:
    """Tokens or images per second, MFU, and time, cost and energy of a run."""
    first = predictions[0].everyday
    if not first:
        return
    unit = first["unit"]
    known = [one.everyday for one in predictions]  # of unequal devices some may have no price or no peak
    names = [name for name in EVERYDAY if any(name in each for each in known)]
    rows = [
        [
            one.devices,
            f"{one.everyday[f'{unit}_per_s']:,.0f}",
            *(EVERYDAY[n][1](one.everyday[n]) if n in one.everyday else "" for n in names),
        ]
        for one in predictions
    ]
    currency = next((each["currency"] for each in known if "currency" in each), None)
    money = f"; money in {currency}" if currency else ""
    print_rows(f"\neveryday units{money}", [">devices", f">{unit}/s", *(f">{EVERYDAY[n][0]}" for n in names)], rows)
    if any(each.get("mfu", 0) > 1 for each in known):
        say("MFU above 100 %: Winograd's algorithm needs fewer multiply-adds for 3 x 3 convolutions than are counted")


def precision_lines(curves: Sequence[Curve], names: Sequence[str] = ()) -> list[str]:
    """Precision and exchange of predictions from a network or a profile; where they differ, whose each is."""
    lines = []
    for what in ("precision", "exchange"):
        said: dict[str, list[str]] = {}
        for curve, name in zip(curves, names or [""] * len(curves), strict=True):
            if line := curve.detail.get(what):
                said.setdefault(line, []).append(name)
        for line, whose in said.items():
            named = f" of {', '.join(whose)}" if len(said) > 1 and all(whose) else ""
            lines.append(f"{what}{named}: {line}")
    return lines


def memory_lines(curve: Curve) -> list[str]:
    """What the fewest devices of a curve hold, and with which optimizer."""
    lines = []
    for use in curve.detail.get("memory", []):
        need, have, adam = (BYTES.format(use[part]) for part in ("total", "of", "adam"))
        whose = f"{use['device']} as one of {use['ranks']}" if use["ranks"] else use["device"]
        lines.append(f"memory of {whose}: {need} of {have} with momentum SGD; Adam needs {adam}")
    return lines


def _row(prediction: Prediction, priced: bool) -> list[object]:
    rate = prediction.samples_per_s
    cells: list[object] = [
        prediction.devices,
        SECONDS.format(prediction.step_s.value),
        f"{rate.value:,.1f}",
        "{:,.1f}-{:,.1f}".format(*rate.interval_50),
        "{:,.1f}-{:,.1f}".format(*rate.interval_90),
        format_share(prediction.efficiency),
        dominant_words(prediction),
    ]
    return [*cells, "" if prediction.cost is None else f"{prediction.cost:,.2f}"] if priced else cells


def _show_comparison(curves: Sequence[Curve], names: Sequence[str]) -> None:
    """Throughput of each at every count, and why each differs from the first."""
    counts = [prediction.devices for prediction in curves[0].predictions]
    rows = [
        [name, *(f"{p.samples_per_s.value:,.1f}" for p in curve.predictions), *_last(curve, curves[0])]
        for name, curve in zip(names, curves, strict=True)
    ]
    columns = ["framework", *(f">{count}" for count in counts), ">90 %", ">against first", ">knee after", "dominant"]
    print_rows(f"{common_label(curves)}: samples/s by devices", columns, rows)
    say("", *_plot_lines([curve.predictions[-1] for curve in curves], names))
    say("", *precision_lines(curves, names))
    say(f"\nwhy, against {names[0]} at {format_count(counts[-1], 'device')}")
    for name, curve in zip(names[1:], curves[1:], strict=True):
        say(f"{name}: {'; '.join(reasons(curves[0], curve))}")


def _last(curve: Curve, first: Curve) -> list[str]:
    end, base = curve.predictions[-1], first.predictions[-1]
    interval = "{:,.0f}-{:,.0f}".format(*end.samples_per_s.interval_90)
    gain = end.samples_per_s.value / base.samples_per_s.value - 1
    return [interval, f"{100 * gain:+z.1f} %", str(curve.knee or "none"), dominant_words(end)]


def show_changed(before: Curve, after: Curve, changes: Sequence[str]) -> None:
    """Show a prediction before and after a change, side by side."""
    pairs = list(zip(before.predictions, after.predictions, strict=True))
    rows = [
        (
            old.devices,
            SECONDS.format(old.step_s.value),
            SECONDS.format(new.step_s.value),
            f"{new.samples_per_s.value:,.1f}",
            "{:,.1f}-{:,.1f}".format(*new.samples_per_s.interval_90),
            format_share(new.samples_per_s.value / old.samples_per_s.value - 1),
            _moved(dominant_words(old), dominant_words(new)),
        )
        for old, new in pairs
    ]
    columns = [">devices", ">step before", ">step after", ">samples/s after", ">90 %", ">gain", "dominant"]
    print_rows(f"{before.label}; {', '.join(changes)}", columns, rows)
    names = [name for old, _ in pairs for name in (f"{old.devices} before", "after")]
    say("", *_plot_lines([prediction for pair in pairs for prediction in pair], names))
    say(f"\nwhy, at {format_count(pairs[-1][1].devices, 'device')}: {'; '.join(reasons(before, after))}")
    say(
        *precision_lines([before, after], ("the step before", "the step after")),
        *after.notes,
        f"to narrow the interval: {after.advice}",
    )


def _moved(before: str, after: str) -> str:
    return after if before == after else f"{before} -> {after}"


def show_buckets(answer: BucketRecommendation) -> None:
    """Every bucket size, and the setting to write."""
    rows = [
        (
            one.megabytes,
            SECONDS.format(one.step_s.value),
            f"{100 * one.gain.value:+z.1f} %",
            "{:+z.1f} .. {:+z.1f} %".format(*(100 * bound for bound in one.gain.interval_90)),
        )
        for one in answer.choices
    ]
    usual = f"{answer.default / 2**20:g} MB" if answer.default else "the default"
    print_rows(
        f"{answer.label}, {answer.devices} devices", [">bucket_cap_mb", ">step", f">gain over {usual}", ">90 %"], rows
    )
    low, high = (100 * bound for bound in answer.best.gain.interval_90)
    gain = f"{100 * answer.best.gain.value:+z.1f} % (90 %: {low:+z.1f} .. {high:+z.1f} %)"
    if answer.worth:
        say(f"\nDistributedDataParallel(..., {answer.setting}): {gain} over the default of {usual}")
    else:
        tried = f"the best, bucket_cap_mb={answer.best.megabytes}, has {gain}"
        say(f"\nkeep the default of {usual}: no size is certain to gain 1 %; {tried}")


def _plot_lines(predictions: Sequence[Prediction], names: Sequence[str] = ()) -> list[str]:
    """One line per count or name: the 90 % interval as dots, the 50 % interval as dashes, the prediction as a mark."""
    top = max(prediction.samples_per_s.interval_90[1] for prediction in predictions)
    labels = list(names) or [str(prediction.devices) for prediction in predictions]
    wide = max(8, *(len(label) for label in labels))
    lines = [f"{'' if names else 'devices':>{wide}}  samples/s, 0 to {top:,.0f}  (o predicted, - 50 %, . 90 %)"]
    for label, prediction in zip(labels, predictions, strict=True):
        rate = prediction.samples_per_s
        cells = [" "] * (WIDTH + 1)
        for (low, high), mark in ((rate.interval_90, "."), (rate.interval_50, "-")):
            for column in range(round(low / top * WIDTH), round(high / top * WIDTH) + 1):
                cells[column] = mark
        cells[round(rate.value / top * WIDTH)] = "o"
        lines.append(f"{label:>{wide}} |{''.join(cells).rstrip()}")
    return lines


def show_simulated(label: str, runs: Sequence[Simulated], how: dict[str, str]) -> None:
    """Show predicted and simulated steps, and the parts of their time."""
    asynchronous = any(run.staleness is not None for run in runs)
    columns = [">devices", ">predicted step", ">simulated step", ">samples/s", ">lost"]
    columns += [">staleness", ">servers busy"] if asynchronous else [">50 %", ">90 %", ">99 % of steps"]
    print_rows(label, columns, [_simulated_row(run, asynchronous) for run in runs])
    say("\nwhere the time goes")
    for run in runs:
        ends = np.round(np.cumsum([0.0, *run.shares.values()]) * WIDTH).astype(int)
        parts = zip(run.shares, ends, ends[1:], strict=False)
        say(f"{run.devices:>8} |{''.join(MARKS[name] * (end - begin) for name, begin, end in parts)}|")
    shown = {name for run in runs for name in run.shares}
    say("          " + ", ".join(f"{mark} {name}" for name, mark in MARKS.items() if name in shown))
    shares = ", ".join(f"{name} {format_share(share)}" for name, share in runs[-1].shares.items())
    said = [f"{name}: {words}" for name, words in how.items() if words]
    say(f"at {format_count(runs[-1].devices, 'device')}: {shares}", *said)


def _simulated_row(run: Simulated, asynchronous: bool) -> list[object]:
    lost = max(0.0, 1 - run.predicted_step_s / run.step_s)
    cells: list[object] = [run.devices, SECONDS.format(run.predicted_step_s), SECONDS.format(run.step_s)]
    cells += [f"{run.samples_per_s:,.1f}", format_share(lost)]
    if not asynchronous:
        return [*cells, *(SECONDS.format(value) for value in run.quantiles.values())]
    if run.staleness is None or run.server_busy is None:
        return [*cells, "", ""]
    return [*cells, f"{run.staleness:.1f}", format_share(run.server_busy)]


_LEGEND = (
    "groups: devices that step together; H: steps between exchanges of groups; K: groups that an exchange waits for;",
    "utilisation: of the sum of the devices' own throughputs; staleness: steps that a gradient is late;",
    "efficiency: what staleness and local steps leave of a sample's worth (throughput x efficiency ranks the plans)",
)


def _show_loads(plan: Plan) -> None:
    """Batch, passes and memory of every device."""
    rows = [
        (
            load.host,
            f"{load.count} x {load.device}",
            load.samples,
            load.passes,
            -(-load.samples // load.passes),
            "" if load.memory is None else BYTES.format(load.memory),
            "" if load.capacity is None else BYTES.format(load.capacity),
        )
        for load in plan.loads[:SHOWN_LOADS]
    ]
    columns = ["host", "devices", ">samples", ">passes", ">per pass", ">memory", ">of"]
    print_rows("\nload of each device and step (gradients of several passes are summed)", columns, rows)
    if len(plan.loads) > SHOWN_LOADS:
        say(f"... {len(plan.loads) - SHOWN_LOADS} more")
    everyday = plan.everyday
    parts = [f"{everyday[everyday['unit'] + '_per_s']:,.0f} {everyday['unit']}/s"]
    parts += [f"{head} {form(everyday[name])}" for name, (head, form) in EVERYDAY.items() if name in everyday]
    say(f"best plan: {', '.join(parts)}" + (f"; money in {everyday['currency']}" if "currency" in everyday else ""))


def show_plan(plan: Plan) -> None:
    """Candidate strategies, the best with its reason and split, and the data of the plan."""
    print_table(plan_table(plan))
    say(*_LEGEND, f"\nbest: {plan.best.kind}, because {plan.best.reason}")
    say(*baseline_words(plan))
    _show_loads(plan)
    say(plan.asynchrony)
    say(f"precision: {plan.precision}", *[f"exchange: {plan.exchange}"] * bool(plan.exchange))
    for line in plan.basis:
        say(f"rests on: {line}")


def show_checked(curve: Curve, measured: float) -> None:
    """A prediction and its later measurement."""
    prediction = curve.predictions[-1]
    predicted, (low, high) = prediction.samples_per_s.value, prediction.samples_per_s.interval_90
    say(
        f"The prediction, checked by running it ({curve.notes[-1] if curve.notes else f'{prediction.devices} ranks'}):",
        _checked(predicted, (low, high), measured, verb="measured"),
    )


def show_reached(plan: PlanFile, reached: float | None, reached_90: tuple[float, float] | None) -> None:
    """Predicted and achieved throughput of a plan."""
    if reached is None or reached_90 is None:
        say("the plan was not checked: the training had too few steps, or failed")
        return
    interval = plan.interval_90 or (plan.predicted_throughput, plan.predicted_throughput)
    say(f"the plan, checked by training: {_checked(plan.predicted_throughput, interval, reached, verb='reached')}")
    say(f"reached in the later half of the steps, 90 %: {reached_90[0]:,.1f} to {reached_90[1]:,.1f} samples/s")


def _checked(predicted: float, interval: tuple[float, float], measured: float, *, verb: str) -> str:
    low, high = interval
    held = "the measurement is inside" if low <= measured <= high else "the measurement is OUTSIDE"
    return (
        f"predicted {predicted:,.1f} samples/s (90 %: {low:,.1f} to {high:,.1f}), {verb} {measured:,.1f}: "
        f"error {100 * (predicted / measured - 1):+z.1f} %, {held} the interval"
    )
