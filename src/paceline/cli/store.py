"""`paceline store`: check and repair stored runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from paceline.cli import Commands
from paceline.cli.options import json_option, store_option
from paceline.errors import InputError
from paceline.measurements.repair import inspect_store, repair_store
from paceline.measurements.store import Store
from paceline.report.terminal import emit
from paceline.report.terminal.records import show_inspection, show_repairs

__all__ = ["command"]


@click.group(cls=Commands)
def command() -> None:
    """Check stored runs against their checksums, and repair a damaged store.

    \b
    Examples:
      paceline store check
      paceline store repair --store results
    """


@command.command()
@store_option
@json_option
def check(store: Path, as_json: bool) -> None:
    """Read every run and campaign, and list damaged files; exit code 1 if there is one.

    Each run has checksums in the format of `sha256sum`, verified whenever it is read. Runs without checksums, of older
    versions, are read and counted as unverified.

    \b
    Example:
      paceline store check --store results
    """
    inspection = inspect_store(_existing(store))
    if as_json:
        document = {name: [asdict(item) for item in getattr(inspection, name)] for name in ("damaged", "newer")}
        counts = {"runs": len(inspection.runs), "campaigns": len(inspection.campaigns)}
        emit({"store": str(store), **counts, **document, "unverified": list(inspection.unverified)}, "store.check")
    else:
        show_inspection(inspection, store)
    if inspection.damaged or inspection.newer:
        raise SystemExit(1)


@command.command()
@store_option
@json_option
def repair(store: Path, as_json: bool) -> None:
    """Move damaged data into STORE/damaged, rebuild what can be rebuilt, add missing checksums.

    Nothing is deleted. The document of a campaign is rebuilt from its intact runs, without its study file. Valid runs
    without checksums get checksums of their current content. Runs of a newer version of Paceline are not changed.

    \b
    Example:
      paceline store repair --store results
    """
    done = repair_store(_existing(store))
    emit({"store": str(store), "done": [asdict(item) for item in done]}, "store.repair") if as_json else show_repairs(
        done, store
    )


def _existing(path: Path) -> Store:
    """The store at a path; a mistyped path must not pass for a store without damage."""
    if not path.is_dir():
        raise InputError(
            f"{path}: there is no such directory", hint="--store needs the directory that `paceline run` wrote to"
        )
    return Store(path)
