"""Builds a network with SINGA's autograd operators, channels first."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import singa._singa_wrap as extension
from singa import autograd, singa_wrap, tensor

from paceline.bench.frameworks.graph import Plain, UnsupportedLayer, input_shapes, run_layers, tensor_shapes

__all__ = ["SingaNetwork", "SoftmaxCrossEntropy", "open_bridge", "to_numpy"]


class SingaNetwork:
    """Tensors by Paceline's names; matrices are (in, out) in SINGA, all else has Paceline's layout."""

    def __init__(self, network: Plain, device: Any, *, training: bool = True) -> None:
        if network["input"]["kind"] != "image":
            raise UnsupportedLayer("SINGA's builder takes images only")
        self._network, self._device, self._training = network, device, training
        self._shapes = input_shapes(network)
        self._kinds = {layer["name"]: layer["kind"] for layer in network["layers"]}
        self._handles: dict[tuple[str, int], Any] = {}
        self.tensors = {name: self._parameter(name, shape) for name, shape in tensor_shapes(network).items()}

    def _parameter(self, name: str, shape: tuple[int, ...]) -> Any:
        array = self.native(name, np.zeros(shape, np.float32))
        made = tensor.Tensor(array.shape, self._device, requires_grad=True, stores_grad=True, name=name)
        made.copy_from_numpy(array)
        return made

    def native(self, name: str, array: Any) -> Any:
        """A tensor of Paceline in SINGA's layout."""
        layer, role = name.rsplit(".", 1)
        return np.ascontiguousarray(array.T) if self._kinds[layer] == "linear" and role == "weight" else array

    plain = native

    def __call__(self, images: Any) -> Any:
        """Logits of a batch of images."""
        return run_layers(self._network, self._apply, images)

    def _apply(self, layer: Plain, *inputs: Any) -> Any:
        build = getattr(self, "_" + layer["kind"], None)
        if build is None:
            raise UnsupportedLayer(f"SINGA builds no {layer['kind']} ({layer['name']})")
        return build(layer, *inputs)

    def _own(self, layer: Plain, role: str) -> Any:
        return self.tensors.get(f"{layer['name']}.{role}")

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
        if layer["ceil"]:
            raise UnsupportedLayer(f"SINGA's pooling cannot round its size up ({layer['name']})")
        key = (layer["name"], x.shape[0])
        if key not in self._handles:
            sizes = (layer["kernel"], layer["stride"], layer["padding"])
            self._handles[key] = singa_wrap.PoolingHandle(x.data, *sizes, largest)
        return autograd.pooling_2d(self._handles[key], x)

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
