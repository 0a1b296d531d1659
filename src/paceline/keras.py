"""Keras 3 on unequal machines: `model.fit(..., callbacks=[paceline.keras.Join(global_batch=512)])`.

Needs Keras with TensorFlow, torch or JAX as its backend, and torch, which exchanges the gradients.
"""

from __future__ import annotations

import importlib.util

from paceline.errors import InputError

for _name in ("keras", "torch"):
    if importlib.util.find_spec(_name) is None:
        raise InputError(
            f"paceline.keras needs {_name}, which is not installed in this Python",
            hint=f"pip install {_name}; or paceline train --env keras, whose environment has all",
        )

from paceline.runtime.keras.fit import Join, KerasPace, join_keras  # noqa: E402

__all__ = ["Join", "KerasPace", "join_keras"]
