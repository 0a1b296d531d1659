"""One directory per run, written once, appearing whole or not at all; DuckDB reads them all.

STORE/campaigns/<campaign>.json     what was asked, and by which study file
STORE/runs/<run>/run.json           the header
STORE/runs/<run>/steps.parquet      every step of every rank
STORE/runs/<run>/spans.parquet      spans inside steps
STORE/tmp/<host>-<pid>-<n>/         a run being written; renamed into runs/ when it is complete and on disk
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from paceline.errors import StoreError
from paceline.measurements.run import SCHEMA_VERSION, Run, RunData, Span, Step

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
    """Where runs are kept unless told otherwise: $PACELINE_STORE, else ./results."""
    return Path(os.environ.get("PACELINE_STORE", "results"))


class Store:
    """A directory of runs. Any number of processes may write and read it at the same time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs = root / "runs"
        self.campaigns = root / "campaigns"
        self._tmp = root / "tmp"

    def write(self, data: RunData) -> Path:
        """Store a run whole; a run of the same id that is already there is kept and this one dropped."""
        target = self.runs / data.run.id
        with self._writing() as folder:
            header = data.run.model_dump_json(indent=1).encode()
            _write_synced(folder / "run.json", header)
            _write_table(folder / "steps.parquet", data.steps, Step, STEPS)
            _write_table(folder / "spans.parquet", data.spans, Span, SPANS)
            _sync(folder)
            with contextlib.suppress(FileExistsError, OSError) if target.exists() else contextlib.nullcontext():
                folder.rename(target)
            _sync(self.runs)
        return target

    def write_campaign(self, campaign: str, document: dict[str, Any]) -> None:
        """Record what a campaign was asked to do, before its first run."""
        with self._writing() as folder:
            _write_synced(folder / "campaign.json", json.dumps(document, indent=1).encode())
            (folder / "campaign.json").rename(self.campaigns / f"{campaign}.json")
            _sync(self.campaigns)

    def read(self, run_id: str) -> Run:
        """The header of one run."""
        path = self.runs / run_id / "run.json"
        try:
            return _parse(path.read_text(encoding="utf-8"), path)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}", hint="`paceline show` lists what is stored") from None

    def read_all(self, *, study: str | None = None, campaign: str | None = None) -> list[Run]:
        """Headers of all runs of a study or campaign, oldest first."""
        ids = sorted(path.name for path in self._entries(self.runs))
        if campaign is not None:
            ids = [name for name in ids if name.startswith(f"{campaign}-")]
        runs = [self.read(name) for name in ids]
        return sorted((r for r in runs if study is None or r.study == study), key=lambda r: (r.started_at, r.id))

    def read_campaigns(self, study: str | None = None) -> list[dict[str, Any]]:
        """What campaigns were asked to do, oldest first."""
        documents = [json.loads(path.read_text(encoding="utf-8")) for path in self._entries(self.campaigns)]
        chosen = [document for document in documents if study is None or document["study"] == study]
        return sorted(chosen, key=lambda document: (str(document["started_at"]), str(document["campaign"])))

    def clean(self) -> int:
        """Remove what processes of this host that are gone left half-written; says how many."""
        gone = [path for path in self._entries(self._tmp) if _owner_is_gone(path.name)]
        for path in gone:
            shutil.rmtree(path, ignore_errors=True)
        return len(gone)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Path]:
        """A temporary folder beside the runs, removed whatever happens; a full disk becomes a StoreError."""
        folder = None
        try:
            for part in (self.runs, self.campaigns, self._tmp):
                part.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=f"{socket.gethostname()}-{os.getpid()}-", dir=self._tmp))
            yield folder
        except OSError as error:
            hint = "free some space or choose another --store; what was stored before is intact"
            raise StoreError(f"cannot write to {self.root}: {error.strerror or error}", hint=hint) from error
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def _entries(folder: Path) -> list[Path]:
        return list(folder.iterdir()) if folder.is_dir() else []


def _parse(text: str, path: Path) -> Run:
    try:
        return Run.model_validate_json(text)
    except ValidationError as error:
        version = json.loads(text).get("schema_version") if text.startswith("{") else None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            reason = f"written by a newer Paceline (schema {version}, this one reads {SCHEMA_VERSION})"
            raise StoreError(f"{path}: {reason}", hint="upgrade Paceline") from None
        raise StoreError(f"{path} is not a stored run: {error.errors()[0]['msg']}") from None


def _write_table(path: Path, rows: tuple[Any, ...], kind: type[Any], schema: pa.Schema) -> None:
    names = [field.name for field in fields(kind)]
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    pq.write_table(pa.table(columns, schema=schema), path, compression="zstd")
    _sync(path)


def _write_synced(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _owner_is_gone(name: str) -> bool:
    host, _, rest = name.rpartition("-")[0].rpartition("-")
    if host != socket.gethostname() or not rest.isdigit():
        return False
    try:
        os.kill(int(rest), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
