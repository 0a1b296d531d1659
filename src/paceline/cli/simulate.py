"""`paceline simulate`: simulate stragglers, failures, asynchrony and other jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline import api
from paceline.cli.options import Finite, json_option, options, plot_option
from paceline.cli.questions import (
    calibration_of,
    question_arguments,
    question_options,
    requested_changes,
    requested_counts,
    seconds_of,
)
from paceline.model.changes import changed
from paceline.model.question import precision_of
from paceline.model.scaling import exchange_of
from paceline.model.simulate.scenario import Disturbance, simulate_question
from paceline.report.plots import check_plot, write_simulated
from paceline.report.terminal import emit
from paceline.report.terminal.predictions import show_simulated

__all__ = ["command"]

_trouble_options = options(
    click.option("--steps", type=int, default=500, show_default=True, help="Number of steps to simulate (per worker)."),
    click.option("--straggle", type=Finite(0, 1), default=0.0, show_default=True,
                 help="Probability that a step of a device is slow."),
    click.option("--straggle-factor", type=Finite(1, 1e6), default=5.0, show_default=True,
                 help="Factor of a slow step."),
    click.option("--mtbf", help="Mean time between failures of one device, such as '1000 h'; default: no failures."),
    click.option("--restart", default="5 min", show_default=True, help="Time from a failure until training continues."),
    click.option("--checkpoint-every", default=100, show_default=True, help="Steps between checkpoints; what came "
                 "after the last one is repeated."),
    click.option("--jobs", default=1, show_default=True, help="Equal jobs on these hosts, this one included."),
    click.option("--seed", default=0, show_default=True, help="Random seed."),
)  # fmt: skip


@click.command()
@question_options
@_trouble_options
@plot_option
@json_option
def command(devices: str | None, changes: tuple[str, ...], calibration: Path | None, steps: int, straggle: float,
            straggle_factor: float, mtbf: str | None, restart: str, checkpoint_every: int, jobs: int, seed: int,
            plot: Path | None, as_json: bool, **asked: Any) -> None:  # fmt: skip
    """Simulate the steps of a prediction with stragglers, failures, asynchrony and other jobs.

    `paceline predict` assumes that no disturbance occurs. `simulate` takes the same options and adds stragglers,
    failures with restarts from checkpoints, other jobs on the same links, or asynchronous workers that queue at
    parameter servers (with an asynchronous framework or strategy). It prints the cost of each disturbance.

    \b
    Examples:
      paceline simulate --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --devices 8,32 --straggle 0.01
      paceline simulate --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --devices 32 --jobs 2
      paceline simulate --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --devices 32 \\
        --mtbf '20 h' --restart '10 min' --checkpoint-every 1000 --steps 20000
      paceline simulate --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --devices 8,32 \\
        --framework mxnet/dist_async --set strategy.servers=4
    """
    check_plot(plot)
    framework, counts = asked.pop("framework"), requested_counts(devices, asked["cluster"])
    known = calibration_of(calibration)
    asked = question_arguments(**asked)
    wanted = requested_changes(changes, batch=asked["batch"], precision=asked["precision"])
    question = changed(api.question_about(**asked, framework=framework, devices=max(counts)), wanted)
    trouble = Disturbance(
        steps, straggle, straggle_factor, mtbf=None if mtbf is None else seconds_of(mtbf, "--mtbf"),
        restart=seconds_of(restart, "--restart"), checkpoint_every=checkpoint_every, jobs=jobs, seed=seed,
    )  # fmt: skip
    runs = [simulate_question(question, count, trouble, calibration=known) for count in counts]
    how = {"precision": precision_of(question), "exchange": exchange_of(question, counts, known), **trouble.words()}
    if plot is not None:
        write_simulated(plot, runs, question.label)
    if as_json:
        plain = [run.as_dict() for run in runs]
        emit({"question": question.label, **how, "trouble": vars(trouble), "runs": plain}, "simulate")
    else:
        show_simulated(question.label, runs, how)
