"""The measured JAX process: one rank; more are one mesh of devices over processes, gradients averaged by pmean."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec

from paceline.bench.frameworks.arrays import MOMENTUM, RATE, ArraySession
from paceline.bench.frameworks.graph import (
    InOut,
    LayerBuilder,
    Plain,
    pool_padding,
    pool_shares,
    run_layers,
    tensor_shapes,
)
from paceline.bench.frameworks.harness import main

__all__ = ["JaxSession"]

LAYOUT = ("NHWC", "HWIO", "NHWC")
Tensors = dict[str, Any]


class JaxSession(ArraySession):
    """A pure step compiled by XLA; with more ranks inside shard_map, so that each rank normalises its own batch."""

    def setup(self) -> None:
        """Join the other processes, build the mesh, compile the passes."""
        if self.ranks > 1:
            jax.config.update("jax_cpu_collectives_implementation", self.job["strategy"]["transport"] or "gloo")
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            jax.distributed.initialize(address, self.ranks, self.rank)
        self.versions = {"jax": jax.__version__, "jaxlib": jax.lib.__version__}
        self.mesh = jax.make_mesh((self.ranks,), ("ranks",))
        self.whole, self.split = NamedSharding(self.mesh, Spec()), NamedSharding(self.mesh, Spec("ranks"))
        self.net = self.build()
        self.names = list(tensor_shapes(self.job["network"]))
        self.key = jax.random.key(self.job["seed"])
        self.passes = {name: self._compiled(name) for name in ("forward", "compute", "exchange", "update")}
        self.result: Any = None
        self.weights: dict[str, Any] = {}
        self.momenta: dict[str, Any] = {}

    def build(self) -> Any:
        """The network as a function of its parameters."""
        return JaxNetwork(self.job["network"], training=self.training)

    def _compiled(self, part: str) -> Any:
        if part in ("forward", "compute"):
            return jax.jit(self._loss if part == "forward" else jax.value_and_grad(self._loss))
        step = self._averaged if part == "exchange" else self._updated
        states = 1 if part == "exchange" else 2
        specs = (*([Spec()] * states), Spec("ranks"), Spec("ranks"), Spec())
        mapped = jax.shard_map(step, mesh=self.mesh, in_specs=specs, out_specs=Spec())
        return jax.jit(mapped, donate_argnums=() if part == "exchange" else (0, 1))

    def _loss(self, weights: Any, inputs: Any, targets: Any, key: Any) -> Any:
        return _cross_entropy(self.net(weights, inputs, key), targets)

    def _averaged(self, weights: Any, inputs: Any, targets: Any, key: Any) -> Any:
        local = jax.tree.map(lambda leaf: lax.pcast(leaf, ("ranks",), to="varying"), weights)
        loss, gradients = jax.value_and_grad(self._loss)(local, inputs, targets, key)
        return lax.pmean((loss, gradients), "ranks")

    def _updated(self, weights: Any, momenta: Any, inputs: Any, targets: Any, key: Any) -> Any:
        loss, gradients = self._averaged(weights, inputs, targets, key)
        momenta = jax.tree.map(lambda m, g: MOMENTUM * m + g, momenta, gradients)
        return jax.tree.map(lambda w, m: w - RATE * m, weights, momenta), momenta, loss

    def arrange(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Images channels last."""
        if inputs.ndim == 4:
            return np.ascontiguousarray(inputs.transpose(0, 2, 3, 1)), targets.astype(np.int32)
        return inputs.astype(np.int32), targets.astype(np.int32)

    def place(self, inputs: Any, targets: Any) -> Any:
        """This rank's share of global arrays."""
        return tuple(jax.make_array_from_process_local_data(self.split, array) for array in (inputs, targets))

    def run(self, part: str, batch: Any) -> None:
        """One compiled pass; partial ones run on this rank's share alone."""
        if part == "update":
            self.weights, self.momenta, self.result = self.passes[part](self.weights, self.momenta, *batch, self.key)
        elif part == "exchange":
            self.result = self.passes[part](self.weights, *batch, self.key)
        else:
            self.result = self.passes[part](_local(self.weights), *map(_local, batch), self.key)

    def sync(self) -> None:
        """Wait for XLA's asynchronous dispatch."""
        jax.block_until_ready(self.result)

    def load(self, tensors: dict[str, Any]) -> None:
        """Set weights on every rank, forget momentum."""
        native = {name: np.asarray(self.net.native(name, array), np.float32) for name, array in tensors.items()}
        self.weights = {name: self._replicated(array) for name, array in native.items()}
        self.momenta = {name: self._replicated(np.zeros_like(array)) for name, array in native.items()}

    def _replicated(self, array: Any) -> Any:
        return jax.make_array_from_callback(array.shape, self.whole, lambda index: array[index])

    def tensors(self) -> dict[str, Any]:
        """Weights in Paceline's layout."""
        return {name: self.net.plain(name, np.asarray(_local(self.weights[name]))) for name in self.names}

    def reveal(self) -> tuple[Any, float, dict[str, Any]]:
        """Logits, loss and gradients of the resident batch, without exchange."""
        weights, inputs, targets = _local(self.weights), _local(self.batch[0]), _local(self.batch[1])
        logits = jax.jit(self.net)(weights, inputs, self.key)
        loss, gradients = self.passes["compute"](weights, inputs, targets, self.key)
        return np.asarray(logits), float(loss), {n: self.net.plain(n, np.asarray(g)) for n, g in gradients.items()}

    def facts(self) -> dict[str, Any]:
        """Facts of the session for the run: loss and wrapper."""
        loss = self.result if not isinstance(self.result, tuple) else self.result[0]
        return {"loss": float(jnp.asarray(_local(loss))), "wrapper": "shard_map" if self.ranks > 1 else "none"}

    def close(self) -> None:
        """Leave the group of ranks."""
        if self.ranks > 1:
            jax.distributed.shutdown()


def _local(tree: Any) -> Any:
    """This process's piece of global arrays, without a copy."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)


class JaxNetwork(LayerBuilder):
    """The layers of a network as functions; parameters are passed in, by Paceline's names, in JAX's layout."""

    framework = "JAX"

    def __init__(self, network: Plain, *, training: bool) -> None:
        super().__init__(network, training=training)
        layout = InOut(network)
        self.native, self.plain, self._moving = layout.native, layout.plain, layout.moving

    def __call__(self, tensors: Tensors, value: Any, key: Any) -> Any:
        """Logits of a batch of channels-last images or of tokens; the key draws the dropout masks."""
        return run_layers(self._network, lambda layer, *inputs: self._compute(layer, tensors, key, *inputs), value)

    def _compute(self, layer: Plain, tensors: Tensors, key: Any, *inputs: Any) -> Any:
        if layer["kind"] == "dropout":
            return self._dropout(layer, key, inputs[0])
        return self._operation(layer)(layer, _Own(tensors, layer["name"]), *inputs)

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


def _cross_entropy(logits: Any, targets: Any) -> Any:
    """The mean over the batch and, for sequences, the positions."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean()


if __name__ == "__main__":
    main(JaxSession)
