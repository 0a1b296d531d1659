"""Tables of a campaign as data: columns and formatted cells, rendered for the terminal, the page and Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.measurements.ranking import Ranking
from paceline.measurements.results import CaseResult
from paceline.measurements.run import PHASES, Run
from paceline.report.words import mfu_words, percent_half, span_ms, tried_words
from paceline.units import BYTES, SECONDS, format_count, format_share

if TYPE_CHECKING:  # Importing the model would make every table slow to start.
    from paceline.explain.cases.breakdown import Breakdown
    from paceline.explain.cases.step import WhatIf
    from paceline.explain.cases.stragglers import Straggler
    from paceline.explain.gap import Gap
    from paceline.explain.predicted import Residual
    from paceline.model.plan.make import Plan

__all__ = [
    "NOT_CLOSED",
    "Cell",
    "Table",
    "breakdown_table",
    "failure_table",
    "gap_table",
    "layer_table",
    "make_table",
    "marked",
    "phase_table",
    "plan_table",
    "rank_table",
    "ranking_table",
    "residual_table",
    "results_table",
    "shown_phases",
    "straggler_table",
    "what_if_table",
]

NOT_CLOSED = (
    "Phases marked with * do not close within 5 % of the step, although they were measured again: do not trust them."
)
SOURCES = {"traced": "traced", "timers": "framework's timers", "model": "model"}
"""Texts for the source of hidden communication times."""


@dataclass(frozen=True)
class Cell:
    """One formatted cell."""

    text: str
    value: float | None = None
    """The exact value that the text rounds; the page stores it with the text."""
    below: str = ""
    """A second, less prominent line on the page."""
    case_id: str = ""
    """The case that the row is about, in its first cell."""


@dataclass(frozen=True)
class Table:
    """Columns and rows; a column whose name starts with '>' is aligned to the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    ordered: bool = False
    """Whether the order of the rows has a meaning, such as that the last is the sum of the others."""
    notes: tuple[str, ...] = ()
    """Lines below the rows, in Python and notebooks."""


def make_table(
    columns: Iterable[str],
    rows: Iterable[Iterable[object]],
    *,
    title: str = "",
    ordered: bool = False,
    notes: Iterable[str] = (),
) -> Table:
    """A table of cells, or of anything that is shown as text."""
    cells = (tuple(cell if isinstance(cell, Cell) else Cell(str(cell)) for cell in row) for row in rows)
    return Table(tuple(columns), tuple(cells), title, ordered, tuple(notes))


def _seconds(value: float | None) -> Cell:
    return Cell("" if value is None else SECONDS.format(value), value)


def results_table(results: Sequence[CaseResult], *, title: str = "", machine: bool = False) -> Table:
    """One row per case that has a result: throughput, step, speed-up with its base, efficiency, launches.

    Tokens/s and MFU where a network reads tokens and where a device's peak is known; with `machine` also threads and
    peak memory of a rank.
    """
    good = [result for result in results if result.throughput]
    units, head = _usage_columns(good), ["case", ">samples/s", ">95 %"]
    columns = [*head, *units, ">step", ">speed-up", ">efficiency", ">launches"]
    rows = [
        [*(row := _result_row(result))[: len(head)], *_usage_cells(result, units), *row[len(head) :],
         *(_machine_cells(result) if machine else [])]
        for result in good
    ]  # fmt: skip
    return make_table([*columns, *([">threads", ">memory"] if machine else [])], rows, title=title)


def _usage_columns(results: Sequence[CaseResult]) -> list[str]:
    """Further units of throughput: tokens per second, and the share of the peak rate."""
    usages = [result.usage for result in results if result.usage]
    tokens, mfu = any(one.unit == "tokens" for one in usages), any(one.mfu is not None for one in usages)
    return [*([">tokens/s"] if tokens else []), *([">MFU"] if mfu else [])]


def _usage_cells(result: CaseResult, columns: Sequence[str]) -> list[Cell]:
    usage = result.usage
    tokens = Cell(f"{usage.per_s:,.0f}", usage.per_s) if usage and usage.unit == "tokens" else Cell("")
    mfu = Cell(mfu_words(usage.mfu), usage.mfu) if usage and usage.mfu is not None else Cell("")
    known = {">tokens/s": tokens, ">MFU": mfu}
    return [known[name] for name in columns]


def _machine_cells(result: CaseResult) -> list[Cell]:
    threads, peak = result.run.machine.threads, result.run.facts.get("peak_memory_bytes")
    memory = Cell(BYTES.format(float(peak)), float(peak)) if isinstance(peak, int | float) else Cell("")
    return [Cell(str(threads or ""), threads), memory]


