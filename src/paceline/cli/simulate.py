"""`paceline simulate`: what stragglers, failures, asynchrony and other jobs do to a prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from paceline.cli.curves import plot_option, write_file
from paceline.cli.output import emit, json_option, say, table
from paceline.cli.questions import calibration_of, counts_of, question_of, question_options
from paceline.model.changes import changed, parse_changes
from paceline.model.simulate.scenario import Simulated, Trouble, simulate_question
from paceline.report.shares_plot import shares_svg
from paceline.units import SECONDS, format_share

__all__ = ["command"]

WIDTH = 56
MARKS = {"compute": "#", "exchange and rest": "=", "other jobs": "o", "jitter": "j", "stragglers": "s",
         "failures": "f", "queue and stragglers": "q"}  # fmt: skip
"""Characters of the bars."""

_TROUBLES = (
    click.option("--steps", default=500, show_default=True, help="Steps to play (of each worker)."),
    click.option("--straggle", default=0.0, show_default=True, help="Probability that a device's step is slowed."),
    click.option("--straggle-factor", default=5.0, show_default=True, help="How many times slower it is then."),
    click.option("--mtbf", help="Mean time between failures of one device, such as '1000 h'; none: nothing fails."),
    click.option("--restart", default="5 min", show_default=True, help="From a failure until training goes on."),
    click.option("--checkpoint-every", default=100, show_default=True, help="Steps between checkpoints; what came "
                 "after the last one is repeated."),
    click.option("--jobs", default=1, show_default=True, help="Equal jobs on these hosts, this one included."),
    click.option("--seed", default=0, show_default=True, help="The same seed gives the same run."),
)  # fmt: skip


def _trouble_options(function: Any) -> Any:
    for option in reversed(_TROUBLES):
        function = option(function)
    return function


@click.command()
@question_options
@_trouble_options
@plot_option
@json_option
def command(devices: str, changes: tuple[str, ...], calibration: Path | None, steps: int, straggle: float,
            straggle_factor: float, mtbf: str | None, restart: str, checkpoint_every: int, jobs: int, seed: int,
            plot: Path | None, as_json: bool, **asked: Any) -> None:  # fmt: skip
    """Play the steps of a prediction one by one, with what no formula holds.

    `paceline predict` assumes that nothing goes wrong. This verb takes the same question and adds stragglers, failures
    with restarts from checkpoints, other jobs on the same links, or workers that do not wait for each other and queue
    at parameter servers (a framework or strategy that is asynchronous). It says how much each of them costs.

    \b
    Examples:
      paceline simulate --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --devices 8,32 --straggle 0.01
      paceline simulate --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --devices 32 --jobs 2
      paceline simulate --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --devices 32 \\
        --mtbf '20 h' --restart '10 min' --checkpoint-every 1000 --steps 20000
      paceline simulate --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --devices 8,32 \\
        --framework mxnet/dist_async --set strategy.servers=4
    """
    question = changed(question_of(**asked), parse_changes(changes))
    trouble = Trouble(
        steps, straggle, straggle_factor, mtbf=None if mtbf is None else SECONDS.parse(mtbf),
        restart=SECONDS.parse(restart), checkpoint_every=checkpoint_every, jobs=jobs, seed=seed,
    )  # fmt: skip
    known = calibration_of(calibration)
    found = [simulate_question(question, n, trouble, calibration=known) for n in counts_of(devices, "--devices")]
    if plot is not None:
        write_file(plot, shares_svg(found, title=question.label))
    if as_json:
        emit({"question": question.label, "trouble": vars(trouble), "runs": [one.as_dict() for one in found]},
             "simulate")  # fmt: skip
    else:
        _show(question.label, found)


def _show(label: str, found: list[Simulated]) -> None:
    asynchronous = any(one.staleness is not None for one in found)
    columns = [">devices", ">predicted step", ">simulated step", ">samples/s", ">lost"]
    columns += [">staleness", ">servers busy"] if asynchronous else [">50 %", ">90 %", ">99 % of steps"]
    table(label, columns, [_row(one, asynchronous) for one in found])
    say("\nwhere the time goes")
    for one in found:
        ends = np.round(np.cumsum([0.0, *one.shares.values()]) * WIDTH).astype(int)
        bar = "".join(MARKS[name] * (end - begin) for name, begin, end in zip(one.shares, ends, ends[1:], strict=False))
        say(f"{one.devices:>8} |{bar}|")
    shown = {name for one in found for name in one.shares}
    say("          " + ", ".join(f"{mark} {name}" for name, mark in MARKS.items() if name in shown))
    last = found[-1]
    said = ", ".join(f"{name} {format_share(share)}" for name, share in last.shares.items())
    say(f"at {last.devices} devices: {said}")


def _row(one: Simulated, asynchronous: bool) -> list[object]:
    lost = max(0.0, 1 - one.predicted_step_s / one.step_s)
    cells: list[object] = [one.devices, SECONDS.format(one.predicted_step_s), SECONDS.format(one.step_s)]
    cells += [f"{one.samples_per_s:,.1f}", format_share(lost)]
    if not asynchronous:
        return [*cells, *(SECONDS.format(value) for value in one.quantiles.values())]
    if one.staleness is None or one.server_busy is None:
        return [*cells, "", ""]
    return [*cells, f"{one.staleness:.1f}", format_share(one.server_busy)]
