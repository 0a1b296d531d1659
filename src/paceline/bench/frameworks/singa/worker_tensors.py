"""Copies of arrays to and from SINGA's tensors without its SWIG layer, which does not support this NumPy.

The preview wheel's typemaps reject every array. Its library exports the C++ methods themselves, so they are called by
their mangled names on the object that the SWIG proxy points to.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import singa._singa_wrap as extension
from singa import autograd, singa_wrap, tensor

__all__ = ["SoftmaxCrossEntropy", "open_bridge", "to_numpy"]

_library = ctypes.CDLL(extension.__file__)
_put = _library["_ZNK5singa6Tensor19CopyDataFromHostPtrIfEEvPKT_mm"]
_put.argtypes, _put.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t], None
_take = _library["_ZNK5singa6Tensor8GetValueIfEEvPT_m"]
_take.argtypes, _take.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t], None


def open_bridge() -> None:
    """Replace the two methods that SINGA's own Python code calls to exchange data with NumPy."""
    singa_wrap.Tensor.CopyFloatDataFromHostPtr = _copy_in
    singa_wrap.Tensor.GetFloatValue = _copy_out


def _copy_in(self: Any, array: Any, size: int | None = None) -> None:
    dense = np.ascontiguousarray(array, np.float32)
    _put(int(self.this), dense.ctypes.data, dense.size, 0)


def _copy_out(self: Any, size: int, *_: Any) -> Any:
    array = np.empty(size, np.float32)
    _take(int(self.this), array.ctypes.data, size)
    return array


class SoftmaxCrossEntropy(autograd.Operator):
    """The mean loss; SINGA's own loss divides in place, which crashes its proxies for CPython 3.6."""

    def __init__(self, targets: Any) -> None:
        super().__init__()
        self._targets = targets.data

    def forward(self, logits: Any) -> Any:
        """Mean over the batch."""
        self._size = float(logits.shape()[0])
        self._shares = singa_wrap.SoftMax(logits)
        total = singa_wrap.SumAll(singa_wrap.CrossEntropyFwd(self._shares, self._targets))
        return singa_wrap.DivFloat(total, self._size)

    def backward(self, upstream: float = 1.0) -> Any:
        """Gradient of the logits."""
        return singa_wrap.DivFloat(singa_wrap.SoftmaxCrossEntropyBwd(self._shares, self._targets), self._size)


def to_numpy(value: Any) -> Any:
    """A SINGA tensor's content."""
    return tensor.to_numpy(value)
