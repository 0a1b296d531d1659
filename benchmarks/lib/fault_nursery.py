"""Forks ranks and shards from a process that has torch loaded, so that the hundredth restart costs as little as a fork.

Reads one JSON order per line, answers each with the process number of the child; ends when nobody orders any more.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

CLONE_NEWNET = 0x40000000


def nursery() -> None:
    """Serve orders."""
    _load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while order := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            _become(json.loads(order))
        print(child, flush=True)


def _load() -> None:
    """Whatever children need, also what an optimizer imports when it is first used."""
    import torch.distributed
    from torch.utils import data  # noqa: F401

    import paceline.runtime.syncer.shard  # noqa: F401
    from paceline.runtime import join  # noqa: F401

    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.ones(1)
    torch.optim.AdamW([parameter]).step()


def _become(order: dict[str, Any]) -> None:
    """What was ordered, as if it had been started by itself."""
    os.environ.clear()
    os.environ.update(order["env"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(log, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if order.get("network") is not None:
        _enter_network(order["network"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        if "shard" in order:
            from paceline.runtime.syncer.shard import main

            logging.basicConfig(level=logging.INFO, format="%(created).3f %(message)s")
            sys.argv = ["shard", order["shard"]]
            _die_between_messages(Path(order["shard"]))
            main()
        else:
            sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script
            from lib.fault_worker import worker

            worker(Path(order["folder"]))
    finally:
        sys.excepthook(*sys.exc_info()) if sys.exc_info()[0] else None
        sys.stderr.flush()
        os._exit(1)


def _enter_network(path: str) -> None:
    """Run on the network of a host of a virtual cluster; `os.setns` came with Python 3.12."""
    with open(path, "rb") as network:
        if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "cannot enter the network", path)


def _die_between_messages(settings: Path) -> None:
    """SIGKILL of this shard at the n-th moment between two messages after an order that names n."""
    from paceline.runtime.members.channel import Channel

    order, left, lock = settings.with_name(f"die-at-{settings.stem}"), list[int](), threading.Lock()

    def moment() -> None:
        with lock:
            if not left and order.exists() and (text := order.read_text()):
                left.append(int(text))
            if left and left[0] == 0:
                order.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            left[:] = [number - 1 for number in left]

    for operation in ("send", "receive"):
        plain = getattr(Channel, operation)

        def called(channel: Channel, *given: Any, plain: Any = plain, **named: Any) -> Any:
            moment()
            result = plain(channel, *given, **named)
            moment()
            return result

        setattr(Channel, operation, called)


if __name__ == "__main__":
    nursery()
