"""Forks ranks and shards from a process that has torch loaded, so that the hundredth restart costs as little as a fork.

Reads one JSON order per line, answers each with the process number of the child; ends when nobody orders any more.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any


def nursery() -> None:
    """Serve orders."""
    import torch.distributed  # noqa: F401 - loaded for the children
    from torch import nn, optim, utils  # noqa: F401
    from torch.utils import data  # noqa: F401

    import paceline.runtime.emulate
    import paceline.runtime.syncer.shard  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while order := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            _become(json.loads(order))
        print(child, flush=True)


def _become(order: dict[str, Any]) -> None:
    """What was ordered, as if it had been started by itself."""
    os.environ.clear()
    os.environ.update(order["env"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(log, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        if "shard" in order:
            from paceline.runtime.syncer.shard import main

            logging.basicConfig(level=logging.INFO, format="%(created).3f %(message)s")
            sys.argv = ["shard", order["shard"]]
            main()
        else:
            sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script
            from lib.fault_worker import worker

            worker(Path(order["folder"]))
    finally:
        sys.excepthook(*sys.exc_info()) if sys.exc_info()[0] else None
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    nursery()
