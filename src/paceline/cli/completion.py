"""Names that the shell completes: networks, clusters, frameworks, studies of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from paceline.measurements.store import Store, default_store

__all__ = ["clusters", "frameworks", "networks", "studies"]

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


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


networks = _completer(_catalog("networks"))
clusters = _completer(_catalog("clusters"))
frameworks = _completer(_catalog("frameworks"))
studies = _completer(_studies)
