"""Every error of the product, in one tree.

    PacelineError                 what the user can act on; the command line prints it and exits
    ├── InputError                something given is wrong (exit 2)
    │   ├── SpecError             a study, cluster or network file; holds every problem found
    │   ├── UnitError             "25 GB/s" where a time was expected
    │   ├── UnknownName           a name that no catalog or store holds, with the nearest right ones
    │   └── Unsupported           a valid question for which nothing supports an answer
    ├── EnvironmentFailed         a framework's environment could not be made (exit 1)
    ├── LaunchFailed              ranks could not be started where they were asked (exit 1)
    ├── StoreError                stored data cannot be read or written (exit 1)
    └── TrainingLost              a training process cannot find its way back to the group (exit 1)

    TrainingOver                  no error: a process came (back) when training was over; it ends with exit code 0

An error says what happened, what was expected, and how to fix it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "EnvironmentFailed",
    "InputError",
    "LaunchFailed",
    "PacelineError",
    "Problem",
    "SpecError",
    "StoreError",
    "TrainingLost",
    "TrainingOver",
    "UnitError",
    "UnknownName",
    "Unsupported",
    "nearest",
]


class PacelineError(Exception):
    """The root: a message for the user, how to fix it, and the exit code of the command line."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class InputError(PacelineError):
    """Something the user gave is wrong."""

    exit_code = 2


class UnitError(InputError, ValueError):
    """A quantity with the wrong unit or none; a ValueError too, so that pydantic reports it with its field."""

    def __init__(self, given: object, *, expected: str, hint: str | None = None) -> None:
        super().__init__(f"{given!r} is not {expected}", hint=hint)
        self.expected = expected


class Unsupported(InputError):
    """The question is valid, but nothing measured or known supports an answer; says what would."""


class EnvironmentFailed(PacelineError):
    """A framework's isolated environment could not be made; nothing half-made is left behind."""


class LaunchFailed(PacelineError):
    """The ranks could not be started where they were asked to run."""


class StoreError(PacelineError):
    """Stored data cannot be read or written."""


class TrainingLost(PacelineError):
    """A training process cannot find its way back to the group; the group may well go on without it."""


class TrainingOver(SystemExit):
    """Training ended before this process could take part; unless somebody catches this, it ends with exit code 0."""


class UnknownName(InputError):
    """A name that is not there, with the nearest names that are."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        close = nearest(name, known)
        message = f"no {kind} is called {name!r}"
        super().__init__(message, hint=f"did you mean {close!r}?" if close else f"known: {_listed(known)}")


@dataclass(frozen=True)
class Problem:
    """One wrong field of one file."""

    file: str
    line: int | None
    field: str
    given: str
    expected: str
    hint: str | None = None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        text = f"{place}: {self.field}: got {self.given}, expected {self.expected}"
        return f"{text} ({self.hint})" if self.hint else text


class SpecError(InputError):
    """A file that asks for something wrong; holds every problem found in it."""

    def __init__(self, path: Path | str, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems]
        count = len(lines)
        head = f"{path} has {count} problem{'s' if count != 1 else ''}"
        super().__init__("\n".join([head, *(f"  {line}" for line in lines)]))


def _listed(names: list[str], most: int = 24) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "none yet"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like this one, if any is alike enough; upper and lower case are the same."""
    lowered = {item.lower(): item for item in known}
    found = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return lowered[found[0]] if found else None
