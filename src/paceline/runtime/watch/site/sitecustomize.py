"""Found by every Python process of a watched command through PYTHONPATH: arms it, then runs what it hides.

Python runs one `sitecustomize` only; the one that the process would have found without this one runs, too.
"""

from __future__ import annotations

import contextlib
import os
import sys

__all__ = ["run_hidden"]

_HERE = os.path.dirname(os.path.abspath(__file__))


def run_hidden() -> None:
    """Run the `sitecustomize` that this one hides, if there is one."""
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != _HERE]
    this = sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        __import__("sitecustomize")
    if this is not None:
        sys.modules.setdefault("sitecustomize", this)


try:
    from paceline.runtime.watch.arming import arm

    arm()
except Exception as _error:  # noqa: BLE001
    sys.stderr.write(f"paceline watch: this process is not watched: {type(_error).__name__}: {_error}\n")
finally:
    run_hidden()
