"""Every error of the product, in one tree.

    PacelineError                 an error that the user can fix; the command line prints it and exits
    ├── InputError                an argument or input file is wrong (exit 2)
    │   ├── SpecError             a study, cluster or network file; contains all its problems
    │   ├── UnitError             a quantity with a wrong unit, such as "25 GB/s" for a time
    │   ├── UnknownName           a name that is not in the catalog or store, with the nearest known name
    │   └── Unsupported           a valid request for which there is no data
    ├── EnvironmentFailed         the environment of a framework could not be created (exit 1)
    ├── LaunchFailed              ranks could not be started on the requested hosts (exit 1)
    ├── PluginError               a framework of another distribution cannot be used (exit 1)
    ├── StoreError                stored data cannot be read or written (exit 1)
    └── TrainingLost              a training process cannot rejoin its group (exit 1)

    TrainingOver                  not an error: a process joins after training has ended; it exits with code 0

An error message says what happened, what was expected, and how to fix it.
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
    "PluginError",
    "Problem",
    "SpecError",
    "StoreError",
    "TrainingLost",
    "TrainingOver",
    "UnitError",
    "UnknownName",
    "Unsupported",
    "missing_extra",
    "nearest",
]


class PacelineError(Exception):
    """Root of the error tree: a message for the user, a hint, and the exit code of the command line."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class InputError(PacelineError):
    """An argument or input file is wrong."""

    exit_code = 2


class UnitError(InputError, ValueError):
    """A quantity with a wrong or missing unit; also a ValueError, so that pydantic reports it with its field."""

    def __init__(self, given: object, *, expected: str, hint: str | None = None) -> None:
        super().__init__(f"{given!r} is not {expected}", hint=hint)
        self.expected = expected


class Unsupported(InputError):
    """The request is valid, but no measurement or catalog entry supports an answer; the hint says what would."""


def missing_extra(package: str, extra: str) -> Unsupported:
    """The error of an optional package that is not installed; it names the extra that installs it."""
    return Unsupported(f"{package} is not installed", hint=f"pip install 'paceline[{extra}]'")


class EnvironmentFailed(PacelineError):
    """The isolated environment of a framework could not be created; no partial environment remains."""


class PluginError(PacelineError):
    """A framework of another distribution cannot be used: a name clash, a missing record, or an error on import."""


class LaunchFailed(PacelineError):
    """The ranks could not be started on the requested hosts."""


class StoreError(PacelineError):
    """Stored data cannot be read or written."""


class TrainingLost(PacelineError):
    """A training process cannot rejoin its group; the group may continue without it."""


class TrainingOver(SystemExit):
    """Training ended before this process could join; unless caught, the process exits with code 0."""


class UnknownName(InputError):
    """An unknown name, with the nearest known name, and what else helps (`otherwise`)."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, otherwise: str = "") -> None:
        known = sorted(known)
        begun = [item for item in known if name and item.lower().startswith(name.lower())]
        close = nearest(name, known)
        one_short = len([item for item in begun if len(item) - len(name) <= 1]) == 1
        likely = close or (begun[0] if begun else None)
        if len(begun) > 1 and not one_short:
            meant = f"these begin with it: {_listed(begun)}" + (";" if otherwise else "")
        else:
            meant = f"did you mean {likely!r}?" if likely else ""
        hint = f"{meant} {otherwise}".strip() or f"known: {_listed(known)}"
        super().__init__(f"no {kind} is called {name!r}", hint=hint)


@dataclass(frozen=True)
class Problem:
    """One invalid field of one file."""

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
    """An invalid file, with all its problems."""

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
    """The known name that is most similar to `name`, ignoring case; None if no name is similar enough."""
    lowered = {item.lower(): item for item in known}
    matches = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return lowered[matches[0]] if matches else None
