"""Builds a network as a CNTK function over its own parameters, channels first."""

from __future__ import annotations

from typing import Any

import cntk
import numpy as np

from paceline.bench.frameworks.graph import (
    Plain,
    UnsupportedLayer,
    input_shapes,
    pool_padding,
    pool_shares,
    run_layers,
    tensor_shapes,
)

__all__ = ["CntkNetwork"]

LOWEST = -1e30


class CntkNetwork:
    """Parameters by Paceline's names; matrices are (in, out) in CNTK, all else has Paceline's layout."""

    def __init__(self, network: Plain, *, training: bool = True) -> None:
        if network["input"]["kind"] != "image":
            raise UnsupportedLayer("CNTK's builder takes images only: it has no embedding of integer tokens")
        self._network = network
        self._shapes = input_shapes(network)
        self._training = training
        self._kinds = {layer["name"]: layer["kind"] for layer in network["layers"]}
        self.tensors = {
            name: cntk.parameter(self.native(name, np.zeros(shape, np.float32)).shape, init=0, name=name)
            for name, shape in tensor_shapes(network).items()
        }

    def native(self, name: str, array: Any) -> Any:
        """A tensor of Paceline in CNTK's layout."""
        layer, role = name.rsplit(".", 1)
        return np.ascontiguousarray(array.T) if self._kinds[layer] == "linear" and role == "weight" else array

    plain = native

    def logits(self, images: Any) -> Any:
        """The function that computes the logits of an input variable of images."""
        return run_layers(self._network, self._apply, images)

    def _apply(self, layer: Plain, *inputs: Any) -> Any:
        build = getattr(self, "_" + layer["kind"], None)
        if build is None:
            raise UnsupportedLayer(f"CNTK builds no {layer['kind']} ({layer['name']})")
        return build(layer, *inputs)

    def _own(self, layer: Plain, role: str) -> Any:
        return self.tensors[f"{layer['name']}.{role}"]

    def _conv2d(self, layer: Plain, x: Any) -> Any:
        high, wide = layer["padding"]
        x = _padded(x, ((high, high), (wide, wide)), 0.0)
        strides, groups = (1, *layer["stride"]), layer["groups"]
        x = cntk.convolution(self._own(layer, "weight"), x, strides, auto_padding=[False], groups=groups)
        return x + cntk.reshape(self._own(layer, "bias"), (-1, 1, 1)) if layer["bias"] else x

    def _linear(self, layer: Plain, x: Any) -> Any:
        x = cntk.times(x, self._own(layer, "weight"))
        return x + self._own(layer, "bias") if layer["bias"] else x

    def _batch_norm(self, layer: Plain, x: Any) -> Any:
        own = (self._own(layer, "weight"), self._own(layer, "bias"))
        mean, variance = (cntk.constant(0, own[0].shape) for _ in range(2))
        # CNTK's own engine: cuDNN's would need a GPU
        options = {"epsilon": layer["eps"], "use_cudnn_engine": False, "running_count": cntk.constant(0, ())}
        return cntk.batch_normalization(x, *own, mean, variance, True, 5000, **options)

    def _local_response_norm(self, layer: Plain, x: Any) -> Any:
        # CNTK divides alpha by the size of the window itself
        radius = layer["size"] // 2
        return cntk.local_response_normalization(x, radius, layer["k"], layer["alpha"], layer["beta"])

    def _relu(self, _: Plain, x: Any) -> Any:
        return cntk.relu(x)

    def _tanh(self, _: Plain, x: Any) -> Any:
        return cntk.tanh(x)

    def _max_pool(self, layer: Plain, x: Any) -> Any:
        x = _padded(x, pool_padding(layer, self._shapes[layer["name"]][0]), LOWEST)
        return cntk.pooling(x, cntk.MAX_POOLING, tuple(layer["kernel"]), tuple(layer["stride"]), [False])

    def _avg_pool(self, layer: Plain, x: Any) -> Any:
        x = _padded(x, pool_padding(layer, self._shapes[layer["name"]][0]), 0.0)
        x = cntk.pooling(x, cntk.AVG_POOLING, tuple(layer["kernel"]), tuple(layer["stride"]), [False])
        shares = pool_shares(layer, self._shapes[layer["name"]][0])
        return x * cntk.constant(np.outer(*shares)[None].astype(np.float32)) if shares else x

    def _global_avg_pool(self, _: Plain, x: Any) -> Any:
        return cntk.reshape(cntk.reduce_mean(x, axis=(1, 2)), (-1,))

    def _dropout(self, layer: Plain, x: Any) -> Any:
        return cntk.dropout(x, layer["rate"]) if self._training else x

    def _flatten(self, _: Plain, x: Any) -> Any:
        return cntk.reshape(x, (-1,))

    def _add(self, _: Plain, *inputs: Any) -> Any:
        total = inputs[0]
        for other in inputs[1:]:
            total = total + other
        return total

    def _concat(self, _: Plain, *inputs: Any) -> Any:
        return cntk.splice(*inputs, axis=0)

    def _pad_shortcut(self, layer: Plain, x: Any) -> Any:
        stride, extra = layer["stride"], (layer["channels"] - x.shape[0]) // 2
        x = cntk.slice(x, [1, 2], [0, 0], [x.shape[1], x.shape[2]], [stride, stride])
        return cntk.pad(x, [(extra, extra), (0, 0), (0, 0)], mode=cntk.ops.CONSTANT_PAD, constant_value=0)


def _padded(x: Any, sides: Any, value: float) -> Any:
    if sides == ((0, 0), (0, 0)):
        return x
    return cntk.pad(x, [(0, 0), *sides], mode=cntk.ops.CONSTANT_PAD, constant_value=value)
