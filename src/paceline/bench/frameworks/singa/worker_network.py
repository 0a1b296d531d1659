"""Builds a network with SINGA's autograd operators, channels first."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import singa._singa_wrap as extension
from singa import autograd, singa_wrap, tensor

from paceline.bench.frameworks.graph import (
    ImageBuilder,
    Plain,
    pool_padding,
    pool_shares,
    run_layers,
    tensor_shapes,
)
from paceline.bench.frameworks.singa.worker_operators import (
    BatchNormOperator,
    ConcatOperator,
    PadOperator,
    ResponseNormOperator,
    constant,
)

__all__ = ["SingaNetwork", "open_bridge"]

LOWEST = -1e30
"""Padding of a maximum."""


class SingaNetwork(ImageBuilder):
    """The network's parameters as SINGA's tensors; calling it gives the logits."""

    framework = "SINGA"

    def __init__(self, network: Plain, device: Any, *, training: bool) -> None:
        super().__init__(network, training=training)
        self._device = device
        self._handles: dict[tuple[str, int], Any] = {}
        self.tensors = {name: self._parameter(name, shape) for name, shape in tensor_shapes(network).items()}

    def _parameter(self, name: str, shape: tuple[int, ...]) -> Any:
        array = self.native(name, np.zeros(shape, np.float32))
        made = tensor.Tensor(array.shape, self._device, requires_grad=True, stores_grad=True, name=name)
        made.copy_from_numpy(array)
        return made

    def __call__(self, images: Any) -> Any:
        """Logits of a batch of images."""
        return run_layers(self._network, self._apply, images)

    def _conv2d(self, layer: Plain, x: Any) -> Any:
        key = (layer["name"], x.shape[0])
        if key not in self._handles:
            sizes = (layer["kernel"], layer["stride"], layer["padding"])
            shape = (x.shape[1], layer["channels"], layer["bias"], layer["groups"])
            self._handles[key] = singa_wrap.ConvHandle(x.data, *sizes, *shape)
        return autograd.conv2d(self._handles[key], x, self._own(layer, "weight"), self._own(layer, "bias"))

    def _max_pool(self, layer: Plain, x: Any) -> Any:
        return self._pool(layer, x, largest=True)

    def _avg_pool(self, layer: Plain, x: Any) -> Any:
        return self._pool(layer, x, largest=False)

    def _pool(self, layer: Plain, x: Any, *, largest: bool) -> Any:
        """SINGA's pooling rounds its size down and leaves padding out of means: where that differs, pad before."""
        shape, padding = self._shapes[layer["name"]][0], layer["padding"]
        if layer["ceil"] or (any(padding) and not largest):
            sides, padding = pool_padding(layer, shape), (0, 0)
            x = PadOperator(sides, LOWEST if largest else 0.0)(x)[0] if any(map(any, sides)) else x
        key = (layer["name"], x.shape[0])
        if key not in self._handles:
            self._handles[key] = singa_wrap.PoolingHandle(x.data, layer["kernel"], layer["stride"], padding, largest)
        x = autograd.pooling_2d(self._handles[key], x)
        shares = None if largest else pool_shares(layer, shape)
        return autograd.mul(x, constant(x.shape, np.outer(*shares), self._device)) if shares else x

    def _linear(self, layer: Plain, x: Any) -> Any:
        x = autograd.matmul(x, self._own(layer, "weight"))
        return autograd.add_bias(x, self._own(layer, "bias"), axis=0) if layer["bias"] else x

    def _relu(self, _: Plain, x: Any) -> Any:
        return autograd.relu(x)

    def _tanh(self, _: Plain, x: Any) -> Any:
        return autograd.tanh(x)

    def _dropout(self, layer: Plain, x: Any) -> Any:
        return autograd.dropout(x, layer["rate"]) if self._training else x

    def _global_avg_pool(self, _: Plain, x: Any) -> Any:
        return autograd.flatten(autograd.globalaveragepool(x))

    def _flatten(self, _: Plain, x: Any) -> Any:
        return autograd.flatten(x)

    def _add(self, _: Plain, *inputs: Any) -> Any:
        total = inputs[0]
        for other in inputs[1:]:
            total = autograd.add(total, other)
        return total

    def _batch_norm(self, layer: Plain, x: Any) -> Any:
        return BatchNormOperator(layer["eps"])(x, self._own(layer, "weight"), self._own(layer, "bias"))[0]

    def _local_response_norm(self, layer: Plain, x: Any) -> Any:
        return ResponseNormOperator(layer)(x)[0]

    def _concat(self, _: Plain, *inputs: Any) -> Any:
        return ConcatOperator()(*inputs)[0]

    def _pad_shortcut(self, layer: Plain, x: Any) -> Any:
        """Every `stride`-th place, by a window of one, between channels of zeros."""
        window = {"name": layer["name"], "kernel": (1, 1), "stride": (layer["stride"],) * 2, "padding": (0, 0)}
        x = self._pool({**window, "ceil": False}, x, largest=True)
        samples, channels, *place = x.shape
        zeros = constant((samples, (layer["channels"] - channels) // 2, *place), 0.0, self._device)
        return ConcatOperator()(zeros, x, zeros)[0] if zeros.shape[1] else x


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
