"""Builds a network as a functional Keras 3 model of Keras layers, for any of its backends."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from paceline.bench.frameworks.graph import (
    InOut,
    LayerBuilder,
    Plain,
    UnsupportedLayer,
    pool_padding,
    pool_shares,
    run_layers,
)

__all__ = ["KerasNetwork"]

LOWEST = -1e30
EMPTY: dict[str, Any] = {"kernel_initializer": "zeros"}
"""Initializer without random numbers, because weights are loaded later."""


class KerasNetwork(LayerBuilder):
    """A Keras model and the mapping of Paceline's tensor names to its variables.

    Images are channels last, Keras' default; with the torch backend channels first, which that backend computes in.
    """

    framework = "Keras"

    def __init__(self, network: Plain, *, training: bool) -> None:
        super().__init__(network, training=training)
        self.channels_first = keras.config.image_data_format() == "channels_first"
        self._axis = 1 if self.channels_first else -1
        layout = InOut(network, channels_last=not self.channels_first)
        self.native, self.plain, self._moving = layout.native, layout.plain, layout.moving
        self._layers: dict[str, Any] = {}
        entry = _entry(network, channels_first=self.channels_first)
        self.model = keras.Model(entry, run_layers(network, self._apply, entry))

    def variable(self, name: str) -> Any:
        """The Keras variable that holds a tensor of Paceline."""
        layer, role = name.rsplit(".", 1)
        owner = self._layers[layer]
        if isinstance(owner, _Own):
            return owner.variables_by_role[role]
        if isinstance(owner, layers.Embedding):
            return owner.embeddings
        norm = isinstance(owner, (layers.BatchNormalization, layers.LayerNormalization))
        return getattr(owner, {"weight": "gamma" if norm else "kernel", "bias": "beta" if norm else "bias"}[role])

    def _keep(self, layer: Plain, block: Any) -> Any:
        self._layers[layer["name"]] = block
        return block

    def _conv2d(self, layer: Plain, x: Any) -> Any:
        if layer["groups"] > 1 and keras.backend.backend() == "tensorflow":
            raise UnsupportedLayer(f"TensorFlow has no gradient of grouped convolutions on CPU ({layer['name']})")
        if any(layer["padding"]):
            x = layers.ZeroPadding2D(tuple(layer["padding"]))(x)
        options = {"strides": tuple(layer["stride"]), "groups": layer["groups"], "use_bias": layer["bias"], **EMPTY}
        return self._keep(layer, layers.Conv2D(layer["channels"], tuple(layer["kernel"]), **options))(x)

    def _linear(self, layer: Plain, x: Any) -> Any:
        if layer.get("tied_to"):
            return self._keep(layer, _Tied(layer, self._layers[layer["tied_to"]]))(x)
        return self._rows(x, self._keep(layer, layers.Dense(layer["features"], use_bias=layer["bias"], **EMPTY)))

    def _batch_norm(self, layer: Plain, x: Any) -> Any:
        return self._keep(layer, layers.BatchNormalization(axis=self._axis, epsilon=layer["eps"]))(x)

    def _layer_norm(self, layer: Plain, x: Any) -> Any:
        return self._rows(x, self._keep(layer, layers.LayerNormalization(epsilon=layer["eps"])))

    def _rows(self, x: Any, block: Any) -> Any:
        """A block over the last axis of an image, its columns: with channels last they are not the last axis."""
        if len(x.shape) != 4 or self.channels_first:
            return block(x)
        return layers.Permute((2, 3, 1))(block(layers.Permute((3, 1, 2))(x)))

    def _local_response_norm(self, layer: Plain, x: Any) -> Any:
        return _Neighbours(layer, self._axis)(x)

    def _relu(self, _: Plain, x: Any) -> Any:
        return layers.ReLU()(x)

    def _tanh(self, _: Plain, x: Any) -> Any:
        return layers.Activation("tanh")(x)

    def _gelu(self, layer: Plain, x: Any) -> Any:
        return ops.gelu(x, approximate=layer["approximate"])

    def _max_pool(self, layer: Plain, x: Any) -> Any:
        x = self._padded(layer, x, LOWEST)
        return layers.MaxPooling2D(tuple(layer["kernel"]), tuple(layer["stride"]))(x)

    def _avg_pool(self, layer: Plain, x: Any) -> Any:
        x = self._padded(layer, x, 0.0)
        x = layers.AveragePooling2D(tuple(layer["kernel"]), tuple(layer["stride"]))(x)
        shares = pool_shares(layer, self._shapes[layer["name"]][0])
        if shares is None:
            return x
        factors = np.outer(*shares).astype(keras.config.floatx())
        return x * (factors if self.channels_first else factors[:, :, None])

    def _padded(self, layer: Plain, x: Any, value: float) -> Any:
        sides = pool_padding(layer, self._shapes[layer["name"]][0])
        if sides == ((0, 0), (0, 0)):
            return x
        pads = [(0, 0), (0, 0), *sides] if self.channels_first else [(0, 0), *sides, (0, 0)]
        return ops.pad(x, pads, constant_values=value)

    def _global_avg_pool(self, _: Plain, x: Any) -> Any:
        return layers.GlobalAveragePooling2D()(x)

    def _dropout(self, layer: Plain, x: Any) -> Any:
        return layers.Dropout(layer["rate"])(x) if self._training else x

    def _flatten(self, layer: Plain, x: Any) -> Any:
        if layer["name"] in self._moving:
            x = layers.Permute((3, 1, 2))(x)
        return layers.Reshape((layer["shape"][0],))(x)

    def _add(self, _: Plain, *inputs: Any) -> Any:
        return layers.Add()(list(inputs))

    def _concat(self, layer: Plain, *inputs: Any) -> Any:
        return layers.Concatenate(axis=self._axis if len(layer["shape"]) == 3 else 1)(list(inputs))

    def _pad_shortcut(self, layer: Plain, x: Any) -> Any:
        stride, extra = layer["stride"], (layer["channels"] - self._shapes[layer["name"]][0][0]) // 2
        if self.channels_first:
            return ops.pad(x[:, :, ::stride, ::stride], [(0, 0), (extra, extra), (0, 0), (0, 0)])
        return ops.pad(x[:, ::stride, ::stride, :], [(0, 0), (0, 0), (0, 0), (extra, extra)])

    def _embedding(self, layer: Plain, tokens: Any) -> Any:
        return self._keep(layer, layers.Embedding(layer["rows"], layer["width"], "zeros"))(tokens)

    def _position_embedding(self, layer: Plain, x: Any) -> Any:
        return self._keep(layer, _Rows(layer, layer["shape"][0]))(x)

    def _type_embedding(self, layer: Plain, x: Any) -> Any:
        return self._keep(layer, _Rows(layer, 1))(x)

    def _first_token(self, _: Plain, x: Any) -> Any:
        return x[:, 0]

    def _attention(self, layer: Plain, x: Any) -> Any:
        return self._keep(layer, _Attention(layer))(x)


def _entry(network: Plain, *, channels_first: bool) -> Any:
    source = network["input"]
    if source["kind"] == "tokens":
        return keras.Input((source["length"],), dtype="int32")
    sides = (source["height"], source["width"])
    return keras.Input((source["channels"], *sides) if channels_first else (*sides, source["channels"]))


class _Own(layers.Layer):
    """A layer that holds its tensors by role, in Paceline's layout."""

    def __init__(self, layer: Plain) -> None:
        super().__init__()
        self._plain = layer
        self.variables_by_role = {
            tensor["name"].rsplit(".", 1)[1]: self.add_weight(shape=tuple(tensor["shape"]), initializer="zeros")
            for tensor in layer["tensors"]
        }


