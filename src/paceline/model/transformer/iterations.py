"""Measured iterations of the user's machine from a CSV file, and predictions that rest on them alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import InputError, Problem, UnknownName, Unsupported
from paceline.model.measured.cells import Cells, read_table
from paceline.model.prediction import Estimate
from paceline.model.transformer.shape import Parallel, TransformerShape
from paceline.model.transformer.step import features, fit_everywhere, fit_rates, predict_iteration
from paceline.spec.load import refuse_rows

__all__ = ["Iteration", "predict_from", "read_iterations"]

SHAPE = ("hidden", "heads", "layers", "sequence", "vocabulary")
PARALLEL = ("tensor", "pipeline", "data", "micro_batch", "global_batch", "interleave")

FEWEST = 3
"""Measured iterations that a fit needs."""


@dataclass(frozen=True)
class Iteration:
    """One measured iteration."""

    shape: TransformerShape
    parallel: Parallel
    seconds: float


def read_iterations(path: Path, shape: TransformerShape, parallel: Parallel) -> list[Iteration]:
    """The iterations of a CSV file: `seconds`, and a column for each size that differs from those that are asked."""
    columns, lines = read_table(path)
    plain = [name.strip().lower().replace("-", "_") for name in columns]
    if "seconds" not in plain:
        raise InputError(f"{path}: column missing: seconds", hint=f"columns: seconds, {', '.join((*SHAPE, *PARALLEL))}")
    for name in plain:
        if name not in ("seconds", *SHAPE, *PARALLEL):
            raise UnknownName("column of measured iterations", name, ("seconds", *SHAPE, *PARALLEL))
        if plain.count(name) > 1:
            raise InputError(f"{path}: two columns are called {name}", hint="leave one of them out")
    problems: list[Problem] = []
    rows = [Cells(str(path), line, dict(zip(plain, row.values(), strict=True)), problems) for line, row in lines]
    found = [_iteration(cells, vars(shape), vars(parallel)) for cells in rows]
    refuse_rows(str(path), problems)
    return [one for one in found if one is not None]


def _iteration(cells: Cells, shape: Mapping[str, int], parallel: Mapping[str, Any]) -> Iteration | None:
    before = len(cells.problems)
    seconds = cells.number("seconds", needed=True)
    sizes = {name: cells.number(name, needed=True) for name in (*SHAPE, *PARALLEL) if name in cells.row}
    for name, size in sizes.items():
        if size is not None and size != round(size):
            cells.refuse(name, f"{size:g}", "a whole number")
    if seconds is None or len(cells.problems) > before:
        return None
    whole: dict[str, Any] = {name: round(size) for name, size in sizes.items() if size is not None}
    ran = Parallel(**{**parallel, **{name: size for name, size in whole.items() if name in PARALLEL}})
    model = TransformerShape(**{**shape, **{name: size for name, size in whole.items() if name in SHAPE}})
    try:
        ran.check(model)
    except InputError as error:
        cells.refuse("row", str(error), "an iteration that can be run", error.hint)
    return Iteration(model, ran, seconds)


def predict_from(measured: Sequence[Iteration], shape: TransformerShape, parallel: Parallel) -> Estimate:
    """An iteration by the rates of a machine that are fitted to these; of many hosts only if one of them is."""
    parallel.check(shape)
    beyond = parallel.devices > parallel.per_host
    if beyond and not any(one.parallel.devices > one.parallel.per_host for one in measured):
        raise Unsupported(
            f"{parallel.devices} devices need several hosts of {parallel.per_host}, and no measured iteration does",
            hint="measure one on two hosts, too: nothing else tells what the link between them costs",
        )
    used = [one for one in measured if beyond or one.parallel.devices <= one.parallel.per_host]
    if len(used) < FEWEST:
        raise Unsupported(
            f"{len(used)} of {len(measured)} measured iterations are on one host, {FEWEST} are needed"
            if len(used) < len(measured) else f"{len(used)} measured iterations cannot fit a transformer",
            hint=f"measure at least {FEWEST}",
        )  # fmt: skip
    case = features([one.shape for one in used], [one.parallel for one in used])
    seconds = np.array([one.seconds for one in used])
    rates = fit_everywhere(case, seconds) if beyond else fit_rates(case, seconds)
    return predict_iteration(rates, features([shape], [parallel]))[0]