def ranking_table(rankings: Sequence[Ranking]) -> Table:
    """One row per network and size: the contenders, the fastest first, and whether the first is shown to be fastest."""
    rows = []
    for ranking in rankings:
        lead, first = ranking.lead, ranking.places[0]
        verdict = f"{first.name} wins" if ranking.winner else ranking.verdict
        ahead = Cell(f"{lead.value:.2f} x", lead.value) if lead else Cell("")
        places = " > ".join(f"{place.name} {place.throughput.value:,.1f}" for place in ranking.places)
        rows.append([ranking.label, verdict, ahead, places])
    columns = ["network and size", "verdict", ">lead", "samples per second, the fastest first"]
    return make_table(columns, rows, title="Lead: how many times as fast the first is as the second.")


def _result_row(result: CaseResult) -> list[Cell]:
    rate, step = result.throughput, result.step_s
    assert rate is not None
    efficiency = format_share(result.efficiency) if result.efficiency is not None else ""
    return [
        Cell(result.run.label, case_id=result.run.case_id),
        Cell(f"{rate.value:,.1f}", rate.value),
        Cell(percent_half(rate)),
        _seconds(step.value if step else None),
        _speedup(result),
        Cell(efficiency, result.efficiency),
        Cell(str(result.num_counted)),
    ]


def _speedup(result: CaseResult) -> Cell:
    if result.speedup is None:
        return Cell("")
    is_base = result.run.ranks == result.base_ranks
    text = f"base ({result.base_ranks})" if is_base else f"{result.speedup.value:.2f} x"
    return Cell(text, result.speedup.value)


def failure_table(runs: Sequence[Run]) -> Table:
    """One row per case with failed launches: where, why, how many launches; the newest failure of each."""
    newest = {run.case_id: run for run in runs if run.failure is not None}
    rows = []
    for case_id, run in newest.items():
        assert run.failure is not None
        count = sum(other.case_id == case_id and other.failure is not None for other in runs)
        where = f"{run.failure.phase}: {run.failure.reason}"
        rows.append([run.label, where, f"{run.failure.message} ({format_count(count, 'launch')})"])
    return make_table(["case", "where", "why"], rows, title="Failures")


def phase_table(results: Sequence[CaseResult]) -> Table:
    """Exposed shares of the step by phase; they sum to one."""
    names = (*PHASES, "other")
    rows = [
        [
            marked(result.run.label, result.closes),
            *(format_share(result.shares[name]) for name in names),
            _overhead(result),
        ]
        for result in results
    ]
    columns = ["case", *(f">{name}" for name in names), ">instrument"]
    doubt = "" if all(result.closes for result in results) else f"\n{NOT_CLOSED}"
    return make_table(columns, rows, title=f"Where the step goes (exposed shares, they sum to one){doubt}")


def marked(label: str, closes: bool) -> str:
    """The label of a case; with a mark if its phases are not to be trusted, see NOT_CLOSED."""
    return label if closes else f"{label} *"


def _overhead(result: CaseResult) -> str:
    return f"{100 * result.instrument_overhead:+z.1f} %" if result.instrument_overhead is not None else ""


def breakdown_table(breakdowns: Sequence[Breakdown]) -> Table:
    """Shares and seconds of every phase, and hidden communication."""
    names = [name for name in (*PHASES, "other") if any(item.part(name).seconds for item in breakdowns)]
    rows = []
    for item in breakdowns:
        parts = [item.part(name) for name in names]
        shares = [Cell(format_share(part.share), part.seconds, SECONDS.format(part.seconds)) for part in parts]
        hidden = Cell(SECONDS.format(item.hidden_s or 0.0), item.hidden_s, SOURCES.get(item.hidden_source or "", ""))
        rows.append(
            [
                Cell(marked(item.label, item.closes)),
                _seconds(item.step_s.value),
                *shares,
                hidden if item.hidden_source else "",
            ]
        )
    return make_table(["case", ">step", *_exposed(names), ">hidden aggregate"], rows)


def _exposed(names: Sequence[str]) -> list[str]:
    return [">exposed aggregate" if name == "aggregate" else f">{name}" for name in names]


def rank_table(breakdowns: Sequence[Breakdown]) -> Table:
    """Each rank's phases, those that some rank has; they sum to its step."""
    ranks = [(marked(item.label, item.closes), rank) for item in breakdowns for rank in item.ranks]
    names = [name for name in (*PHASES, "other") if any(rank.seconds[name] for _, rank in ranks)]
    rows = [
        [label, rank.rank, rank.host, *(_seconds(rank.seconds[name]) for name in names), _seconds(rank.hidden_s)]
        for label, rank in ranks
    ]
    title = "The exposed aggregate of a rank includes the time for which it waits for slower ranks."
    return make_table(["case", ">rank", "host", *_exposed(names), ">hidden aggregate"], rows, title=title)


