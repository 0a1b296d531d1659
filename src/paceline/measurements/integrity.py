"""Checksums of stored data, and what was found damaged.

A run's folder holds `SHA256SUMS`, in the format of `sha256sum`: `sha256sum -c SHA256SUMS` checks a run without
Paceline. A campaign's document holds the checksum of its own content. Reading verifies both. Data that was stored
before there were checksums (schema 2 and older) is read unverified, and that is said once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import StoreError
from paceline.files import atomic_write, printable, read_regular
from paceline.measurements.run import SCHEMA_VERSION

__all__ = [
    "FILES",
    "NOTES",
    "SEALED_SINCE",
    "SUMS",
    "Damage",
    "DamagedData",
    "NewerData",
    "Notes",
    "newer",
    "read_files",
    "seal",
    "unseal",
    "write_sums",
]

SUMS = "SHA256SUMS"
FILES = ("run.json", "steps.parquet", "spans.parquet")
"""The files of a run that its checksums cover."""
SEALED_SINCE = 3
"""The first schema version with checksums."""
MAX_BYTES = 2**30
"""A larger file is none of a run."""

_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9._-]+)")
_log = logging.getLogger("paceline.store")


@dataclass(frozen=True)
class Damage:
    """One file of the store that cannot be used, and why."""

    run: str
    """The run, or the campaign for a file of `campaigns`."""
    file: str
    reason: str

    def __str__(self) -> str:
        return printable(f"{self.run}: {self.file}: {self.reason}")


class DamagedData(StoreError):
    """A run or campaign that cannot be used."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(str(damage), hint="`paceline store check` names all damage, `paceline store repair` mends it")
        self.damage = damage


class NewerData(DamagedData):
    """Data of a newer version: not damaged, but not to be read by this one."""


class Notes:
    """Data that this process left out or could not verify; printed once, and part of every JSON document."""

    def __init__(self) -> None:
        self.damaged: dict[tuple[Path, str], Damage] = {}
        self.unverified: set[tuple[Path, str]] = set()

    def left_out(self, root: Path, damage: Damage) -> None:
        """Log damaged data that is left out, the first time."""
        if (root, damage.run) not in self.damaged:
            self.damaged[root, damage.run] = damage
            _log.warning("left out as damaged: %s (`paceline store check` names all damage)", damage)

    def read_unverified(self, root: Path, name: str) -> None:
        """Say, the first time, that something has no checksums."""
        if not self.unverified:
            _log.warning("stored without checksums, so read unverified: %s, perhaps others "
                         "(`paceline store repair` adds checksums)", name)  # fmt: skip
        self.unverified.add((root, name))

    def clear(self) -> None:
        """Forget everything, before the next command."""
        self.damaged.clear()
        self.unverified.clear()

    def as_dict(self) -> dict[str, Any]:
        """The notes for JSON documents; empty if there are none."""
        damaged = [vars(damage) for damage in self.damaged.values()]
        return {**({"damaged": damaged} if damaged else {}),
                **({"unverified": len(self.unverified)} if self.unverified else {})}  # fmt: skip


NOTES = Notes()


def write_sums(folder: Path, *, durable: bool = True) -> None:
    """Write the checksums of a run's files, all of them or none: half a list would make a sound run a damaged one."""
    lines = [f"{_digest((folder / name).read_bytes())}  {name}\n" for name in FILES]
    atomic_write(folder / SUMS, "".join(lines), durable=durable)


def read_files(folder: Path) -> tuple[dict[str, bytes], bool]:
    """The content of a run's files, and whether checksums verified it; DamagedData if something is wrong."""
    run = folder.name
    if folder.is_symlink() or not folder.is_dir():
        raise DamagedData(Damage(run, ".", "not a folder" if folder.exists() else "No such file or directory"))
    content = {name: _content(folder, name) for name in FILES}
    if not (folder / SUMS).exists() and not (folder / SUMS).is_symlink():
        return content, False
    sums = _sums(run, _content(folder, SUMS))
    for name in FILES:
        if sums.get(name) != _digest(content[name]):
            reason = "its content does not match its checksum" if name in sums else f"not in {SUMS}"
            raise DamagedData(Damage(run, name, reason))
    return content, True


def _content(folder: Path, name: str) -> bytes:
    try:
        content = read_regular(folder / name, most=MAX_BYTES + 1)
    except OSError as error:
        raise DamagedData(Damage(folder.name, name, error.strerror or str(error))) from None
    if len(content) > MAX_BYTES:
        raise DamagedData(Damage(folder.name, name, f"larger than {MAX_BYTES} bytes"))
    return content


def _sums(run: str, content: bytes) -> dict[str, str]:
    lines = content.decode("ascii", errors="replace").splitlines()
    matches = [_LINE.fullmatch(line) for line in lines]
    if not lines or not all(matches):
        raise DamagedData(Damage(run, SUMS, "not a list of checksums"))
    return {match[2]: match[1] for match in matches if match}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def seal(document: dict[str, Any]) -> str:
    """The document as JSON text with its own checksum."""
    content = {**document, "schema_version": SCHEMA_VERSION}
    return json.dumps({**content, "checksum": _checksum(content)}, indent=1)


def unseal(text: str) -> tuple[dict[str, Any], bool]:
    """The document of a text, and whether its checksum verified it; ValueError if something is wrong."""
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("not a table")
    version, checksum = document.get("schema_version", 1), document.pop("checksum", None)
    if not isinstance(version, int):
        raise ValueError(f"schema version {version!r}")
    if version > SCHEMA_VERSION:
        raise ValueError(newer(version))
    if checksum is None and version < SEALED_SINCE:
        return document, False
    if checksum != _checksum(document):
        raise ValueError("its content does not match its checksum")
    return document, True


def newer(version: int) -> str:
    """Why data of a newer version is refused."""
    return f"written by a newer Paceline (schema {version}, this one reads {SCHEMA_VERSION}): upgrade Paceline"


def _checksum(document: dict[str, Any]) -> str:
    return _digest(json.dumps(document, sort_keys=True).encode())
