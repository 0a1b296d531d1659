"""The store: one directory per run, written once and atomically, verified whenever it is read.

STORE/campaigns/<campaign>.json     the study file and its cases
STORE/runs/<run>/run.json           the header
STORE/runs/<run>/steps.parquet      every step of every rank
STORE/runs/<run>/spans.parquet      spans inside steps
STORE/runs/<run>/SHA256SUMS         checksums of these files, see `integrity`
STORE/tmp/<run>.tmp-<host>-<pid>-*/ a run being written; renamed into runs/ when it is complete and on disk
STORE/locks/<campaign>.lock         locked while a process runs the campaign
STORE/damaged/                      what `paceline store repair` moved aside
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from paceline import variables
from paceline.errors import StoreError
from paceline.files import atomic_directory, atomic_write, read_regular, remove_abandoned
from paceline.measurements.foreign.facts import check_facts
from paceline.measurements.integrity import (
    NOTES,
    SEALED_SINCE,
    SUMS,
    Damage,
    DamagedData,
    NewerData,
    newer,
    read_files,
    seal,
    unseal,
    write_sums,
)
from paceline.measurements.run import RENAMED, SCHEMA_VERSION, Run, RunData, Span, Step, check_case, with_drift
from paceline.measurements.tablefiles import SPANS, STEPS, parse_table

__all__ = ["Store", "StoredRun", "default_store"]

CAMPAIGN_TEXTS = ("campaign", "study", "started_at")
"""Required fields of a campaign's document."""
OPTIONAL_TEXTS = {"title": "", "launcher": "", "digest": ""}
"""Fields that older documents lack, with their defaults."""
MAX_DOCUMENT = 1 << 26
"""A larger file is no document of a campaign, and no header of a run."""


@dataclass(frozen=True)
class StoredRun:
    """A run as it was read: the header and both tables."""

    run: Run
    steps: pa.Table
    spans: pa.Table
    verified: bool
    """Whether checksums verified it."""


def default_store() -> Path:
    """The default directory of runs: $PACELINE_STORE, else ./results."""
    return Path(os.environ.get(variables.STORE, "results"))


class Store:
    """A directory of runs. Any number of processes may read and write it concurrently.

    Reading verifies. What is damaged is left out and named: in `damaged`, in the log, in the output of every command.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs = root / "runs"
        self.campaigns = root / "campaigns"
        self.damaged: dict[str, Damage] = {}
        """Damaged data that was found so far, by run or campaign."""
        self._tmp = root / "tmp"
        self.locks = root / "locks"
        """A file for each campaign that a process runs or ran."""
        self.aside = root / "damaged"
        """Folder to which `repair` moves unreadable data."""
        self._loaded: dict[str, StoredRun] = {}
        """Runs that were read; a stored run never changes."""

    def write(self, data: RunData) -> Path:
        """Store a run atomically; if a run with the same id exists, it is kept and the new run is dropped."""
        target = self.runs / data.run.id
        with self._writing(), atomic_directory(target, scratch=self._tmp) as folder:
            (folder / "run.json").write_text(data.run.model_dump_json(indent=1), encoding="utf-8")
            _write_table(folder / "steps.parquet", data.steps, Step, STEPS)
            _write_table(folder / "spans.parquet", data.spans, Span, SPANS)
            write_sums(folder, durable=False)  # the whole folder is synchronised
        return target

    def prepare(self) -> None:
        """Make the folders and write to them, so that a store that cannot be written is found before it is needed."""
        with self._writing(), tempfile.TemporaryFile(dir=self._tmp) as file:
            file.write(b"\0")

    def write_campaign(self, campaign: str, document: dict[str, Any]) -> None:
        """Store the study file and cases of a campaign, before its first run."""
        with self._writing():
            atomic_write(self.campaigns / f"{campaign}.json", seal(document))

    def names(self, *, campaign: str | None = None) -> list[str]:
        """The ids of all stored runs, or of those of a campaign, damaged ones too."""
        names = sorted(path.name for path in self.runs.iterdir()) if self.runs.is_dir() else []
        return [name for name in names if campaign is None or name.startswith(f"{campaign}-")]

    def read(self, run_id: str) -> Run:
        """The header of one run; DamagedData if the run cannot be used."""
        return self.load(run_id).run

    def load(self, run_id: str) -> StoredRun:
        """One run with its tables, verified; DamagedData if the run cannot be used."""
        if run_id not in self._loaded:
            self._loaded[run_id] = _loaded(self.runs / run_id)
        return self._loaded[run_id]

    def load_sound(self, names: list[str]) -> list[StoredRun]:
        """These runs without damaged ones, which are noted."""
        return [item for name in names if (item := self._sound(name)) is not None]

    def _sound(self, name: str) -> StoredRun | None:
        try:
            stored = self.load(name)
        except DamagedData as error:
            self._note(error.damage)
            return None
        if not stored.verified:
            NOTES.read_unverified(self.root, name)
        return stored

    def _note(self, damage: Damage) -> None:
        self.damaged[damage.run] = damage
        NOTES.left_out(self.root, damage)

    def read_all(self, *, study: str | None = None, campaign: str | None = None) -> list[Run]:
        """Headers of all sound runs of a study or campaign, oldest first."""
        found = [item.run for item in self.load_sound(self.names(campaign=campaign))]
        # The name of a campaign may go on like that of a run of another one.
        runs = with_drift([run for run in found if campaign is None or run.campaign == campaign])
        return sorted((r for r in runs if study is None or r.study == study), key=lambda r: (r.started_at, r.id))

    def read_campaign(self, path: Path) -> tuple[dict[str, Any], bool]:
        """The document of a campaign and whether its checksum verified it; DamagedData if it cannot be used."""
        try:
            document, verified = unseal(_text(path))
            texts = {**OPTIONAL_TEXTS, **document}
            missing = [name for name in (*CAMPAIGN_TEXTS, *OPTIONAL_TEXTS) if not isinstance(texts.get(name), str)]
            if missing or document["campaign"] != path.stem:
                raise ValueError(
                    f"no text called {missing[0]}" if missing else "it is the document of another campaign"
                )
        except OSError as error:
            raise DamagedData(Damage(path.stem, f"campaigns/{path.name}", error.strerror or str(error))) from None
        except (ValueError, RecursionError) as error:
            kind = NewerData if "newer Paceline" in str(error) else DamagedData
            raise kind(Damage(path.stem, f"campaigns/{path.name}", str(error))) from None
        return document, verified

    def read_campaigns(self, study: str | None = None) -> list[dict[str, Any]]:
        """The documents of all sound campaigns, oldest first."""
        documents = []
        for path in sorted(self.campaigns.glob("*.json")):
            try:
                document, verified = self.read_campaign(path)
            except DamagedData as error:
                self._note(error.damage)
                continue
            if not verified:
                NOTES.read_unverified(self.root, path.stem)
            documents.append({**OPTIONAL_TEXTS, **document})
        chosen = [document for document in documents if study is None or document["study"] == study]
        return sorted(chosen, key=lambda document: (str(document["started_at"]), str(document["campaign"])))

    def clean(self) -> int:
        """Remove incomplete runs of processes of this host that no longer run; return their number."""
        return remove_abandoned(self._tmp) + remove_abandoned(self.campaigns)

    @property
    def exists(self) -> bool:
        """Whether runs were stored here; other programs have folders of `runs`, too, but none of campaigns."""
        return self.runs.is_dir() and self.campaigns.is_dir()

    def remove(self) -> None:
        """Remove all that a store has, and its folder if nothing else is in it."""
        try:
            for part in (self.runs, self.campaigns, self._tmp, self.locks, self.aside):
                if part.is_dir() and not part.is_symlink():
                    shutil.rmtree(part)
                else:
                    part.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # files of another user, or a link
                self.root.rmdir()
        except OSError as error:
            raise StoreError(f"cannot remove {self.root}: {error.strerror or error}",
                             hint="remove what is left by hand") from error  # fmt: skip

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Create the folders of the store; a full disk becomes a StoreError."""
        try:
            for part in (self.runs, self.campaigns, self._tmp):
                part.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            hint = "free some space or choose another --store; runs that were stored before are intact"
            raise StoreError(f"cannot write to {self.root}: {error.strerror or error}", hint=hint) from error


