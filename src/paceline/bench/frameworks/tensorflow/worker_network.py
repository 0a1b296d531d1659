"""Builds a network with TensorFlow's own operations: a tf.Module of variables and tf.nn calls, channels last."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from paceline.bench.frameworks.graph import (
    InOut,
    LayerBuilder,
    Plain,
    pool_padding,
    pool_shares,
    run_layers,
    tensor_shapes,
)

__all__ = ["TensorFlowNetwork", "mean_cross_entropy"]


class TensorFlowNetwork(LayerBuilder, tf.Module):
    """Variables by Paceline's tensor names, in TensorFlow's layout; calling it gives the logits."""

    framework = "TensorFlow"

    def __init__(self, network: Plain, *, training: bool) -> None:
        tf.Module.__init__(self, name="network")
        LayerBuilder.__init__(self, network, training=training)
        layout = InOut(network)
        self.native, self.plain, self._moving = layout.native, layout.plain, layout.moving
        self.tensors: dict[str, tf.Variable] = {
            name: tf.Variable(self.native(name, np.zeros(shape, np.float32)), name=name.replace(".", "_"))
            for name, shape in tensor_shapes(network).items()
        }

    def __call__(self, value: Any) -> Any:
        """Logits of a batch of channels-last images or of tokens."""
        return run_layers(self._network, self._apply, value)

    def _tensor(self, layer: Plain, role: str) -> Any:
        return self.tensors[f"{layer['name']}.{role}"]

    def _conv2d(self, layer: Plain, x: Any) -> Any:
        kernel, groups = self._tensor(layer, "weight"), layer["groups"]
        if groups == 1:
            x = _convolve(layer, x, kernel)
        else:  # TensorFlow has no gradient of grouped convolutions on CPU
            pieces = zip(tf.split(x, groups, axis=3), tf.split(kernel, groups, axis=3))
            x = tf.concat([_convolve(layer, part, weight) for part, weight in pieces], axis=3)
        return tf.nn.bias_add(x, self._tensor(layer, "bias")) if layer["bias"] else x

    def _linear(self, layer: Plain, x: Any) -> Any:
        if len(x.shape) == 4:
            return _rows(x, lambda rows: self._linear(layer, rows))
        tied = layer.get("tied_to")
        if tied:
            x = tf.matmul(x, self.tensors[f"{tied}.weight"], transpose_b=True)
        elif len(x.shape) == 3:
            x = tf.tensordot(x, self._tensor(layer, "weight"), 1)
        else:
            x = tf.matmul(x, self._tensor(layer, "weight"))
        return tf.nn.bias_add(x, self._tensor(layer, "bias")) if layer["bias"] else x

    def _batch_norm(self, layer: Plain, x: Any) -> Any:
        scale, shift = self._tensor(layer, "weight"), self._tensor(layer, "bias")
        return tf.compat.v1.nn.fused_batch_norm(x, scale, shift, epsilon=layer["eps"], is_training=True)[0]

    def _layer_norm(self, layer: Plain, x: Any) -> Any:
        if len(x.shape) == 4:
            return _rows(x, lambda rows: self._layer_norm(layer, rows))
        mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
        return tf.nn.batch_normalization(
            x, mean, variance, self._tensor(layer, "bias"), self._tensor(layer, "weight"), layer["eps"]
        )

    def _local_response_norm(self, layer: Plain, x: Any) -> Any:
        size, alpha = layer["size"], layer["alpha"] / layer["size"]
        if size % 2 == 0:  # TensorFlow's own windows are symmetric
            squares = tf.pad(x * x, [[0, 0], [0, 0], [0, 0], [size // 2, (size - 1) // 2]])
            total = tf.add_n([squares[..., first : first + x.shape[3]] for first in range(size)])
            return x * (layer["k"] + alpha * total) ** -layer["beta"]
        radius = size // 2
        return tf.nn.local_response_normalization(x, radius, layer["k"], alpha, layer["beta"])

    def _relu(self, _: Plain, x: Any) -> Any:
        return tf.nn.relu(x)

    def _tanh(self, _: Plain, x: Any) -> Any:
        return tf.tanh(x)

    def _gelu(self, layer: Plain, x: Any) -> Any:
        return tf.nn.gelu(x, approximate=layer["approximate"])

    def _max_pool(self, layer: Plain, x: Any) -> Any:
        pads = pool_padding(layer, self._shapes[layer["name"]][0])
        if pads != ((0, 0), (0, 0)):
            x = tf.pad(x, [[0, 0], *map(list, pads), [0, 0]], constant_values=x.dtype.min)
        return tf.nn.max_pool2d(x, layer["kernel"], layer["stride"], "VALID")

    def _avg_pool(self, layer: Plain, x: Any) -> Any:
        pads = pool_padding(layer, self._shapes[layer["name"]][0])
        if pads != ((0, 0), (0, 0)):
            x = tf.pad(x, [[0, 0], *map(list, pads), [0, 0]])
        x = tf.nn.avg_pool2d(x, layer["kernel"], layer["stride"], "VALID")
        shares = pool_shares(layer, self._shapes[layer["name"]][0])
        return x * np.outer(*shares)[None, :, :, None].astype(x.dtype.as_numpy_dtype) if shares else x

    def _global_avg_pool(self, _: Plain, x: Any) -> Any:
        return tf.reduce_mean(x, axis=[1, 2])

    def _dropout(self, layer: Plain, x: Any) -> Any:
        return tf.nn.dropout(x, layer["rate"]) if self._training and layer["rate"] else x

    def _flatten(self, layer: Plain, x: Any) -> Any:
        if layer["name"] in self._moving:
            x = tf.transpose(x, [0, 3, 1, 2])
        return tf.reshape(x, [-1, layer["shape"][0]])

    def _add(self, _: Plain, *inputs: Any) -> Any:
        return tf.add_n(inputs) if len(inputs) > 2 else inputs[0] + inputs[1]

    def _concat(self, layer: Plain, *inputs: Any) -> Any:
        return tf.concat(inputs, axis=-1 if len(layer["shape"]) == 3 else 1)

    def _pad_shortcut(self, layer: Plain, x: Any) -> Any:
        extra = (layer["channels"] - self._shapes[layer["name"]][0][0]) // 2
        x = x[:, :: layer["stride"], :: layer["stride"], :]
        return tf.pad(x, [[0, 0], [0, 0], [0, 0], [extra, extra]])

    def _embedding(self, layer: Plain, tokens: Any) -> Any:
        return tf.nn.embedding_lookup(self._tensor(layer, "weight"), tokens)

    def _position_embedding(self, layer: Plain, x: Any) -> Any:
        return x + self._tensor(layer, "weight")[: layer["shape"][0]]

    def _type_embedding(self, layer: Plain, x: Any) -> Any:
        return x + self._tensor(layer, "weight")[0]

    def _first_token(self, _: Plain, x: Any) -> Any:
        return x[:, 0]

    def _attention(self, layer: Plain, x: Any) -> Any:
        length, width = layer["shape"]
        heads = layer["heads"]
        qkv = tf.tensordot(x, tf.transpose(self._tensor(layer, "qkv_weight")), 1) + self._tensor(layer, "qkv_bias")
        parts = tf.transpose(tf.reshape(qkv, [-1, length, 3, heads, width // heads]), [2, 0, 3, 1, 4])
        scores = tf.matmul(parts[0], parts[1], transpose_b=True) * (width // heads) ** -0.5
        if layer["causal"]:
            scores += _future_mask(length, scores.dtype)
        mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), parts[2]), [0, 2, 1, 3])
        mixed = tf.reshape(mixed, [-1, length, width])
        return tf.tensordot(mixed, tf.transpose(self._tensor(layer, "out_weight")), 1) + self._tensor(layer, "out_bias")


def _rows(x: Any, operation: Any) -> Any:
    """An operation over the last axis of an image, its columns: with channels last they are not the last axis."""
    _, height, width, channels = x.shape
    rows = operation(tf.reshape(tf.transpose(x, [0, 3, 1, 2]), [-1, channels * height, width]))
    return tf.transpose(tf.reshape(rows, [-1, channels, height, rows.shape[2]]), [0, 2, 3, 1])


def _convolve(layer: Plain, x: Any, kernel: Any) -> Any:
    high, wide = layer["padding"]
    padding: tuple[Any, ...] = ([0, 0], [high, high], [wide, wide], [0, 0])
    return tf.nn.conv2d(x, kernel, strides=layer["stride"], padding=list(padding))


def _future_mask(length: int, dtype: Any) -> Any:
    seen = tf.linalg.band_part(tf.ones((length, length), dtype), -1, 0)
    return (1 - seen) * dtype.min


def mean_cross_entropy(logits: Any, targets: Any) -> Any:
    """Mean softmax cross-entropy over the batch and, for sequences, the positions."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits))
