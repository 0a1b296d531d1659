"""`paceline catalog`: devices, links, clusters and frameworks with their figures and sources."""

from __future__ import annotations

from typing import Any

import click

from paceline.catalog.describe import SECTIONS, describe, entry_names, section
from paceline.cli.options import complete_words, json_option
from paceline.report.terminal import emit, print_rows
from paceline.report.terminal.records import show_catalog_entry

__all__ = ["command"]


@click.command()
@click.argument("name", required=False, shell_complete=complete_words(entry_names()))
@json_option
def command(name: str | None, as_json: bool) -> None:
    """List the catalog or one of its sections, or show NAME with the source of every figure.

    NAME is `devices`, `links`, `clusters` or `frameworks`, one of their entries, or the path of a cluster's TOML file,
    which is validated and shown. `paceline networks` lists networks.

    \b
    Examples:
      paceline catalog                 everything by name
      paceline catalog links           every link
      paceline catalog v100-sxm2       figures of one device, each with its source
      paceline catalog my_lab.toml     validate this file and show its content
    """
    parts = list(SECTIONS) if name is None else [name] if name in SECTIONS else []
    document: dict[str, Any] = {part: section(part) for part in parts} if parts else describe(str(name))
    if as_json:
        emit(document, "catalog")
    elif parts:
        for part in parts:
            print_rows(part, ("name", "title"), [(item["name"], item["title"]) for item in document[part]])
    else:
        show_catalog_entry(document)
