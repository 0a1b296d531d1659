"""Progress of long work: a bar with the time left on a terminal, a line per launch elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from paceline.bench.campaign import CampaignEvent, CaseStopped, LaunchFinished, LaunchStarted
from paceline.files import printable
from paceline.measurements.run import Check, Run
from paceline.spec.study import Case, Protocol
from paceline.units import SECONDS

__all__ = ["Display"]

REASONS = {
    "settled": "interval narrow enough",
    "launches": "all launches made",
    "failed": "failed twice",
    "budget": "budget used up",
}


class Display:
    """Shows the progress of a campaign on standard error."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            refresh_per_second=1,
            disable=not self.console.is_terminal,
        )

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    @contextlib.contextmanager
    def interruptible(self, command: str) -> Iterator[None]:
        """Print how to resume after an interruption."""
        try:
            yield
        except KeyboardInterrupt:
            self.console.print(f"\nWhat is finished is kept; go on with:\n  {_plain(command)}")
            raise

    def checks(self, checks: tuple[Check, ...]) -> None:
        """Print the failed checks of the machine for this study."""
        for check in checks:
            if check.status != "ok":
                colour = "yellow" if check.status == "warn" else "red"
                text = f"{check.name}: {check.saw}, expected {check.expected}"
                self.console.print(f"[{colour}]{check.status}[/] {_plain(text)}")

    @contextlib.contextmanager
    def installing(self, name: str) -> Iterator[Callable[[str], None]]:
        """Show the progress of an installation."""
        self.console.print(f"making the {name} environment (once)")
        task = self._progress.add_task(f"installing {name}", total=None)

        def say(line: str) -> None:
            words = " ".join(line.split())[:60]
            if words and not words.startswith("WARNING"):
                self._progress.update(task, description=_plain(f"{name}: {words}"))

        yield say
        self._progress.remove_task(task)

    def follow(self, events: Iterable[CampaignEvent], protocol: Protocol, cases: tuple[Case, ...]) -> None:
        """Show each launch; the total grows if intervals need more launches than the minimum."""
        task = self._progress.add_task("launches", total=len(cases) * protocol.launches)
        for event in events:
            if isinstance(event, LaunchStarted):
                self._progress.update(task, description=_plain(event.case.label))
                self._grow(task, event.launch, protocol)
            elif isinstance(event, LaunchFinished):
                self._progress.advance(task)
                self.console.print(_line(event.run))
            elif isinstance(event, CaseStopped) and event.reason != "launches":
                text = f"{event.case.label}: done after {event.launches} launches, {REASONS[event.reason]}"
                self.console.print(f"  [dim]{_plain(text)}[/]")

    def _grow(self, task: object, launch: int, protocol: Protocol) -> None:
        if launch >= protocol.launches:
            task = self._progress.tasks[-1]
            self._progress.update(task.id, total=(task.total or 0) + 1)


def _line(run: Run) -> str:
    name = _plain(f"{run.label}, launch {run.launch + 1}")
    if run.failure:
        return f"[red]failed[/] {name}: {_plain(run.failure.message)}"
    return f"[green]ok[/] {name} [dim]({SECONDS.format(run.seconds)})[/]"


def _plain(text: str) -> str:
    """Text without markup, and without commands to the terminal: a failed rank's log may hold them."""
    return escape(printable(text))
