"""The command line, as `paceline` and as `python -m paceline`.

Imports take tenths of a second, in which Ctrl-C would be a traceback, or an error of a library that was half there. So
the answer to it stands before them; `paceline.cli` takes over once a command runs.
"""

from __future__ import annotations

# `signal` itself imports `enum` and seven others, milliseconds in which Ctrl-C is a traceback.
import _signal as signal  # type: ignore[import-not-found]
import os

__all__ = ["start"]


def start() -> None:
    """Run the command line, which Ctrl-C stops from the first moment to the last."""
    listens = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's background jobs ignore it
    if listens:
        signal.signal(signal.SIGINT, _stop)
    from paceline.cli import main

    try:
        main()
    finally:
        if listens:
            signal.signal(signal.SIGINT, _stop)


def _stop(number: int, frame: object) -> None:
    """Exit at once on a signal: at this point there is nothing to clean up."""
    os.write(2, b"stopped\n")
    os._exit(128 + number)


if __name__ == "__main__":
    start()