class _Rows(_Own):
    def __init__(self, layer: Plain, rows: int) -> None:
        super().__init__(layer)
        self._rows = rows

    def call(self, x: Any) -> Any:
        return x + self.variables_by_role["weight"][: self._rows]


class _Tied(_Own):
    def __init__(self, layer: Plain, source: Any) -> None:
        super().__init__(layer)
        self._source = source

    def call(self, x: Any) -> Any:
        x = ops.matmul(x, ops.transpose(self._source.embeddings))
        return x + self.variables_by_role["bias"] if self._plain["bias"] else x


class _Neighbours(layers.Layer):
    """Local response normalisation, which Keras lacks."""

    def __init__(self, layer: Plain, axis: int) -> None:
        super().__init__()
        self._plain = layer
        self._along = axis

    def call(self, x: Any) -> Any:
        size, axis = self._plain["size"], self._along % 4
        pads = [(0, 0)] * 4
        pads[axis] = (size // 2, (size - 1) // 2)
        squares = ops.pad(x * x, pads)
        depth = x.shape[axis]
        total = sum(_window(squares, axis, shift, depth) for shift in range(size))
        return x * (self._plain["k"] + self._plain["alpha"] / size * total) ** -self._plain["beta"]


def _window(x: Any, axis: int, start: int, size: int) -> Any:
    index = [slice(None)] * 4
    index[axis] = slice(start, start + size)
    return x[tuple(index)]


class _Attention(_Own):
    def call(self, x: Any) -> Any:
        length, width = self._plain["shape"]
        heads, own = self._plain["heads"], self.variables_by_role
        qkv = ops.matmul(x, ops.transpose(own["qkv_weight"])) + own["qkv_bias"]
        qkv = ops.reshape(qkv, (-1, length, 3, heads, width // heads))
        mixed = ops.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=self._plain["causal"])
        mixed = ops.reshape(mixed, (-1, length, width))
        return ops.matmul(mixed, ops.transpose(own["out_weight"])) + own["out_bias"]
