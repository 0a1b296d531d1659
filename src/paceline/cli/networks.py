"""`paceline networks`: list the networks of the catalog, or show the layers and costs of one."""

from __future__ import annotations

import click

from paceline.catalog.describe import describe_network
from paceline.catalog.networks import network, network_names
from paceline.cli.options import COUNT, complete_networks, json_option
from paceline.report.terminal import emit
from paceline.report.terminal.records import show_network, show_networks

__all__ = ["command"]


@click.command()
@click.argument("name", required=False, shell_complete=complete_networks)
@click.option("--batch", type=COUNT, default=1, show_default=True, help="Samples of one step.")
@json_option
def command(name: str | None, batch: int, as_json: bool) -> None:
    """List the networks of the catalog, or show the layers of NAME.

    NAME is a network of the catalog or the path of a TOML file. Costs come from the definition alone: parameters,
    multiply-adds of the forward pass (two flop each), bytes of activations kept for backward, bytes of gradients.

    \b
    Examples:
      paceline networks                       every network with its totals
      paceline networks resnet50 --batch 32   its layers, at a batch of 32
      paceline networks my_network.toml       the same for a user-defined network
    """
    names = network_names() if name is None else (name,)
    networks = [describe_network(network(item), batch) for item in names]
    if as_json:
        emit({"networks": networks} if name is None else networks[0], "networks")
    elif name is None:
        show_networks(networks)
    else:
        show_network(networks[0], f"{name}, batch {batch}")
