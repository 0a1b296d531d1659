"""Builds a network as a Gluon hybrid block of MXNet's own layers, channels first."""

from __future__ import annotations

from typing import Any

from mxnet import gluon
from mxnet.gluon import nn

from paceline.bench.frameworks.graph import (
    Plain,
    UnsupportedLayer,
    input_shapes,
    layer_keys,
    pool_padding,
    pool_shares,
    run_layers,
)

__all__ = ["MxnetNetwork"]

LOWEST = -1e30
BN_ROLES = {"weight": "gamma", "bias": "beta"}


class MxnetNetwork(gluon.HybridBlock):
    """Children by layer name; tensors have Paceline's layout already (OIHW kernels, (out, in) matrices)."""

    def __init__(self, network: Plain, *, training: bool = True) -> None:
        super().__init__(prefix="")
        self._network = network
        self._shapes = input_shapes(network)
        self._training = training
        self._keys = layer_keys(network)
        self._blocks: dict[str, Any] = {}
        with self.name_scope():
            for layer in network["layers"]:
                block = self._block(layer)
                if block is not None:
                    self._blocks[layer["name"]] = block
                    self.register_child(block)
                self._free_tensors(layer)

    def _free_tensors(self, layer: Plain) -> None:
        """Tensors of layers for which Gluon has no block."""
        if layer["kind"] in ("position_embedding", "type_embedding", "attention"):
            for tensor in layer["tensors"]:
                free = self.params.get(self._attribute(tensor["name"]), shape=tuple(tensor["shape"]))
                setattr(self, self._attribute(tensor["name"]), free)

    def _attribute(self, tensor: str) -> str:
        layer, role = tensor.rsplit(".", 1)
        return f"free_{self._keys[layer]}_{role}"

    def parameter(self, name: str) -> Any:
        """The Gluon parameter that holds a tensor of Paceline."""
        layer, role = name.rsplit(".", 1)
        block = self._blocks.get(layer)
        if block is None:
            return getattr(self, self._attribute(name))
        norm = isinstance(block, (nn.BatchNorm, nn.LayerNorm))
        return getattr(block, BN_ROLES[role] if norm else role)

    def hybrid_forward(self, ops: Any, x: Any, **free: Any) -> Any:
        """Logits of a batch of images or tokens."""
        return run_layers(self._network, lambda layer, *inputs: self._apply(ops, layer, free, *inputs), x)

    def _apply(self, ops: Any, layer: Plain, free: dict[str, Any], *inputs: Any) -> Any:
        block = self._blocks.get(layer["name"])
        if block is not None:
            return block(*inputs)
        names = [tensor["name"] for tensor in layer["tensors"]]
        own = {name.rsplit(".", 1)[1]: free[self._attribute(name)] for name in names}
        if layer["kind"] == "attention":
            return _attention(ops, layer, own, inputs[0])
        return OPERATIONS[layer["kind"]](ops, layer, self._shapes[layer["name"]], own, inputs)

    def _block(self, layer: Plain) -> Any:
        kind, shapes = layer["kind"], self._shapes[layer["name"]]
        if kind == "dropout":
            return nn.Dropout(layer["rate"] if self._training else 0.0)
        if kind == "linear" and layer.get("tied_to"):
            source = self._blocks[layer["tied_to"]]
            return nn.Dense(
                layer["features"], in_units=shapes[0][-1], flatten=False, use_bias=layer["bias"], params=source.params
            )
        build = None if layer.get("ceil") else BLOCKS.get(kind)
        if build is None and kind not in OPERATIONS and kind != "attention":
            raise UnsupportedLayer(f"MXNet builds no {kind} ({layer['name']})")
        return build(layer, shapes[0]) if build else None


def _conv(layer: Plain, shape: Any) -> Any:
    sizes = {"strides": tuple(layer["stride"]), "padding": tuple(layer["padding"]), "groups": layer["groups"]}
    return nn.Conv2D(layer["channels"], tuple(layer["kernel"]), in_channels=shape[0], use_bias=layer["bias"], **sizes)


def _pool(block: Any, **options: Any) -> Any:
    def build(layer: Plain, _: Any) -> Any:
        sizes = {"strides": tuple(layer["stride"]), "padding": tuple(layer["padding"])}
        return block(tuple(layer["kernel"]), **sizes, **options)

    return build


BLOCKS: dict[str, Any] = {
    "conv2d": _conv,
    "linear": lambda layer, shape: nn.Dense(
        layer["features"], in_units=shape[-1], flatten=False, use_bias=layer["bias"]
    ),
    "batch_norm": lambda layer, shape: nn.BatchNorm(epsilon=layer["eps"], in_channels=shape[0]),
    "layer_norm": lambda layer, shape: nn.LayerNorm(epsilon=layer["eps"], in_channels=shape[-1]),
    "relu": lambda layer, shape: nn.Activation("relu"),
    "tanh": lambda layer, shape: nn.Activation("tanh"),
    "max_pool": _pool(nn.MaxPool2D),
    "avg_pool": _pool(nn.AvgPool2D, count_include_pad=True),
    "flatten": lambda layer, shape: nn.Flatten(),
    "embedding": lambda layer, shape: nn.Embedding(layer["rows"], layer["width"]),
}


