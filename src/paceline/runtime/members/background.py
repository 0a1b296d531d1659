"""Threads that do not die in silence: what depends on one is told when it fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

__all__ = ["in_background"]

log = logging.getLogger("paceline.runtime")


def in_background(name: str, work: Callable[[], None], *, failed: Callable[[], None]) -> None:
    """Run it in a thread; if it raises, that is logged and `failed` is called."""

    def run() -> None:
        try:
            work()
        except BaseException:
            log.exception("the thread %s failed", name)
            failed()

    threading.Thread(target=run, daemon=True, name=f"paceline-{name}").start()
