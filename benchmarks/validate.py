"""Predictions against published figures that were left out of the fit: what `paceline validate` says of each campaign.

    .venv/bin/python benchmarks/validate.py

The first points of every published scaling series predict each later one, and nothing is learnt from the campaign that
is judged. A power law, a straight line and Amdahl's law are fitted to the same points. GPT throughputs leave each model
shape out once. The form weights and priors were chosen on these series (docs/decisions/0026), so the figures are not a
test on unseen campaigns. `known campaigns` and `fresh campaigns` ask for the largest point of each series of one batch
per device, given all others: of the campaigns that the forms were designed on, and of those that came later.
"""

from __future__ import annotations

import sys

from lib.result import Figure, parser_of, publish

from paceline.model.validation.report import Row, validate_shipped


def main() -> int:
    """Judge every campaign."""
    args = parser_of(__doc__).parse_args()
    rows = validate_shipped()
    figures = [figure for row in rows for figure in figures_of(row)]
    return publish(args, figures, turns=[row.as_dict() for row in rows])


def figures_of(row: Row) -> list[Figure]:
    """Mean error with median and worst, and how many of the points the 90 % intervals hold."""
    mean, median, worst = (100 * value for value in (row.mean_error, row.median_error, row.worst_error))
    name = f"{row.group}, {row.name}" if row.group != "other" else row.name
    figures = [Figure(f"{name}: mean error", mean, "%", median, worst, f"median to worst of {row.points}")]
    figures += [Figure(f"{name}: mean error, {law}", 100 * error, "%") for law, error in row.laws.items()]
    if row.covered_90 is not None:
        figures.append(Figure(f"{name}: inside the 90 % interval", 100 * row.covered_90, "%"))
    return figures


if __name__ == "__main__":
    sys.exit(main())
