"""Generate docs/reference from the docstrings of the models, the help texts of the command line, and the catalog.

python tools/reference.py           write the pages
python tools/reference.py --check   fail if a page is out of date
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

import click
from fields import model_section
from python_page import python_lines

from paceline import errors, variables
from paceline.catalog import network, network_names
from paceline.catalog.clusters.files import ClusterFile
from paceline.catalog.describe import describe, describe_network, section
from paceline.catalog.frameworks import FrameworkRecord, Policy
from paceline.cli import VERBS, program
from paceline.spec.load import models_of
from paceline.spec.network import Network
from paceline.spec.study import Study

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
NOTE = "<!-- Written by tools/reference.py; change the code it describes, then run `python tools/reference.py`. -->"


def main() -> int:
    """Write or check every page; with --check the exit code is 1 if a page is out of date."""
    stale = [name for name, text in pages().items() if _read(FOLDER / name) != text]
    if "--check" in sys.argv:
        for name in stale:
            click.echo(f"docs/reference/{name} is out of date: run python tools/reference.py", err=True)
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(pages()[name], encoding="utf-8")
        click.echo(f"wrote docs/reference/{name}")
    return 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def pages() -> dict[str, str]:
    """The text of every page by file name."""
    contents = {
        name: "\n".join([f"# {title}", "", NOTE, "", *write()]) + "\n" for name, (title, write) in PAGES.items()
    }
    listed = [f"- [{title}]({name})" for name, (title, _) in PAGES.items()]
    return {"README.md": "\n".join(["# Reference", "", NOTE, "", *listed]) + "\n", **contents}


def _study() -> list[str]:
    return ["What `paceline run` measures: a TOML file that expands into cases.", "", *_models(Study)]


def _cluster() -> list[str]:
    intro = "Hosts, their devices and their links: `paceline catalog FILE` checks such a file and shows what it means."
    return [intro, "", *_models(ClusterFile), *_catalog_clusters()]


def _network() -> list[str]:
    rows = []
    for name in network_names():
        item = describe_network(network(name), 1)
        source = item["published"]["parameters_source"] if item["published"] else ""
        rows.append((name, f"{item['parameters']:,}", f"{item['multiply_adds']:,}", source))
    shipped = _table(("network", "parameters", "multiply-adds of one sample", "published total"), rows)
    return ["## Networks that ship", "", *shipped, *_models(Network)]


def _framework() -> list[str]:
    modes = [(item["name"], mode, policy) for item in section("frameworks") for mode, policy in item["mode"].items()]
    columns = ("aggregation", "overlap", "fusion", "bucket", "synchrony", "version", "source")
    rows = [(f"{name}/{mode}", *(policy[column] for column in columns)) for name, mode, policy in modes]
    defaults = _table(("framework", *columns), rows)
    return ["## Defaults", "", *defaults, *model_section(FrameworkRecord), *model_section(Policy)]


def _hardware() -> list[str]:
    lines = []
    for part in ("devices", "links"):
        rows = [
            (f"`{item['name']}`", item["title"], figure["figure"], figure["value"], _sourced(figure))
            for item in section(part)
            for figure in item["figures"]
        ]
        lines += [f"## {part.capitalize()}", "", *_table(("name", "title", "figure", "value", "source"), rows)]
    return lines


def _sourced(figure: dict[str, str]) -> str:
    return f"{figure['source']} ({figure['note']})" if figure["note"] else figure["source"]


def _catalog_clusters() -> list[str]:
    clusters = [describe(item["name"]) for item in section("clusters")]
    rows = [(f"`{item['name']}`", item["title"], item["num_devices"], item["source"]) for item in clusters]
    return ["## Clusters of the catalog", "", *_table(("name", "title", "devices", "source"), rows)]


def _commands() -> list[str]:
    context = click.Context(program, info_name="paceline", terminal_width=100, max_content_width=100)
    lines = ["```text", program.get_help(context), "```", ""]
    for verb in VERBS:
        command = program.get_command(context, verb)
        if command is not None:
            inner = click.Context(command, parent=context, info_name=verb, terminal_width=100, max_content_width=100)
            lines += [f"## paceline {verb}", "", "```text", command.get_help(inner), "```", ""]
    return lines


def _errors() -> list[str]:
    return ["```text", (errors.__doc__ or "").strip(), "```"]


def _variables() -> list[str]:
    """A table of each group of constants; a comment line in `paceline.variables` heads a group."""
    source = inspect.getsource(variables)
    intro = (
        "Environment variables, from `paceline.variables`. Users set those of the first table; the others pass between"
    )
    lines = [f"{intro} processes of Paceline.", ""]
    for head, block in re.findall(r"^# (.+)\n((?:(?!^# ).*\n?)*)", source, flags=re.M):
        rows = [_variable(name, text) for name, text in documented_constants(block)]
        lines += [f"## {head.rstrip('.')}", "", *_table(("variable", "meaning", "default", "set by", "read by"), rows)]
    return lines


def documented_constants(source: str) -> list[tuple[str, str]]:
    """Each constant's value with the docstring beneath it."""
    body = ast.parse(source).body
    texts = [node.value.value for node in body if isinstance(node, ast.Assign | ast.Expr)]
    return list(zip(texts[::2], texts[1::2], strict=True))


def _variable(name: str, text: str) -> tuple[object, ...]:
    parts = re.split(r"\. (?:Default|Set by|Read by): ", " ".join(text.split()).removesuffix("."))
    return (f"`{name}`", *parts)


def _models(kind: type) -> list[str]:
    return [line for model in models_of(kind) for line in model_section(model)]


def _table(columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> list[str]:
    shown = ["| " + " | ".join("" if cell is None else str(cell) for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *shown, ""]


PAGES: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "commands.md": ("Commands", _commands),
    "python.md": ("Python", python_lines),
    "study.md": ("Study files", _study),
    "cluster.md": ("Cluster files", _cluster),
    "network.md": ("Networks and their layers", _network),
    "frameworks.md": ("Frameworks and their defaults", _framework),
    "hardware.md": ("Devices and links", _hardware),
    "variables.md": ("Environment variables", _variables),
    "errors.md": ("Errors and exit codes", _errors),
}
"""Every page: its title and the function that generates its lines."""

if __name__ == "__main__":
    sys.exit(main())
