"""Builds a network as a pure JAX function of its parameters: lax operations, channels last."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from paceline.bench.frameworks.graph import (
    InOut,
    Plain,
    UnsupportedLayer,
    input_shapes,
    pool_padding,
    pool_shares,
    run_layers,
)

__all__ = ["JaxNetwork", "cross_entropy"]

LAYOUT = ("NHWC", "HWIO", "NHWC")
Tensors = dict[str, Any]


class JaxNetwork:
    """The layers of a network as functions; parameters are passed in, by Paceline's names, in JAX's layout."""

    def __init__(self, network: Plain, *, training: bool = True) -> None:
        self._network = network
        self._shapes = input_shapes(network)
        layout = InOut(network)
        self.native, self.plain, self._moving = layout.native, layout.plain, layout.moving
        self._training = training

    def __call__(self, tensors: Tensors, value: Any, key: Any) -> Any:
        """Logits of a batch of channels-last images or of tokens; the key draws the dropout masks."""
        return run_layers(self._network, lambda layer, *inputs: self._apply(layer, tensors, key, *inputs), value)

    def _apply(self, layer: Plain, tensors: Tensors, key: Any, *inputs: Any) -> Any:
        if layer["kind"] == "dropout":
            return self._dropout(layer, key, inputs[0])
        build = getattr(self, "_" + layer["kind"], None)
        if build is None:
            raise UnsupportedLayer(f"JAX builds no {layer['kind']} ({layer['name']})")
        return build(layer, _Own(tensors, layer["name"]), *inputs)

    def _conv2d(self, layer: Plain, own: _Own, x: Any) -> Any:
        pads = [(side, side) for side in layer["padding"]]
        x = lax.conv_general_dilated(
            x, own["weight"], layer["stride"], pads, dimension_numbers=LAYOUT, feature_group_count=layer["groups"]
        )
        return x + own["bias"] if layer["bias"] else x

    def _linear(self, layer: Plain, own: _Own, x: Any) -> Any:
        tied = layer.get("tied_to")
        weight = own.tensors[f"{tied}.weight"].T if tied else own["weight"]
        x = _last_axis(x) @ weight
        return _last_axis(x + own["bias"] if layer["bias"] else x, back=True)

    def _batch_norm(self, layer: Plain, own: _Own, x: Any) -> Any:
        return _normalise(x, (0, 1, 2), layer["eps"]) * own["weight"] + own["bias"]

    def _layer_norm(self, layer: Plain, own: _Own, x: Any) -> Any:
        return _last_axis(_normalise(_last_axis(x), (-1,), layer["eps"]) * own["weight"] + own["bias"], back=True)

    def _local_response_norm(self, layer: Plain, _: _Own, x: Any) -> Any:
        size = layer["size"]
        pads = ((0, 0), (0, 0), (0, 0), (size // 2, (size - 1) // 2))
        total = lax.reduce_window(x * x, 0.0, lax.add, (1, 1, 1, size), (1, 1, 1, 1), pads)
        return x * (layer["k"] + layer["alpha"] / size * total) ** -layer["beta"]

    def _relu(self, _: Plain, __: _Own, x: Any) -> Any:
        return jax.nn.relu(x)

    def _tanh(self, _: Plain, __: _Own, x: Any) -> Any:
        return jnp.tanh(x)

    def _gelu(self, layer: Plain, _: _Own, x: Any) -> Any:
        return jax.nn.gelu(x, approximate=layer["approximate"])

    def _max_pool(self, layer: Plain, _: _Own, x: Any) -> Any:
        return self._pool(layer, x, -jnp.inf, lax.max)

    def _avg_pool(self, layer: Plain, _: _Own, x: Any) -> Any:
        x = self._pool(layer, x, 0.0, lax.add) / (layer["kernel"][0] * layer["kernel"][1])
        shares = pool_shares(layer, self._shapes[layer["name"]][0])
        return x * jnp.outer(*map(jnp.array, shares))[:, :, None] if shares else x

    def _pool(self, layer: Plain, x: Any, start: float, combine: Any) -> Any:
        pads = ((0, 0), *pool_padding(layer, self._shapes[layer["name"]][0]), (0, 0))
        return lax.reduce_window(x, start, combine, (1, *layer["kernel"], 1), (1, *layer["stride"], 1), pads)

    def _global_avg_pool(self, _: Plain, __: _Own, x: Any) -> Any:
        return x.mean((1, 2))

    def _dropout(self, layer: Plain, key: Any, x: Any) -> Any:
        if not self._training or not layer["rate"]:
            return x
        index = self._network["layers"].index(layer)
        keep = jax.random.bernoulli(jax.random.fold_in(key, index), 1 - layer["rate"], x.shape)
        return jnp.where(keep, x / (1 - layer["rate"]), 0)

    def _flatten(self, layer: Plain, _: _Own, x: Any) -> Any:
        if layer["name"] in self._moving:
            x = x.transpose(0, 3, 1, 2)
        return x.reshape(x.shape[0], -1)

    def _add(self, _: Plain, __: _Own, *inputs: Any) -> Any:
        return sum(inputs[1:], inputs[0])

    def _concat(self, layer: Plain, _: _Own, *inputs: Any) -> Any:
        return jnp.concatenate(inputs, -1 if len(layer["shape"]) == 3 else 1)

    def _pad_shortcut(self, layer: Plain, _: _Own, x: Any) -> Any:
        extra = (layer["channels"] - x.shape[3]) // 2
        x = x[:, :: layer["stride"], :: layer["stride"], :]
        return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (extra, extra)))

    def _embedding(self, _: Plain, own: _Own, tokens: Any) -> Any:
        return own["weight"][tokens]

    def _position_embedding(self, layer: Plain, own: _Own, x: Any) -> Any:
        return x + own["weight"][: layer["shape"][0]]

    def _type_embedding(self, _: Plain, own: _Own, x: Any) -> Any:
        return x + own["weight"][0]

    def _first_token(self, _: Plain, __: _Own, x: Any) -> Any:
        return x[:, 0]

    def _attention(self, layer: Plain, own: _Own, x: Any) -> Any:
        batch, length, width = x.shape
        heads = layer["heads"]
        qkv = (x @ own["qkv_weight"].T + own["qkv_bias"]).reshape(batch, length, 3, heads, width // heads)
        query, key, value = jnp.moveaxis(qkv, 2, 0)
        mixed = jax.nn.dot_product_attention(query, key, value, is_causal=layer["causal"])
        return mixed.reshape(batch, length, width) @ own["out_weight"].T + own["out_bias"]


class _Own:
    """The tensors of one layer, by role."""

    def __init__(self, tensors: Tensors, layer: str) -> None:
        self.tensors = tensors
        self._layer = layer

    def __getitem__(self, role: str) -> Any:
        return self.tensors[f"{self._layer}.{role}"]


def _last_axis(x: Any, *, back: bool = False) -> Any:
    """An image with its columns as the last axis, or back with its channels there; all else stays."""
    if x.ndim != 4:
        return x
    return x.transpose(0, 2, 3, 1) if back else x.transpose(0, 3, 1, 2)


def _normalise(x: Any, axes: Any, eps: float) -> Any:
    mean = x.mean(axes, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(axes, keepdims=True) + eps)


def cross_entropy(logits: Any, targets: Any) -> Any:
    """Mean softmax cross-entropy over the batch and, for sequences, the positions."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean()
