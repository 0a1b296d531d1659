"""Check of a whole store, and repair: damaged data is moved aside, never deleted; what can be rebuilt is rebuilt."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import StoreError
from paceline.files import atomic_write
from paceline.measurements.integrity import SUMS, Damage, DamagedData, NewerData, write_sums
from paceline.measurements.run import Run
from paceline.measurements.store import Store

__all__ = ["Inspection", "Repair", "inspect_store", "repair_store"]


@dataclass(frozen=True)
class Inspection:
    """The content of a store, and its damaged parts."""

    runs: tuple[Run, ...]
    """The sound runs."""
    campaigns: tuple[str, ...]
    """Campaigns whose documents are sound."""
    damaged: tuple[Damage, ...]
    newer: tuple[Damage, ...]
    """Data of a newer Paceline, which is not changed."""
    unverified: tuple[str, ...]
    """Runs and campaigns that read well but have no checksums."""


@dataclass(frozen=True)
class Repair:
    """One repair."""

    run: str
    done: str
    place: str


def inspect_store(store: Store) -> Inspection:
    """Read everything."""
    damaged: list[Damage] = []
    newer: list[Damage] = []
    unverified: list[str] = []
    runs: list[Run] = []
    campaigns: list[str] = []
    for name in store.names():
        try:
            stored = store.load(name)
            runs.append(stored.run)
            unverified.extend([] if stored.verified else [name])
        except DamagedData as error:
            (newer if isinstance(error, NewerData) else damaged).append(error.damage)
    for path in _documents(store, runs):
        try:
            verified = store.read_campaign(path)[1]
            campaigns.append(path.stem)
            unverified.extend([] if verified else [path.stem])
        except DamagedData as error:
            (newer if isinstance(error, NewerData) else damaged).append(error.damage)
    return Inspection(tuple(runs), tuple(campaigns), tuple(damaged), tuple(newer), tuple(unverified))


def _documents(store: Store, runs: list[Run]) -> list[Path]:
    """The document of every campaign, also of those that only their runs name; sweeps of collectives have none."""
    named = {store.campaigns / f"{run.campaign}.json" for run in runs if run.study != "collectives"}
    return sorted(named | set(store.campaigns.glob("*.json")))


def repair_store(store: Store) -> list[Repair]:
    """Move damaged data aside, rebuild the documents of campaigns from their runs, add missing checksums."""
    try:
        return _repaired(store)
    except OSError as error:
        what = f"cannot repair {store.root}: {error.filename}: {error.strerror or error}"
        raise StoreError(what, hint="what was repaired before is done; make room, or the store writable") from error


def _repaired(store: Store) -> list[Repair]:
    inspection = inspect_store(store)
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in inspection.runs:
        runs[run.campaign].append(run)
    done: list[Repair] = []
    for damage in inspection.damaged:
        folder = store.campaigns if damage.file.startswith("campaigns/") else store.runs
        path = folder / (f"{damage.run}.json" if folder == store.campaigns else damage.run)
        done.extend(_moved_aside(store, path, damage))
        if folder == store.campaigns and damage.run in runs:
            store.write_campaign(damage.run, _rebuilt(damage.run, runs[damage.run]))
            done.append(Repair(damage.run, "campaign rebuilt from its runs, without its study file", f"{path}"))
    done.extend(_sealed(store, name) for name in inspection.unverified)
    return done


def _moved_aside(store: Store, path: Path, damage: Damage) -> Iterator[Repair]:
    if not (path.exists() or path.is_symlink()):
        return
    aside = store.aside
    if aside.is_symlink():  # nothing leaves the store
        raise StoreError(f"{aside} is a symbolic link, expected a folder", hint="remove the link")
    aside.mkdir(exist_ok=True)
    names = (f"{path.name}{f'.{number}' if number else ''}" for number in itertools.count())
    target = next(aside / name for name in names if not ((aside / name).exists() or (aside / name).is_symlink()))
    path.rename(target)
    atomic_write(aside / f"{target.name}.why.txt", f"{damage}\n")
    yield Repair(damage.run, f"moved aside: {damage.file}: {damage.reason}", str(target))


def _rebuilt(campaign: str, runs: list[Run]) -> dict[str, object]:
    first = min(runs, key=lambda run: run.started_at)
    return {
        "campaign": campaign,
        "study": first.study,
        "title": "",
        "digest": "",
        "started_at": first.started_at,
        "launcher": first.launcher,
        "text": "",
        "cases": list(dict.fromkeys(run.case_id for run in runs)),
        "rebuilt": True,
    }


def _sealed(store: Store, name: str) -> Repair:
    folder = store.runs / name
    if folder.is_dir():
        write_sums(folder)
        return Repair(name, "checksums added", str(folder / SUMS))
    path = store.campaigns / f"{name}.json"
    store.write_campaign(name, store.read_campaign(path)[0])
    return Repair(name, "checksum added", str(path))
