"""`paceline clean`: show and clear the caches."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.bench.environments import CACHES, cache_folders, clear_cache
from paceline.cli.options import complete_words, json_option
from paceline.errors import InputError, UnknownName
from paceline.measurements.store import Store
from paceline.report.terminal import emit, say
from paceline.report.terminal.records import show_caches

__all__ = ["command"]


@click.command()
@click.argument("names", nargs=-1, metavar="[CACHE...]", shell_complete=complete_words(CACHES))
@click.option("--all", "everything", is_flag=True, help="Clear every cache.")
@click.option("--store", type=click.Path(path_type=Path), help="Also remove this store of runs.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def command(names: tuple[str, ...], everything: bool, store: Path | None, yes: bool, as_json: bool) -> None:
    """Show caches with their paths and sizes, and clear the named ones.

    Environments of frameworks, downloads and generated data are created again when they are needed. Stored runs are not
    a cache: they are removed only if --store names their directory.

    \b
    Examples:
      paceline clean                      paths, sizes and contents
      paceline clean environments data    clear these two, after a confirmation
      paceline clean --all --yes
    """
    for name in names:
        if name not in CACHES:
            raise UnknownName("cache", name, CACHES)
    if store is not None and not Store(store).exists:
        raise InputError(
            f"{store} is not a store of runs", hint="--store needs the directory that `paceline run` wrote to"
        )
    folders = cache_folders()
    chosen = [folder for folder in folders if everything or folder.name in names]
    paths = [*(folder.path for folder in chosen), *([store] if store else [])]
    if not as_json:
        show_caches(folders)
    if paths and not yes:
        click.confirm(f"Remove {', '.join(map(str, paths))}?", abort=True, err=as_json)
    for folder in chosen:
        clear_cache(folder)
    if store is not None:
        Store(store).remove()
    if as_json:
        plain = [{**vars(folder), "path": str(folder.path)} for folder in folders]
        emit({"caches": plain, "removed": [str(path) for path in paths]}, "clean")
    elif paths:
        say(f"removed: {', '.join(map(str, paths))}")
