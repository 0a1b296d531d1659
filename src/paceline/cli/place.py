"""The options that say where ranks run, the same for every verb that starts some: --on, --hosts, --dilation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from paceline.bench.sites.target import LAUNCHERS, LaunchTarget

__all__ = ["place_options"]


def place_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a verb, which receives them as `target`."""

    @click.option(
        "--on",
        default="local",
        show_default=True,
        metavar="|".join(LAUNCHERS),
        help="Where ranks are started; nothing else of a study changes.",
    )
    @click.option("--hosts", default="", metavar="A,B,...", help="Hosts for ssh and mpi, in order of the cluster's.")
    @click.option("--dilation", type=click.FloatRange(min=1), help="Play a virtual cluster so many times slower.")
    @click.option(
        "--engine",
        multiple=True,
        metavar="WORD",
        help="Passed on to srun, mpirun or ssh; image=, kind= or manifest= for Kubernetes; may be repeated.",
    )
    @functools.wraps(verb)
    def wrapped(*, on: str, hosts: str, dilation: float | None, engine: tuple[str, ...], **rest: Any) -> None:
        names = tuple(name.strip() for name in hosts.split(",") if name.strip())
        verb(target=LaunchTarget(on=on, hosts=names, dilation=dilation, options=engine), **rest)

    return wrapped
