"""Keras 3 on unequal machines: `model.fit(..., callbacks=[paceline.keras.Join(global_batch=512)])`.

Needs Keras with TensorFlow, torch or JAX as its backend, and torch beside it, which carries the gradients.
"""

from __future__ import annotations

from paceline.errors import InputError

try:
    from paceline.runtime.keras.fit import Join, KerasPace, join_keras
except ModuleNotFoundError as error:
    if error.name not in ("keras", "torch", "tensorflow"):
        raise
    raise InputError(
        f"paceline.keras needs {error.name}, which this Python does not have",
        hint=f"pip install {error.name}; or paceline train --env keras, whose environment has all",
    ) from None

__all__ = ["Join", "KerasPace", "join_keras"]
