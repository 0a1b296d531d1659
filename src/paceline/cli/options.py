"""Options of several verbs: output, store, plot, and target; names that the shell completes."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from paceline import variables
from paceline.bench.sites.target import LAUNCHERS, LaunchTarget
from paceline.errors import InputError
from paceline.measurements.store import Store, default_store

__all__ = [
    "COUNT",
    "FILE",
    "Finite",
    "TwoSides",
    "Whole",
    "complete_clusters",
    "complete_frameworks",
    "complete_networks",
    "complete_studies",
    "complete_words",
    "counts_of",
    "json_option",
    "options",
    "place_options",
    "plot_option",
    "size_options",
    "split_sides",
    "store_option",
    "study_argument",
]

FILE = click.Path(path_type=Path)
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
F = TypeVar("F", bound=Callable[..., Any])


def _completer(names: Callable[[click.Context], Iterable[str]]) -> Completer:
    """Names that begin with what was typed, then files; a shell must not see an error."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            known = sorted(set(names(ctx)))
        except Exception:  # noqa: BLE001
            known = []
        return [CompletionItem(name) for name in known if name.startswith(incomplete)] or [
            CompletionItem(incomplete, type="file")
        ]

    return complete


def _catalog(kind: str) -> Callable[[click.Context], Iterable[str]]:
    def names(ctx: click.Context) -> Iterable[str]:
        from paceline.catalog import shipped_catalog

        return shipped_catalog().names[kind]

    return names


def _studies(ctx: click.Context) -> Iterable[str]:
    store = ctx.params.get("store") or default_store()
    return [str(document["study"]) for document in Store(Path(store)).read_campaigns()]


def complete_words(words: Iterable[str]) -> Completer:
    """Completes fixed words."""
    return _completer(lambda _: words)


complete_networks = _completer(_catalog("networks"))
complete_clusters = _completer(_catalog("clusters"))
complete_frameworks = _completer(_catalog("frameworks"))
complete_studies = _completer(_studies)


def options(*chosen: Callable[[F], F]) -> Callable[[F], F]:
    """Combine several options into one decorator; --help lists them in this order."""

    def decorate(function: F) -> F:
        for option in reversed(chosen):
            function = option(function)
        return function

    return decorate


class Finite(click.FloatRange):
    """A number within bounds; nan and infinity, which compare with nothing, are refused."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or an error of the option."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class Whole(click.IntRange):
    """A whole number within bounds, also as people write large ones: 1e6, 1,281,167, 1.2M, 10B."""

    name = "whole number"

    def _describe_range(self) -> str:
        """The bounds in --help, without an upper bound that only guards against mistyped numbers."""
        return f"x>={self.min}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number, or an error of the option."""
        plain: Any = value.replace(",", "") if isinstance(value, str) and _GROUPED.fullmatch(value) else value
        if isinstance(plain, str) and (short := _SHORT.fullmatch(plain)):
            plain = str(round(float(short[1]) * _FACTORS[short[2].upper()]))
        if isinstance(plain, str) and _POWER.fullmatch(plain) and float(plain).is_integer():
            plain = int(float(plain))
        return int(super().convert(plain, param, ctx))


_GROUPED = re.compile(r"\d{1,3}(,\d{3})+")
_SHORT = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([kKMBGT])")
_FACTORS = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_POWER = re.compile(r"\d{1,9}(\.\d{1,9})?[eE]\+?\d{1,2}")
COUNT = Whole(1, 2**31 - 1)
"""Samples, ranks, devices: whatever is counted."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
store_option = click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    default=default_store,
    show_default=f"${variables.STORE} or ./results",
    help="Directory of the stored runs.",
)
plot_option = click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write a plot to this file: .html, or .svg, .png, .pdf with the extra `paceline[plot]`.",
)


def study_argument(verb: F) -> F:
    """The name of a study in the store, or the id of a campaign; the shell completes it."""
    return click.argument("study", required=False, shell_complete=complete_studies)(verb)


def place_options(verb: Callable[..., None]) -> Callable[..., None]:
    """The options of the target; the verb receives them as `target`."""

    @click.option(
        "--on",
        default="local",
        show_default=True,
        metavar="|".join(LAUNCHERS),
        shell_complete=complete_words(LAUNCHERS),
        help="Where ranks run.",
    )
    @click.option(
        "--hosts", default="", metavar="A,B,...", help="Hosts for ssh and mpi, in the order of the cluster's hosts."
    )
    @click.option("--dilation", type=Finite(1, 1e6), help="Run a virtual cluster this many times slower.")
    @click.option(
        "--engine",
        multiple=True,
        metavar="WORD",
        help="Options for srun, mpirun or ssh; image=, kind= or manifest= for Kubernetes; may be repeated.",
    )
    @functools.wraps(verb)
    def wrapped(*, on: str, hosts: str, dilation: float | None, engine: tuple[str, ...], **rest: Any) -> None:
        names = tuple(name.strip() for name in hosts.split(",") if name.strip())
        verb(target=LaunchTarget(on=on, hosts=names, dilation=dilation, options=engine), **rest)

    return wrapped


def counts_of(text: str, option: str, *, noun: str = "devices") -> tuple[int, ...]:
    """`1,2,4` as numbers of devices or ranks."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and len(part) < 10 and 1 <= int(part) <= 10**6 for part in parts):
        raise InputError(f"{option} {text}: expected numbers of {noun}", hint=f"for example {option} 1,2,4,8")
    return tuple(int(part) for part in parts)


BETWEEN = "\0"
"""Stands for `--` between the sides, which click would remove."""


class TwoSides(click.Command):
    """A command with two lists of arguments, separated by `--`; options may follow either."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep `--` as an argument."""
        return super().parse_args(ctx, [BETWEEN if word == "--" else word for word in args])


def split_sides(names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The names of either side: two, or two lists with `--` between them."""
    place = names.index(BETWEEN) if BETWEEN in names else 1
    sides = list(names[:place]), list(names[place:] if BETWEEN not in names else names[place + 1 :])
    if names.count(BETWEEN) > 1 or not all(sides) or (BETWEEN not in names and len(names) != 2):
        raise click.UsageError("expected two sides: SAMPLE BASE, or several names of each: A1 A2 A3 -- B1 B2 B3")
    return sides


_SIZES = {
    "hidden": (2048, "Width of the model."),
    "heads": (16, "Attention heads of a layer."),
    "layers": (24, "Transformer layers."),
    "sequence": (1024, "Tokens of a sample."),
    "vocabulary": (51200, "Different tokens."),
    "tensor": (1, "Devices that share each layer."),
    "pipeline": (1, "Stages of the pipeline."),
    "data": (8, "Replicas of the model."),
    "micro-batch": (4, "Samples of one pass of a replica."),
    "global-batch": (128, "Samples of an iteration of all replicas."),
    "interleave": (1, "Model chunks on each stage; 1 is plain 1F1B."),
}
size_options = options(
    *(
        click.option(f"--{name}", type=Whole(1, 10**9), metavar="N", default=value, show_default=True, help=what)
        for name, (value, what) in _SIZES.items()
    )
)
"""Sizes of a transformer and of its parallelism."""