def layer_table(item: Breakdown) -> Table:
    """Layers of one case in the order of the forward pass."""
    rows = [
        [
            layer.name,
            _seconds(layer.forward_s),
            _seconds(layer.backward_s),
            BYTES.format(float(layer.gradient_bytes)) if layer.gradient_bytes else "",
        ]
        for layer in item.layers
    ]
    title = f"{item.label}; hooks on every layer make these times longer than those of a clean step."
    return make_table(["layer", ">forward", ">backward", ">gradients"], rows, title=title)


def gap_table(gap: Gap) -> Table:
    """Causes of a gap with their evidence; the last row is their sum."""
    rows: list[list[object]] = [
        [
            bar.cause,
            Cell(f"{1e3 * bar.seconds:+z.2f}", bar.seconds),
            span_ms(bar.interval),
            "; ".join(words for words in (bar.evidence, tried_words(bar)) if words),
        ]
        for bar in gap.bars
    ]
    doubt = f"; not to be trusted: {gap.untrusted}" if gap.untrusted else ""
    total = sum(bar.seconds for bar in gap.bars)
    rows.append(["all: the measured gap", Cell(f"{1e3 * total:+z.2f}", total), "", ""])
    return make_table(
        ["cause", ">ms", ">95 %", "evidence"], rows, title=f"{gap.slow} against {gap.fast}{doubt}", ordered=True
    )


def straggler_table(stragglers: Sequence[tuple[str, Straggler]]) -> Table:
    """Which rank, on which host, how much slower, and what that costs; each with the label of its case."""
    columns = ["case", ">rank", "host", "phase", "kind", ">slower", ">slowest in", ">cost a step", ">waiting a day"]
    rows = [
        [
            label,
            item.rank,
            item.host,
            item.phase,
            item.kind,
            f"{item.slower:.2f} x",
            format_share(item.share_slowest),
            _seconds(item.cost_s.value),
            _seconds(item.cost_per_day_s),
        ]
        for label, item in stragglers
    ]
    return make_table(columns, rows)


def what_if_table(label: str, what_ifs: Sequence[WhatIf]) -> Table:
    """The predicted step under each change of one case."""
    rows = [[item.change, f"{1e3 * item.predicted_step_s:.2f}", f"{1e3 * item.saved_s:+z.2f}"] for item in what_ifs]
    return make_table(["change", ">predicted step, ms", ">saved, ms"], rows, title=f"What if: {label}")


def shown_phases(residuals: Sequence[Residual]) -> list[str]:
    """Phases of which anything was measured or predicted."""
    terms = [term for item in residuals for term in item.terms]
    return [name for name in PHASES if any(t.measured_s or t.predicted_s for t in terms if t.phase == name)]


def residual_table(residuals: Sequence[Residual]) -> Table:
    """Measured, predicted and their difference, phase by phase."""
    names = shown_phases(residuals)
    rows = [
        [
            item.case,
            _seconds(item.measured_step_s),
            _seconds(item.predicted_step_s),
            f"{SECONDS.format(item.predicted_interval[0])} to {SECONDS.format(item.predicted_interval[1])}",
            *(f"{1e3 * term.residual_s:+z.2f}" for term in item.terms if term.phase in names),
        ]
        for item in residuals
    ]
    columns = ["case", ">measured step", ">predicted step", ">90 % interval", *(f">{name}, ms" for name in names)]
    return make_table(columns, rows, title="Residual of each phase: measured minus predicted.")


def plan_table(plan: Plan) -> Table:
    """The candidate strategies of a plan, the best first; H: steps between exchanges, K: groups they wait for."""
    columns = ["strategy", ">groups", ">devices", ">H", ">K", ">samples/s", ">90 %", ">step",
               ">utilisation", ">staleness", ">efficiency"]  # fmt: skip
    rows = [
        (
            one.kind,
            len(one.groups),
            sum(samples > 0 for shares in one.shares for samples in shares),
            one.local_steps,
            one.quorum,
            Cell(f"{one.predicted_throughput:,.1f}", one.predicted_throughput),
            "{:,.1f} to {:,.1f}".format(*one.interval_90) if one.interval_90 else "",
            _seconds(one.predicted_step),
            format_share(one.predicted_utilisation),
            f"{one.staleness:.2f}",
            f"{one.efficiency:.2f}",
        )
        for one in plan.ranked
    ]
    title = f"{plan.network} on {plan.cluster}, global batch {plan.global_batch}"
    return make_table(columns, rows, title=title, ordered=True)
