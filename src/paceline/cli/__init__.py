"""The command line: one file per verb, imported only when the verb is used, so that --help answers at once."""

from __future__ import annotations

import importlib
import os
import signal
import sys

import click

from paceline import __version__, variables
from paceline.errors import PacelineError

__all__ = ["main", "program"]

VERBS: dict[str, str] = {
    "doctor": "Look for what would spoil a measurement on this machine, and say how to fix it.",
    "networks": "List the networks that ship with Paceline, or the layers and costs of one.",
    "catalog": "Show devices, links and clusters with their figures and sources.",
    "frameworks": "List frameworks and whether they can run here; install them; prove that they compute the same.",
    "run": "Measure every case of a study and store what happened.",
    "cluster": "Bring virtual clusters up and down on this machine; inspect real ones.",
    "bench-collectives": "Measure all-reduce and its relatives by size and ranks.",
    "show": "Print throughput, scaling and phases of stored runs.",
    "compare": "Say whether two groups of runs differ, by how much, and how sure that is.",
    "explain": "Say where the step goes, why cases differ and what would help most.",
    "report": "Write one self-contained HTML page about a study.",
    "export": "Write results for other tools: traces, tables, logs.",
    "plan": "Choose strategy and batch split for a cluster of unequal devices, and say why.",
    "train": "Run a training script on the devices of a cluster, as one group that balances itself.",
    "query": "Ask all stored runs a question in SQL.",
    "predict": "Predict step time and throughput on other devices, links, counts, with intervals.",
    "whatif": "Predict with something changed, side by side.",
    "simulate": "Play a prediction as events: stragglers, failures, asynchrony, other jobs on the link.",
    "transformer": "Predict an iteration of a transformer spread by tensor, pipeline and data, and what fits.",
    "calibrate": "Fit the model to stored runs and collective sweeps.",
    "validate": "Predict published figures that were left out, and print how far off that was.",
}
"""Every verb and its one line of help; the verb's module is `paceline.cli.<verb>`."""


class _Verbs(click.Group):
    """A group that knows its verbs by name and loads the module of the one that is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"paceline.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from paceline.errors import UnknownName

            raise UnknownName("command", args[0], VERBS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "--version", prog_name="paceline")
def program() -> None:
    """A performance laboratory for distributed deep learning.

    \b
    Start here:
      paceline doctor                               is this machine fit to measure?
      paceline run examples/studies/demo.toml       measure a network on 1 and 2 ranks
      paceline show demo                            what was found
      paceline report demo                          the same as a page with plots and advice

    Every command takes --json for machines and -h for an explanation with examples.
    """


def main() -> None:
    """Run the command line; an error becomes one clear message and an exit code."""
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        program(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("stopped", err=True)
        sys.exit(130)
    except PacelineError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if os.environ.get(variables.DEBUG):
            raise
        click.echo(f"internal error: {type(error).__name__}: {error}", err=True)
        click.echo(f"  hint: this is a defect of Paceline; {variables.DEBUG}=1 shows where it happened", err=True)
        sys.exit(70)
