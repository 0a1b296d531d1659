"""The measured PaddlePaddle process: one rank, plain for one device, paddle.DataParallel over Gloo for more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.nn import functional as ops

from paceline.bench.frameworks.arrays import MOMENTUM, RATE, ArraySession
from paceline.bench.frameworks.datasets import FileSet, share
from paceline.bench.frameworks.graph import (
    Plain,
    UnsupportedLayer,
    input_shapes,
    layer_keys,
    pool_padding,
    pool_shares,
    run_layers,
    tensor_shapes,
)
from paceline.bench.frameworks.harness import main

__all__ = ["PaddleSession"]

LOWEST = -1e30
"""Padding of a maximum."""


class PaddleSession(ArraySession):
    """Dynamic graphs, as PaddlePaddle's distributed guide teaches them."""

    def setup(self) -> None:
        """Join the group, build and wrap the network."""
        paddle.set_device("cpu")
        paddle.seed(self.job["seed"])
        self.versions = {"paddlepaddle": paddle.__version__}
        if self.ranks > 1:
            dist.init_parallel_env()
        self.net = PaddleNetwork(self.job["network"], training=self.training)
        self.model = paddle.DataParallel(self.net) if self.ranks > 1 else self.net
        self.optimizer = paddle.optimizer.Momentum(RATE, MOMENTUM, parameters=self.net.parameters())
        self.loss = paddle.zeros([1])

    def place(self, inputs: Any, targets: Any) -> Any:
        """Copies in PaddlePaddle's memory."""
        return paddle.to_tensor(inputs), paddle.to_tensor(targets)

    def read(self) -> Iterator[Any]:
        """paddle.io's DataLoader, which buffers batches in a thread."""
        files = FileSet(self.job)
        own = paddle.io.Subset(files, share(len(files), self.job, self.rank))
        loader = paddle.io.DataLoader(own, batch_size=self.job["batch"], shuffle=True, drop_last=True, num_workers=0)
        while True:
            yield from loader

    def _loss_of(self, batch: Any) -> Any:
        logits = self.model(batch[0])
        return ops.cross_entropy(logits.reshape([-1, logits.shape[-1]]), batch[1].reshape([-1]))

    def run(self, part: str, batch: Any) -> None:
        """Run one step up to and including a part."""
        quiet = self.ranks > 1 and part in ("forward", "compute")
        with self.model.no_sync() if quiet else contextlib.nullcontext():
            self.loss = self._loss_of(batch)
            if part == "forward":
                return
            self.loss.backward()
        if part == "update":
            self.optimizer.step()
        self.optimizer.clear_grad()

    def load(self, tensors: dict[str, Any]) -> None:
        """Set all trainable tensors."""
        for name, array in tensors.items():
            native = array.T if self.net.transposed(name) else array
            self.net.parameter(name).set_value(np.ascontiguousarray(native, np.float32))

    def _plain(self, name: str, tensor: Any) -> Any:
        return tensor.numpy().T if self.net.transposed(name) else tensor.numpy()

    def tensors(self) -> dict[str, Any]:
        """Parameters in Paceline's layout."""
        return {name: self._plain(name, self.net.parameter(name)) for name in tensor_shapes(self.job["network"])}

    def reveal(self) -> tuple[Any, float, dict[str, Any]]:
        """Logits, loss and gradients of the resident batch, without exchange."""
        logits = self.net(self.batch[0])
        loss = ops.cross_entropy(logits.reshape([-1, logits.shape[-1]]), self.batch[1].reshape([-1]))
        loss.backward()
        names = tensor_shapes(self.job["network"])
        gradients = {name: self._plain(name, self.net.parameter(name).grad) for name in names}
        self.optimizer.clear_grad()
        return logits.numpy(), float(loss), gradients

    def facts(self) -> dict[str, Any]:
        """Facts of the session for the run: loss and wrapper."""
        return {"loss": float(self.loss), "wrapper": type(self.model).__name__ if self.ranks > 1 else "none"}

    def close(self) -> None:
        """Leave the group of ranks."""
        if self.ranks > 1:
            dist.barrier()


