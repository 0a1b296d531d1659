"""The store: one directory per run, written once and atomically; DuckDB reads them all.

STORE/campaigns/<campaign>.json     the study file and its cases
STORE/runs/<run>/run.json           the header
STORE/runs/<run>/steps.parquet      every step of every rank
STORE/runs/<run>/spans.parquet      spans inside steps
STORE/tmp/<run>.tmp-<host>-<pid>-*/ a run being written; renamed into runs/ when it is complete and on disk
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from paceline import variables
from paceline.errors import StoreError
from paceline.files import atomic_directory, atomic_write, remove_abandoned
from paceline.measurements.run import RENAMED, SCHEMA_VERSION, Run, RunData, Span, Step, with_drift

__all__ = ["SPANS", "STEPS", "Store", "default_store"]

STEPS = pa.schema(
    [
        ("pass_name", pa.string()),
        ("rank", pa.int32()),
        ("step", pa.int32()),
        ("warmup", pa.bool_()),
        ("start_s", pa.float64()),
        ("seconds", pa.float64()),
    ]
)
SPANS = pa.schema(
    [
        ("rank", pa.int32()),
        ("step", pa.int32()),
        ("phase", pa.string()),
        ("name", pa.string()),
        ("start_s", pa.float64()),
        ("seconds", pa.float64()),
        ("size_bytes", pa.int64()),
        ("source", pa.string()),
    ]
)


def default_store() -> Path:
    """The default directory of runs: $PACELINE_STORE, else ./results."""
    return Path(os.environ.get(variables.STORE, "results"))


class Store:
    """A directory of runs. Any number of processes may read and write it concurrently."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs = root / "runs"
        self.campaigns = root / "campaigns"
        self._tmp = root / "tmp"

    def write(self, data: RunData) -> Path:
        """Store a run atomically; if a run with the same id exists, it is kept and the new run is dropped."""
        target = self.runs / data.run.id
        with self._writing(), atomic_directory(target, scratch=self._tmp) as folder:
            (folder / "run.json").write_text(data.run.model_dump_json(indent=1), encoding="utf-8")
            _write_table(folder / "steps.parquet", data.steps, Step, STEPS)
            _write_table(folder / "spans.parquet", data.spans, Span, SPANS)
        return target

    def write_campaign(self, campaign: str, document: dict[str, Any]) -> None:
        """Store the study file and cases of a campaign, before its first run."""
        with self._writing():
            atomic_write(self.campaigns / f"{campaign}.json", json.dumps(document, indent=1))

    def read(self, run_id: str) -> Run:
        """The header of one run."""
        path = self.runs / run_id / "run.json"
        try:
            return _parse(path.read_text(encoding="utf-8"), path)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}", hint="`paceline show` lists what is stored") from None

    def read_all(self, *, study: str | None = None, campaign: str | None = None) -> list[Run]:
        """Headers of all runs of a study or campaign, oldest first."""
        ids = sorted(path.name for path in self.runs.iterdir()) if self.runs.is_dir() else []
        if campaign is not None:
            ids = [name for name in ids if name.startswith(f"{campaign}-")]
        runs = with_drift([self.read(name) for name in ids])
        return sorted((r for r in runs if study is None or r.study == study), key=lambda r: (r.started_at, r.id))

    def read_campaigns(self, study: str | None = None) -> list[dict[str, Any]]:
        """The documents of all campaigns, oldest first."""
        documents = [json.loads(path.read_text(encoding="utf-8")) for path in self.campaigns.glob("*.json")]
        chosen = [document for document in documents if study is None or document["study"] == study]
        return sorted(chosen, key=lambda document: (str(document["started_at"]), str(document["campaign"])))

    def clean(self) -> int:
        """Remove incomplete runs of processes of this host that no longer run; return their number."""
        return remove_abandoned(self._tmp) + remove_abandoned(self.campaigns)

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


def _parse(text: str, path: Path) -> Run:
    try:
        run = Run.model_validate_json(text)
    except ValidationError:
        run = _upgraded(text, path)
    if run.schema_version > SCHEMA_VERSION:
        raise _newer(path, run.schema_version)
    return run


def _upgraded(text: str, path: Path) -> Run:
    """Convert a run of an older schema; other content is a StoreError."""
    try:
        document = json.loads(text)
        version = document["schema_version"]
    except (ValueError, KeyError, TypeError):
        version = None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise _newer(path, version)
    if version == 1:
        document = {RENAMED.get(name, name): value for name, value in document.items()}
        text = json.dumps({**document, "schema_version": SCHEMA_VERSION})
    try:
        return Run.model_validate_json(text)
    except ValidationError as error:
        raise StoreError(f"{path} is not a stored run: {error.errors()[0]['msg']}") from None


def _newer(path: Path, version: int) -> StoreError:
    reason = f"written by a newer Paceline (schema {version}, this one reads {SCHEMA_VERSION})"
    return StoreError(f"{path}: {reason}", hint="upgrade Paceline")


def _write_table(path: Path, rows: tuple[Any, ...], kind: type[Any], schema: pa.Schema) -> None:
    names = [field.name for field in fields(kind)]
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    pq.write_table(pa.table(columns, schema=schema), path, compression="zstd")
