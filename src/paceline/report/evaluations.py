"""An answered evaluation as tables and sentences, for the terminal and as a Markdown page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paceline.measurements.run import PHASES
from paceline.model.validation.evaluations import (
    EmulatedCase,
    EvaluationPrediction,
    PredictedCurve,
    PredictedDirection,
    PredictedHeadline,
)
from paceline.report.exports import markdown_lines, plain_markdown
from paceline.report.tables import NOT_CLOSED, Table, make_table, marked, plan_table
from paceline.report.terminal import print_table, say
from paceline.report.words import baseline_words, dominant_words
from paceline.spec.study import case_label
from paceline.units import SECONDS, format_share

__all__ = ["evaluation_page", "show_evaluation"]

Part = tuple[str, Table, list[str]]
"""A heading, a table, and lines beneath it."""
Plain = Mapping[str, Any]
"""A part of the JSON document of results."""

FEW = 3
"""Minimum number of launches for a useful interval."""


def show_evaluation(answer: EvaluationPrediction) -> None:
    """Everything that is predicted."""
    say(answer.evaluation.title, "", answer.evaluation.question, *_assumptions(answer))
    for heading, table, lines in _parts(answer, None):
        say("", heading)
        print_table(table)
        say(*lines)


def evaluation_page(answer: EvaluationPrediction, measured: Plain | None, command: str) -> str:
    """The page of an evaluation as Markdown: predictions, measurements by kind, and the command that writes it."""
    asked = answer.evaluation
    lines = [f"# {plain_markdown(asked.title)}", "", plain_markdown(asked.question), ""]
    lines += [f"First asked by: {plain_markdown(asked.published_by)}.", "", "Written by", "", f"    {command}"]
    if said := _assumptions(answer):
        lines += ["", *(f"- {plain_markdown(line)}" for line in said)]
    for heading, table, below in _parts(answer, measured):
        lines += ["", f"## {plain_markdown(heading)}", "", *markdown_lines(table)]
        lines += ["", *(f"- {plain_markdown(line)}" for line in below)] if below else []
    return "\n".join(lines) + "\n"


def _assumptions(answer: EvaluationPrediction) -> list[str]:
    return [f"assumed: {line}" for line in answer.evaluation.assumes]


def _parts(answer: EvaluationPrediction, measured: Plain | None) -> Iterator[Part]:
    if answer.headlines:
        yield "Published, and predicted here", _headline_table(answer.headlines), _sources(answer.headlines)
    for one in answer.curves:
        yield _curve_heading(one), _curve_table(one), _reasons(one)
    for asked, plan in answer.plans:
        heading = f"Plan: {plan.network} on {plan.cluster}, global batch {asked.global_batch}"
        yield heading, replace(plan_table(plan), title=""), [plan.best.reason, *baseline_words(plan), plan.asynchrony]
    if answer.directions:
        yield "What would help", _direction_table(answer.directions), []
    if measured and "study" in measured:
        yield from _measured_parts(measured["study"])
    if measured and "emulated" in measured:
        yield _emulated_part(measured["emulated"], answer.emulated)


def _headline_table(headlines: Sequence[PredictedHeadline]) -> Table:
    rows = [
        (
            one.headline.what,
            f"{one.headline.published:,g} {one.headline.quantity}",
            _figure(one, one.predicted.value),
            " to ".join(_figure(one, bound) for bound in one.predicted.interval_90),
            f"{100 * one.error:+z.1f} %",
            "inside" if one.held else "outside",
        )
        for one in headlines
    ]
    return make_table(["what", ">published", ">predicted", ">90 %", ">error", "published figure is"], rows)


def _figure(one: PredictedHeadline, value: float) -> str:
    return f"{value:,.2f}" if one.headline.quantity == "speed-up" else f"{value:,.0f}"


def _sources(headlines: Sequence[PredictedHeadline]) -> list[str]:
    return list(dict.fromkeys(f"published: {one.headline.source}" for one in headlines))


def _curve_heading(answered: PredictedCurve) -> str:
    asked = answered.asked
    return f"{asked.network} on {asked.cluster}, batch {asked.batch} per device: samples/s and speed-up"


def _curve_table(answered: PredictedCurve) -> Table:
    counts = [point.devices for point in next(iter(answered.curves.values())).predictions]
    rows = []
    for name, curve in answered.curves.items():
        last = curve.predictions[-1]
        speed_up = "" if last.speed_up is None else f"{last.speed_up.value:.2f}"
        spread = "" if last.speed_up is None else "{:.2f} to {:.2f}".format(*last.speed_up.interval_90)
        rates = [f"{point.samples_per_s.value:,.0f}" for point in curve.predictions]
        rows.append([name, *rates, speed_up, spread, dominant_words(last)])
    columns = ["framework", *(f">{count}" for count in counts), f">speed-up at {counts[-1]}", ">90 %", "dominant"]
    return make_table(columns, rows)


def _reasons(answered: PredictedCurve) -> list[str]:
    first, *others = answered.asked.frameworks
    return [f"{name} against {first}: {'; '.join(answered.why(name))}" for name in others]


def _direction_table(directions: Sequence[PredictedDirection]) -> Table:
    rows = [
        (
            ", ".join(f"{key}={value}" for key, value in one.direction.changes.items()),
            one.direction.curve,
            one.direction.framework,
            one.devices,
            f"{100 * one.gain:+z.1f} %",
        )
        for one in sorted(directions, key=lambda one: -one.gain)
    ]
    return make_table(["change", "curve", "framework", ">devices", ">predicted gain in throughput"], rows)


def _measured_parts(measured: Plain) -> Iterator[Part]:
    cases: list[Plain] = measured["cases"]
    scaled = any(case["ranks"] != case["base_ranks"] for case in cases if case["speedup"])
    rows = [
        (
            _label(case),
            f"{case['samples_per_s']['value']:,.1f}",
            _between(case["samples_per_s"]),
            SECONDS.format(case["step_s"]["value"]),
            *([_speed_up(case)] if scaled else []),
            case["counted"],
        )
        for case in cases
        if case["samples_per_s"]
    ]
    columns = ["case", ">samples/s", ">95 %", ">step", *([">speed-up"] if scaled else []), ">launches"]
    yield "Measured on this machine", make_table(columns, rows), _conditions(measured)
    if split := [case for case in cases if case["shares"]]:
        names = [name for name in (*PHASES, "other") if any(case["shares"][name] for case in split)]
        shares = [
            (marked(_label(case), case["phases_close"]), *(format_share(case["shares"][name]) for name in names))
            for case in split
        ]
        table = make_table(["case", *(f">{name}" for name in names)], shares)
        yield "Where the measured step goes", table, [] if all(one["phases_close"] for one in split) else [NOT_CLOSED]


def _emulated_part(measured: Plain, predicted: Mapping[EmulatedCase, float]) -> Part:
    """Measured cases of emulated devices by network and cluster, with the predictions of the model."""
    rows = []
    for case in measured["cases"]:
        if not case["samples_per_s"]:
            continue
        key = (case["network"], case["strategy"], case["cluster"], case["ranks"], case["batch"])
        rate, model = case["samples_per_s"]["value"], predicted.get(key)
        beside = ("", "") if model is None else (f"{model:,.1f}", f"{100 * (model / rate - 1):+z.1f} %")
        named = (case["network"], case["cluster"], case["ranks"], case["batch"], case["strategy"])
        rows.append((*named, f"{rate:,.1f}", SECONDS.format(case["step_s"]["value"]), *beside, case["counted"]))
    columns = [
        "network",
        "cluster",
        ">devices",
        ">batch",
        "exchange",
        ">samples/s",
        ">step",
        ">predicted",
        ">difference",
    ]
    said = [
        "devices are timed waits of the catalog's figures; gradients are real and travel over shaped links",
        "emulated links reach their line rate, and dilated time divides out the start-up of messages; the prediction "
        "has the efficiency and start-up of real links in the catalog, so it is slower",
    ]
    table = make_table([*columns, ">launches"], sorted(rows))
    return "Emulated on this machine, and predicted", table, [*said, *_conditions(measured)]


def _label(case: Plain) -> str:
    named = "" if case["strategy"] == "default" else f" {case['strategy']}"
    return case_label(case["network"], case["framework"] + named, case["batch"], case["ranks"], case["cluster"])


def _between(interval: Plain) -> str:
    """Bounds of a rate; one launch has none."""
    low, high = interval["low"], interval["high"]
    return "" if low is None or high is None else f"{low:,.1f} to {high:,.1f}"


def _speed_up(case: Plain) -> str:
    if case["speedup"] is None:
        return ""
    return "base" if case["ranks"] == case["base_ranks"] else f"{case['speedup']['value']:.2f}"


def _conditions(measured: Plain) -> list[str]:
    """The machine, notes on the numbers, and why a case has none."""
    cases: list[Plain] = measured["cases"]
    threads = sorted({case["threads"] for case in cases if case["threads"]})
    machine = f"{cases[0]['cores']} cores of {cases[0]['cpu']}; threads of a rank: {', '.join(map(str, threads))}"
    notes = list(dict.fromkeys(f"note: {label}" for case in cases for label in case["labels"]))
    lost = [
        f"not measured: {_label(case)}: {case['failure']['message']}"
        for case in cases
        if case["failure"] and not case["samples_per_s"]
    ]
    first = f"{machine}; campaign {measured['campaign']}, Paceline {cases[0]['paceline']}"
    return [first, *_disturbances(cases), *notes, *lost]


def _disturbances(cases: list[Plain]) -> list[str]:
    """Disturbances of the machine, which explain wide intervals."""
    before = list(dict.fromkeys(f"disturbed by {words}" for case in cases for words in case["disturbed_by"]))
    drifted, few = sum(case["drifted"] for case in cases), any(case["counted"] < FEW for case in cases)
    return [
        *before,
        *([f"the machine's own speed was unusual before {drifted} launches"] if drifted else []),
        *([f"cases with fewer than {FEW} launches say no more than an order of magnitude"] if few else []),
    ]