def _pool_up(ops: Any, layer: Plain, shapes: Any, _: Any, inputs: Any) -> Any:
    """Pooling that rounds its size up, padded explicitly: MXNet keeps a last window that starts beyond the image."""
    sides = pool_padding(layer, shapes[0])
    sizes = {"kernel": tuple(layer["kernel"]), "stride": tuple(layer["stride"])}
    if layer["kind"] == "max_pool":
        return ops.Pooling(_padded(ops, inputs[0], sides, LOWEST), pool_type="max", **sizes)
    mean = ops.Pooling(_padded(ops, inputs[0], sides, 0.0), pool_type="avg", **sizes)
    if pool_shares(layer, shapes[0]) is None:
        return mean
    inner = [(before, min(after, side)) for (before, after), side in zip(sides, layer["padding"])]
    beyond = [(0, whole[1] - part[1]) for whole, part in zip(sides, inner)]
    counted = _padded(ops, _padded(ops, ops.ones_like(inputs[0]), inner, 1.0), beyond, 0.0)
    return mean / ops.Pooling(counted, pool_type="avg", **sizes)


def _padded(ops: Any, x: Any, sides: Any, value: float) -> Any:
    (top, bottom), (left, right) = sides
    return ops.pad(x, mode="constant", pad_width=(0, 0, 0, 0, top, bottom, left, right), constant_value=value)


def _local_response_norm(ops: Any, layer: Plain, _: Any, __: Any, inputs: Any) -> Any:
    return ops.LRN(inputs[0], nsize=layer["size"], alpha=layer["alpha"], beta=layer["beta"], knorm=layer["k"])


def _gelu(ops: Any, layer: Plain, _: Any, __: Any, inputs: Any) -> Any:
    x = inputs[0]
    if layer["approximate"]:
        return 0.5 * x * (1 + ops.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    return ops.LeakyReLU(x, act_type="gelu")


def _add(ops: Any, _: Plain, __: Any, ___: Any, inputs: Any) -> Any:
    return inputs[0] + inputs[1] if len(inputs) == 2 else ops.add_n(*inputs)


def _pad_shortcut(ops: Any, layer: Plain, shapes: Any, _: Any, inputs: Any) -> Any:
    extra, stride = (layer["channels"] - shapes[0][0]) // 2, layer["stride"]
    x = ops.slice(inputs[0], begin=(None,) * 4, end=(None,) * 4, step=(1, 1, stride, stride))
    return ops.pad(ops.expand_dims(x, 1), mode="constant", pad_width=(0, 0, 0, 0, extra, extra, 0, 0, 0, 0)).reshape(
        (0, -3, 0, 0)
    )


def _position(ops: Any, layer: Plain, _: Any, own: Any, inputs: Any) -> Any:
    rows = ops.slice_axis(own["weight"], axis=0, begin=0, end=layer["shape"][0])
    return ops.broadcast_add(inputs[0], ops.expand_dims(rows, 0))


def _type(ops: Any, _: Plain, __: Any, own: Any, inputs: Any) -> Any:
    row = ops.slice_axis(own["weight"], axis=0, begin=0, end=1)
    return ops.broadcast_add(inputs[0], ops.expand_dims(row, 0))


OPERATIONS: dict[str, Any] = {
    "max_pool": _pool_up,
    "avg_pool": _pool_up,
    "local_response_norm": _local_response_norm,
    "gelu": _gelu,
    "global_avg_pool": lambda ops, layer, shapes, own, inputs: ops.mean(inputs[0], axis=(2, 3)),
    "add": _add,
    "concat": lambda ops, layer, shapes, own, inputs: ops.concat(*inputs, dim=1),
    "pad_shortcut": _pad_shortcut,
    "position_embedding": _position,
    "type_embedding": _type,
    "first_token": lambda ops, layer, shapes, own, inputs: ops.reshape(
        ops.slice_axis(inputs[0], axis=1, begin=0, end=1), (0, -1)
    ),
}


def _attention(ops: Any, layer: Plain, own: dict[str, Any], x: Any) -> Any:
    length, width = layer["shape"]
    heads, size = layer["heads"], width // layer["heads"]
    qkv = ops.FullyConnected(x, own["qkv_weight"], own["qkv_bias"], num_hidden=3 * width, flatten=False)
    parts = ops.transpose(ops.reshape(qkv, (-1, length, 3, heads, size)), (2, 0, 3, 1, 4))
    query, key, value = (
        ops.reshape(ops.slice_axis(parts, axis=0, begin=i, end=i + 1), (-1, length, size)) for i in range(3)
    )
    scores = ops.batch_dot(query, key, transpose_b=True) * size**-0.5
    if layer["causal"]:
        index = ops.arange(length)
        future = ops.broadcast_greater(ops.reshape(index, (1, 1, length)), ops.reshape(index, (1, length, 1)))
        scores = ops.broadcast_add(scores, future * -1e30)
    mixed = ops.reshape(ops.batch_dot(ops.softmax(scores), value), (-1, heads, length, size))
    mixed = ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (-1, length, width))
    return ops.FullyConnected(mixed, own["out_weight"], own["out_bias"], num_hidden=width, flatten=False)
