"""What a shard has promised is on disk: one that cannot write ends, and who is started next goes on from there."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["kept_or_ended"]

log = logging.getLogger("paceline.runtime")


@contextlib.contextmanager
def kept_or_ended(path: Path) -> Iterator[None]:
    """Around writing: a full disk must not leave a shard that goes on answering from memory."""
    try:
        yield
    except OSError as error:
        log.critical("%s cannot be written, so this shard ends: %s", path, error)
        os._exit(1)
