"""A power cut for one folder: what was not given to fsync is lost, as on a disk.

The content of a file counts as of its last fsync, the names of the folder as of the folder's. A file system may also
have kept newer names, so both cases are tried.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class PowerCut(Exception):
    """The machine went off."""


class Power:
    """Watches fsync and renames in a folder; `left` of them go well, then the power is cut."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self.left: int | None = None
        self._contents: dict[int, bytes] = {}
        self._names: dict[str, int] = {}
        rename = os.replace
        monkeypatch.setattr(os, "fsync", self._fsync)
        monkeypatch.setattr(os, "fdatasync", self._fsync)
        monkeypatch.setattr(os, "replace", lambda old, new: (self._tick(), rename(old, new)))

    def _tick(self) -> None:
        if self.left == 0:
            raise PowerCut
        if self.left is not None:
            self.left -= 1

    def _fsync(self, handle: int) -> None:
        self._tick()
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.is_dir():
            self._names = self._now()
        else:
            self._contents[os.fstat(handle).st_ino] = path.read_bytes()

    def _now(self) -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in self._folder.iterdir()}

    def off(self, *, newer_names: bool) -> None:
        """Leave in the folder what survives."""
        names = self._now() if newer_names else self._names
        left = {name: self._contents.get(number, b"") for name, number in names.items()}
        for path in self._folder.iterdir():
            path.unlink()
        for name, content in left.items():
            (self._folder / name).write_bytes(content)
