"""Predictions against published figures that were left out of the fit: what `paceline validate` says of each campaign.

    .venv/bin/python benchmarks/validate.py

Of every published scaling series the largest device count is predicted from the smaller ones; GPT throughputs leave
each model shape out once. With `--whole-campaigns` nothing of the campaign that is judged is used.
"""

from __future__ import annotations

import sys

from lib.result import Figure, parser_of, publish

from paceline.model.validation.report import Row, validate_shipped


def main() -> int:
    """Judge every campaign."""
    parser = parser_of(__doc__)
    parser.add_argument("--whole-campaigns", action="store_true", help="learn nothing from the campaign that is judged")
    args = parser.parse_args()
    rows = validate_shipped(whole_campaigns=args.whole_campaigns)
    figures = [figure for row in rows for figure in figures_of(row)]
    return publish(args, figures, turns=[row.as_dict() for row in rows])


def figures_of(row: Row) -> list[Figure]:
    """Mean error with median and worst, and how many of the points the 90 % intervals hold."""
    mean, median, worst = (100 * value for value in (row.mean_error, row.median_error, row.worst_error))
    figures = [Figure(f"{row.name}: mean error", mean, "%", median, worst, f"median to worst of {row.points}")]
    if row.covered_90 is not None:
        figures.append(Figure(f"{row.name}: inside the 90 % interval", 100 * row.covered_90, "%"))
    return figures


if __name__ == "__main__":
    sys.exit(main())