class PaddleNetwork(nn.Layer):
    """PaddlePaddle's own layers, channels first; matrices are (in, out), all else has Paceline's layout."""

    def __init__(self, network: Plain, *, training: bool) -> None:
        super().__init__()
        self._graph = network
        self._shapes = input_shapes(network)
        self._dropout = training
        self._keys = layer_keys(network)
        self.blocks = nn.LayerDict()
        self.free = nn.ParameterList()
        self._free_index: dict[str, int] = {}
        for layer in network["layers"]:
            block = self._block(layer)
            if block is not None:
                self.blocks[self._keys[layer["name"]]] = block
            elif layer.get("tensors"):
                self._add_free(layer)
        self.names = list(tensor_shapes(network))

    def _add_free(self, layer: Plain) -> None:
        for tensor in layer["tensors"]:
            self._free_index[tensor["name"]] = len(self._free_index)
            self.free.append(self.create_parameter(tensor["shape"]))

    def parameter(self, name: str) -> Any:
        """The PaddlePaddle parameter that holds a tensor of Paceline."""
        if name in self._free_index:
            return self.free[self._free_index[name]]
        layer, role = name.rsplit(".", 1)
        return getattr(self.blocks[self._keys[layer]], role)

    def transposed(self, name: str) -> bool:
        """Whether the parameter is stored as (in, out)."""
        layer, role = name.rsplit(".", 1)
        return (
            role == "weight"
            and self._keys[layer] in self.blocks
            and isinstance(self.blocks[self._keys[layer]], nn.Linear)
        )

    def forward(self, value: Any) -> Any:
        """Logits of a batch of images or tokens."""
        return run_layers(self._graph, self._apply, value)

    def _own(self, layer: Plain, role: str) -> Any:
        return self.parameter(f"{layer['name']}.{role}")

    def _apply(self, layer: Plain, *inputs: Any) -> Any:
        if self._keys[layer["name"]] in self.blocks:
            return self.blocks[self._keys[layer["name"]]](*inputs)
        operation = getattr(self, "_" + layer["kind"], None)
        if operation is None:
            raise UnsupportedLayer(f"PaddlePaddle builds no {layer['kind']} ({layer['name']})")
        return operation(layer, *inputs)

    def _block(self, layer: Plain) -> Any:
        shape = self._shapes[layer["name"]][0]
        if layer["kind"] == "dropout":
            return nn.Dropout(layer["rate"] if self._dropout else 0.0)
        if layer.get("tied_to"):
            return None
        if layer.get("ceil"):
            return None
        build = BLOCKS.get(layer["kind"])
        return build(layer, shape) if build else None

    def _max_pool(self, layer: Plain, x: Any) -> Any:
        return ops.max_pool2d(self._padded(layer, x, LOWEST), layer["kernel"], layer["stride"])

    def _avg_pool(self, layer: Plain, x: Any) -> Any:
        x = ops.avg_pool2d(self._padded(layer, x, 0.0), layer["kernel"], layer["stride"])
        shares = pool_shares(layer, self._shapes[layer["name"]][0])
        return x * paddle.to_tensor(np.outer(*shares).astype(np.float32)) if shares else x

    def _padded(self, layer: Plain, x: Any, value: float) -> Any:
        """Explicit padding: PaddlePaddle keeps a last window that starts beyond the image."""
        (top, bottom), (left, right) = pool_padding(layer, self._shapes[layer["name"]][0])
        return ops.pad(x, [left, right, top, bottom], value=value)

    def _linear(self, layer: Plain, x: Any) -> Any:
        x = paddle.matmul(x, self.parameter(f"{layer['tied_to']}.weight"), transpose_y=True)
        return x + self._own(layer, "bias") if layer["bias"] else x

    def _gelu(self, layer: Plain, x: Any) -> Any:
        return ops.gelu(x, approximate=layer["approximate"])

    def _global_avg_pool(self, _: Plain, x: Any) -> Any:
        return x.mean([2, 3])

    def _add(self, _: Plain, *inputs: Any) -> Any:
        return inputs[0] + inputs[1] if len(inputs) == 2 else paddle.add_n(list(inputs))

    def _concat(self, _: Plain, *inputs: Any) -> Any:
        return paddle.concat(list(inputs), 1)

    def _pad_shortcut(self, layer: Plain, x: Any) -> Any:
        extra, stride = (layer["channels"] - x.shape[1]) // 2, layer["stride"]
        return ops.pad(x[:, :, ::stride, ::stride], [0, 0, extra, extra, 0, 0, 0, 0], pad_from_left_axis=True)

    def _position_embedding(self, layer: Plain, x: Any) -> Any:
        return x + self._own(layer, "weight")[: layer["shape"][0]]

    def _type_embedding(self, layer: Plain, x: Any) -> Any:
        return x + self._own(layer, "weight")[0]

    def _first_token(self, _: Plain, x: Any) -> Any:
        return x[:, 0]

    def _attention(self, layer: Plain, x: Any) -> Any:
        batch, length, width = x.shape
        # no `.t()`: paddle.DataParallel 3.3.1 does not average the gradient of a weight used so
        qkv = paddle.matmul(x, self._own(layer, "qkv_weight"), transpose_y=True) + self._own(layer, "qkv_bias")
        qkv = qkv.reshape([batch, length, 3, layer["heads"], width // layer["heads"]])
        query, key, value = (qkv[:, :, part] for part in range(3))
        mixed = ops.scaled_dot_product_attention(query, key, value, is_causal=layer["causal"])
        mixed = mixed.reshape([batch, length, width])
        return paddle.matmul(mixed, self._own(layer, "out_weight"), transpose_y=True) + self._own(layer, "out_bias")


def _conv(layer: Plain, shape: Any) -> Any:
    bias = None if layer["bias"] else False
    options = {"stride": layer["stride"], "padding": layer["padding"], "groups": layer["groups"], "bias_attr": bias}
    return nn.Conv2D(shape[0], layer["channels"], layer["kernel"], **options)


def _local_response_norm(layer: Plain, _: Any) -> Any:
    return nn.LocalResponseNorm(layer["size"], alpha=layer["alpha"], beta=layer["beta"], k=layer["k"])


BLOCKS: dict[str, Any] = {
    "conv2d": _conv,
    "linear": lambda layer, shape: nn.Linear(shape[-1], layer["features"], bias_attr=None if layer["bias"] else False),
    "batch_norm": lambda layer, shape: nn.BatchNorm2D(shape[0], epsilon=layer["eps"]),
    "layer_norm": lambda layer, shape: nn.LayerNorm(shape[-1], epsilon=layer["eps"]),
    "local_response_norm": _local_response_norm,
    "relu": lambda layer, shape: nn.ReLU(),
    "tanh": lambda layer, shape: nn.Tanh(),
    "max_pool": lambda layer, shape: nn.MaxPool2D(
        layer["kernel"], layer["stride"], layer["padding"], ceil_mode=layer["ceil"]
    ),
    "avg_pool": lambda layer, shape: nn.AvgPool2D(
        layer["kernel"], layer["stride"], layer["padding"], ceil_mode=layer["ceil"], exclusive=False
    ),
    "flatten": lambda layer, shape: nn.Flatten(),
    "embedding": lambda layer, shape: nn.Embedding(layer["rows"], layer["width"]),
}


if __name__ == "__main__":
    main(PaddleSession)
