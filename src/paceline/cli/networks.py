"""`paceline networks`: the networks that ship with Paceline, or the layers and costs of one."""

from __future__ import annotations

from typing import Any

import click

from paceline.catalog.describe import describe_network
from paceline.catalog.networks import network, network_names
from paceline.cli.output import emit, json_option, table
from paceline.units import BYTES

__all__ = ["command"]

COLUMNS = ("layer", "kind", "shape", ">parameters", ">multiply-adds", ">activations", ">gradients")


@click.command()
@click.argument("name", required=False)
@click.option("--batch", type=click.IntRange(1, 2**31 - 1), default=1, show_default=True, help="Samples of one step.")
@json_option
def command(name: str | None, batch: int, as_json: bool) -> None:
    """List the networks that ship with Paceline, or show the layers of NAME.

    NAME is a network of the catalog or the path of a TOML file. Costs come from the definition alone: parameters,
    multiply-adds of the forward pass (two flop each), bytes of activations kept for backward, bytes of gradients.

    \b
    Examples:
      paceline networks                       every network with its totals
      paceline networks resnet50 --batch 32   its layers, at a batch of 32
      paceline networks my_network.toml       the same for a network of one's own
    """
    names = network_names() if name is None else (name,)
    found = [describe_network(network(item), batch) for item in names]
    if as_json:
        emit({"networks": found} if name is None else found[0], "networks")
    elif name is None:
        table("", ("network", "input", "", *COLUMNS[3:]), [(*_name(item), *_costs(item)) for item in found])
    else:
        rows = [*found[0]["layers"], {**found[0], "name": "total", "kind": "", "shape": []}]
        shown = [(row["name"], row["kind"], _shape(row["shape"]), *_costs(row)) for row in rows]
        table(f"{name}, batch {batch}", COLUMNS, shown)


def _name(item: dict[str, Any]) -> tuple[str, str, str]:
    size = [value for key, value in item["input"].items() if key not in ("kind", "vocabulary")]
    return item["name"], item["input"]["kind"], _shape(size)


def _costs(item: dict[str, Any]) -> tuple[str, ...]:
    sizes = (BYTES.format(item[key]) for key in ("activation_bytes", "gradient_bytes"))
    return f"{item['parameters']:,}", f"{item['multiply_adds']:,}", *sizes


def _shape(sizes: list[int]) -> str:
    return " x ".join(str(size) for size in sizes)
