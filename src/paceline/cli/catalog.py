"""`paceline catalog`: devices, links, clusters and frameworks with their figures and sources."""

from __future__ import annotations

from typing import Any

import click

from paceline.catalog.describe import SECTIONS, describe, section
from paceline.cli.output import emit, json_option, table

__all__ = ["command"]


@click.command()
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """List the catalog, one part of it, or show NAME with the source of every figure.

    NAME is `devices`, `links`, `clusters` or `frameworks`, one of their entries, or the path of a cluster's TOML file,
    which is checked and shown. Networks have a command of their own.

    \b
    Examples:
      paceline catalog                 everything by name
      paceline catalog links           every link
      paceline catalog v100-sxm2       figures of one device, each with its source
      paceline catalog my_lab.toml     is this file right, and what does it describe?
    """
    parts = SECTIONS if name is None else [name] if name in SECTIONS else []
    found: dict[str, Any] = {part: section(part) for part in parts} if parts else describe(str(name))
    if as_json:
        emit(found, "catalog")
    elif parts:
        for part in parts:
            table(part, ("name", "title"), [(item["name"], item["title"]) for item in found[part]])
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    title = f"{found['name']}: {found.get('title') or found['section']}"
    if "figures" in found:
        rows = [(item["figure"], item["value"], item["source"], item["note"]) for item in found["figures"]]
        table(title, ("figure", ">value", "source", "note"), rows)
    elif "hosts" in found:
        table(title, ("host", "devices", "inside", "link", ">ports"), [_host(host) for host in found["hosts"]])
    else:
        modes = found["mode"].items()
        given = [(mode, *item) for mode, policy in modes for item in policy.items() if item[1] not in (None, "")]
        table(title, ("mode", "field", "default"), given)


def _host(host: dict[str, Any]) -> tuple[object, ...]:
    devices = ", ".join(f"{item['count']} x {item['name']}" for item in host["devices"])
    return host["name"], devices, host["inside"], host["link"], host["nics"]