def _loaded(folder: Path) -> StoredRun:
    _refuse_newer(folder)
    content, verified = read_files(folder)
    try:
        run = _parse(content["run.json"])
        if run.schema_version >= SEALED_SINCE:  # older cases have other fields
            check_case(run)
        check_facts(run.facts)
    except ValueError as error:
        raise DamagedData(Damage(folder.name, "run.json", str(error))) from None
    if run.id != folder.name:
        raise DamagedData(Damage(folder.name, "run.json", f"it is the header of run {run.id}"))
    tables = {}
    for name, schema in (("steps.parquet", STEPS), ("spans.parquet", SPANS)):
        try:
            tables[name] = parse_table(content[name], schema, ranks=run.ranks)
        except ValueError as error:
            raise DamagedData(Damage(folder.name, name, str(error))) from None
    if not verified and run.schema_version >= SEALED_SINCE:
        raise DamagedData(Damage(folder.name, SUMS, "missing"))
    return StoredRun(run, tables["steps.parquet"], tables["spans.parquet"], verified)


def _text(path: Path) -> str:
    """The text of a document; ValueError for one that is too large: a file with holes is larger than any memory."""
    content = read_regular(path, most=MAX_DOCUMENT + 1)
    if len(content) > MAX_DOCUMENT:
        raise ValueError(f"larger than {MAX_DOCUMENT} bytes")
    return content.decode("utf-8")


def _refuse_newer(folder: Path) -> None:
    """Say that a run is newer before anything else is said about it: its files may be others."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        document = json.loads(_text(folder / "run.json"))
        version = document.get("schema_version") if isinstance(document, dict) else None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise NewerData(Damage(folder.name, "run.json", newer(version)))


def _parse(content: bytes) -> Run:
    """The header of any version up to the present one; raises ValueError with the reason."""
    try:
        document = json.loads(content)
        is_first = document["schema_version"] == 1
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("not the header of a run") from None
    if is_first:
        content = json.dumps({RENAMED.get(name, name): value for name, value in document.items()}).encode()
    try:
        return Run.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None


def _write_table(path: Path, rows: tuple[Any, ...], kind: type[Any], schema: pa.Schema) -> None:
    names = [field.name for field in fields(kind)]
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    pq.write_table(pa.table(columns, schema=schema), path, compression="zstd")
