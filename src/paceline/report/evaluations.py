"""An answered evaluation as tables and sentences, for the terminal and as a Markdown page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.measurements.results import CaseResult
from paceline.model.plan.make import Plan
from paceline.model.validation.evaluations import AnsweredCurve, AnsweredDirection, AnsweredHeadline, EvaluationAnswer
from paceline.report.exports import markdown_lines, plain_markdown
from paceline.report.tables import Table, make_table, phase_table, results_table
from paceline.report.terminal import print_table, say
from paceline.report.words import dominant_words
from paceline.units import format_share

__all__ = ["evaluation_page", "show_evaluation"]

Part = tuple[str, Table, list[str]]
"""A heading, a table, and lines beneath it."""


def show_evaluation(answer: EvaluationAnswer) -> None:
    """Everything that is predicted."""
    say(answer.evaluation.title, "", answer.evaluation.question, *_assumptions(answer))
    for heading, table, lines in _parts(answer, ()):
        say("", heading)
        print_table(table)
        say(*lines)


def evaluation_page(answer: EvaluationAnswer, measured: Sequence[CaseResult], command: str) -> str:
    """The same as Markdown, with what was measured, and the command that writes the page."""
    asked = answer.evaluation
    lines = [f"# {plain_markdown(asked.title)}", "", plain_markdown(asked.question), ""]
    lines += [f"First asked by: {plain_markdown(asked.published_by)}.", "", "Written by", "", f"    {command}"]
    if said := _assumptions(answer):
        lines += ["", *(f"- {plain_markdown(line)}" for line in said)]
    for heading, table, below in _parts(answer, measured):
        lines += ["", f"## {plain_markdown(heading)}", "", *markdown_lines(table)]
        lines += ["", *(f"- {plain_markdown(line)}" for line in below)] if below else []
    return "\n".join(lines) + "\n"


def _assumptions(answer: EvaluationAnswer) -> list[str]:
    return [f"assumed: {line}" for line in answer.evaluation.assumes]


def _parts(answer: EvaluationAnswer, measured: Sequence[CaseResult]) -> Iterator[Part]:
    if answer.headlines:
        yield "Published, and predicted here", _headline_table(answer.headlines), _sources(answer.headlines)
    for one in answer.curves:
        yield _curve_heading(one), _curve_table(one), _reasons(one)
    for asked, plan in answer.plans:
        heading = f"Plan: {plan.network} on {plan.cluster}, global batch {asked.global_batch}"
        yield heading, _plan_table(plan), [plan.best.reason, plan.asynchrony]
    if answer.directions:
        yield "What would help", _direction_table(answer.directions), []
    good = [result for result in measured if result.throughput]
    if good:
        yield "Measured on this machine", results_table(good), _machine(good)
        split = [result for result in good if result.phases]
        if split:
            yield "Its phases", phase_table(split), []


def _headline_table(headlines: Sequence[AnsweredHeadline]) -> Table:
    rows = [
        (
            one.headline.what,
            f"{one.headline.published:,g} {one.headline.quantity}",
            _figure(one, one.predicted.value),
            " to ".join(_figure(one, bound) for bound in one.predicted.interval_90),
            f"{100 * one.error:+.1f} %",
            "inside" if one.held else "outside",
        )
        for one in headlines
    ]
    return make_table(["what", ">published", ">predicted", ">90 %", ">error", "published figure is"], rows)


def _figure(one: AnsweredHeadline, value: float) -> str:
    return f"{value:,.2f}" if one.headline.quantity == "speed-up" else f"{value:,.0f}"


def _sources(headlines: Sequence[AnsweredHeadline]) -> list[str]:
    return list(dict.fromkeys(f"published: {one.headline.source}" for one in headlines))


def _curve_heading(answered: AnsweredCurve) -> str:
    asked = answered.asked
    return f"{asked.network} on {asked.cluster}, batch {asked.batch} per device: samples/s and speed-up"


def _curve_table(answered: AnsweredCurve) -> Table:
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


def _reasons(answered: AnsweredCurve) -> list[str]:
    first, *others = answered.asked.frameworks
    return [f"{name} against {first}: {'; '.join(answered.why(name))}" for name in others]


def _plan_table(plan: Plan) -> Table:
    rows: list[tuple[object, ...]] = [
        (
            one.kind,
            len(one.groups),
            one.quorum,
            f"{one.predicted_throughput:,.0f}",
            "{:,.0f} to {:,.0f}".format(*(one.interval_90 or ())),
            format_share(one.predicted_utilisation),
            one.local_steps,
            f"{one.staleness:.1f}",
            format_share(one.efficiency),
        )
        for one in plan.ranked
    ]
    if plan.baseline is not None:
        low, high = plan.baseline.throughput.interval_90
        rate = f"{plan.baseline.throughput.value:,.0f}"
        rows.append(("baseline: DDP, equal shares", 1, 1, rate, f"{low:,.0f} to {high:,.0f}", "", "", "", ""))
    columns = [
        "plan",
        ">groups",
        ">quorum",
        ">samples/s",
        ">90 %",
        ">utilisation",
        ">local steps",
        ">staleness",
        ">efficiency",
    ]
    return make_table(columns, rows)


def _direction_table(directions: Sequence[AnsweredDirection]) -> Table:
    rows = [
        (
            ", ".join(f"{key}={value}" for key, value in one.direction.changes.items()),
            one.direction.curve,
            one.direction.framework,
            one.devices,
            f"{100 * one.gain:+.1f} %",
        )
        for one in sorted(directions, key=lambda one: -one.gain)
    ]
    return make_table(["change", "curve", "framework", ">devices", ">predicted gain in throughput"], rows)


def _machine(results: Sequence[CaseResult]) -> list[str]:
    machine = results[0].run.machine
    return [f"{machine.cpu}, {machine.cores} cores; campaign {results[0].run.campaign}"]
