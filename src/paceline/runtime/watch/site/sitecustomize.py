"""Installs the hooks of `paceline watch` in every Python process of the watched command, which finds it by PYTHONPATH.

Python runs only one `sitecustomize`, so this module also runs the one that the process would have found without it.
"""

from __future__ import annotations

import contextlib
import os
import sys

__all__ = ["run_hidden"]

_HERE = os.path.dirname(os.path.abspath(__file__))


def run_hidden() -> None:
    """Run the `sitecustomize` that this module hides, if there is one."""
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
