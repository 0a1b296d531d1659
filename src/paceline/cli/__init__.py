"""The command line: one file per verb, imported on first use, so that --help is fast."""

from __future__ import annotations

import importlib
import io
import logging
import os
import signal
import sys

import click

from paceline import __version__, variables
from paceline.errors import PacelineError
from paceline.files import printable

__all__ = ["Commands", "main", "program"]

VERBS: dict[str, str] = {
    "demo": "Measure a network here, predict more ranks, check the prediction, write a page.",
    "doctor": "Check this machine for conditions that disturb a measurement.",
    "clean": "Show caches with their paths and sizes, and clear them.",
    "networks": "List the networks of the catalog, or show the layers and costs of one.",
    "catalog": "Show devices, links and clusters with their figures and sources.",
    "frameworks": "List, install and verify frameworks.",
    "run": "Measure every case of a study and store the runs.",
    "watch": "Run an unchanged training script, and report where its time goes.",
    "cluster": "Start, stop and list virtual clusters; inspect real clusters.",
    "bench-collectives": "Measure all-reduce and other collectives over sizes and ranks.",
    "import": "Import traces, logs, dumps and nccl-tests of other tools; analyse them as runs.",
    "show": "Print throughput, scaling and phases of stored runs.",
    "compare": "Test whether two groups of launches differ, and by how much.",
    "explain": "Explain the phases of a step, differences between cases, and possible gains.",
    "report": "Write one self-contained HTML page about a study.",
    "export": "Write results in formats of other tools: traces, tables, logs.",
    "plan": "Choose strategy and batch split for a cluster of unequal devices, with the reason.",
    "train": "Run a training script on the devices of a cluster with load balancing.",
    "top": "Monitor the ranks of a running training job.",
    "query": "Query all stored runs with SQL.",
    "store": "Check stored runs against their checksums, and repair a damaged store.",
    "predict": "Predict step time and throughput on other devices, links, counts, with intervals.",
    "whatif": "Compare a prediction with and without a change.",
    "simulate": "Simulate stragglers, failures, asynchrony and other jobs on the link.",
    "transformer": "Predict time and memory of a transformer with tensor, pipeline and data parallelism.",
    "calibrate": "Fit the model to stored runs and collective sweeps.",
    "evaluate": "Repeat a published evaluation: predict it, measure its question here, write its page.",
    "validate": "Predict held-out published figures, and print the errors.",
}
"""All verbs with one line of help; the module of a verb is `paceline.cli.<verb>`."""


LONGEST_NAME = 200
"""Characters of a file's name in an error."""


class Commands(click.Group):
    """A group whose help has the whole line of each command, and whose errors name the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments name; the shell's completion sees no error."""
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-") and not ctx.resilient_parsing:
            from paceline.errors import UnknownName

            raise UnknownName("command", args[0], names, otherwise=f"`{ctx.command_path} -h` lists the commands")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write every command with its line of help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.help_line(ctx, name)) for name in self.list_commands(ctx)])

    def help_line(self, ctx: click.Context, name: str) -> str:
        """The first sentence of a command's help."""
        command = self.get_command(ctx, name)
        return command.get_short_help_str(limit=200) if command else ""


class _Verbs(Commands):
    """The commands of `paceline`: the module of a verb is loaded on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"paceline.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def help_line(self, ctx: click.Context, name: str) -> str:
        return VERBS[name]

    def invoke(self, ctx: click.Context) -> None:
        """Run a verb; a reader that closes its pipe, as `head` does, ends it without an error."""
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "--version", prog_name="paceline")
def program() -> None:
    """Measure, predict, explain and improve the performance of distributed deep learning.

    \b
    Start here:
      paceline demo                                 measure, predict, check the prediction, write a page
      paceline doctor                               check this machine
      paceline run examples/studies/demo.toml       measure a network on 1 and 2 ranks
      paceline show demo                            results
      paceline report demo                          the same as a page with plots and advice

    Every command has --json output and examples in -h.
    """
    from paceline.measurements.integrity import NOTES

    _heed_signals()
    NOTES.clear()
    log = logging.getLogger("paceline.store")
    log.handlers, log.propagate = [_Warnings()], False


class _Warnings(logging.Handler):
    """Warnings about the store, on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(printable(f"warning: {record.getMessage()}", lines=True), err=True)


def main() -> None:
    """Run the command line; an error becomes a message and an exit code."""
    _prepare_streams()
    try:
        program(prog_name="paceline", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(printable(f"error: {_usage(error)}", lines=True), err=True)
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("stopped", err=True)
        sys.exit(130)
    except PacelineError as error:
        click.echo(printable(f"error: {error}", lines=True), err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        if os.environ.get(variables.DEBUG):
            raise
        click.echo(f"error: {_refusal(error)}", err=True)
        sys.exit(2 if error.filename else 1)
    except Exception as error:
        if os.environ.get(variables.DEBUG):
            raise
        click.echo(printable(f"internal error: {type(error).__name__}: {error}", lines=True), err=True)
        click.echo(f"  hint: this is a bug in Paceline; {variables.DEBUG}=1 shows the traceback", err=True)
        sys.exit(70)


def _heed_signals() -> None:
    """Handle signals from here on, so that a command can clean up; before this, a signal ends the process at once."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Not SIGINT, which background jobs of a script ignore.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _prepare_streams() -> None:
    """Open closed standard streams as /dev/null: otherwise the next opened file would get their number and the output.

    Characters that the encoding of a stream lacks are printed as escapes.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _usage(error: click.ClickException) -> str:
    """A wrong option or argument in the form of every other error, with the command that shows the right ones."""
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    hint = f"\n  hint: `{context.command_path} -h` shows options and examples" if context else ""
    return f"{message[:1].lower()}{message[1:]}{hint}"


def _refusal(error: OSError) -> str:
    """Message for an error of the operating system, with the file if there is one."""
    name = printable(str(error.filename))
    place = f"{name if len(name) <= LONGEST_NAME else name[:LONGEST_NAME] + '...'}: " if error.filename else ""
    return f"{place}{error.strerror or error}"
