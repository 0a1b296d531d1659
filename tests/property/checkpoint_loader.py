"""Makes a checkpoint, and loads others that have another header and a checksum that fits; runs with torch.

Reads one order per line, `make FILE` or `load FILE`, and answers with one line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from paceline.errors import StoreError
from paceline.runtime import checkpoint


def make(path: Path) -> str:
    """Write a sound checkpoint."""
    state = [{"weight": torch.ones(2, 3), "bias": torch.zeros(3)}, {"lr": 0.1, "state": [{"momentum": torch.ones(6)}]}]
    position = {"step": 3, "epoch": 0, "index": 24}
    checkpoint.save_checkpoint(
        path, {"identity": "a", "position": position, "mark": "m", "costs": [0.1], "state": state}
    )
    return "made"


def load(path: Path) -> str:
    """What comes of a file with this header, the checksum mended."""
    header, data = path.read_bytes(), bytes(60)
    try:
        document = json.loads(header)
        notes = {name: v for name, v in document["__metadata__"].items() if name not in (checkpoint.DIGEST, "format")}
        plain = {name: value for name, value in document.items() if name != "__metadata__"}
        notes |= {checkpoint.DIGEST: checkpoint._digest(plain, notes, iter([data]))}
        header = json.dumps({"__metadata__": notes, **plain}).encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass  # as it is
    sealed = path.with_suffix(".sealed")
    sealed.write_bytes(len(header).to_bytes(8, "little") + header + data)
    try:
        content = checkpoint.load_checkpoint(sealed)
    except StoreError as error:
        return f"StoreError: {error.message}"
    except Exception as error:  # noqa: BLE001 - what a user would see as a traceback
        return f"{type(error).__name__}: {error}"
    return "loaded" if content else "nothing"


for order in sys.stdin:
    what, _, name = order.strip().partition(" ")
    sys.stdout.write(" ".join({"make": make, "load": load}[what](Path(name)).split())[:300] + "\n")
    sys.stdout.flush()
