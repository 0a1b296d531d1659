"""The measured Chainer process: one rank, plain for one device, ChainerMN over MPI for more."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

warnings.filterwarnings("ignore")

import chainer  # noqa: E402
import chainer.functions as ops  # noqa: E402
import chainer.links as links  # noqa: E402

from paceline.bench.frameworks.arrays import MOMENTUM, RATE, ArraySession  # noqa: E402
from paceline.bench.frameworks.datasets import FileSet, share  # noqa: E402
from paceline.bench.frameworks.graph import (  # noqa: E402
    Plain,
    input_shapes,
    layer_keys,
    pool_padding,
    pool_shares,
    run_layers,
    tensor_shapes,
)
from paceline.bench.frameworks.harness import main  # noqa: E402

__all__ = ["ChainerSession"]

ROLES = {"conv2d": {"weight": "W", "bias": "b"}, "linear": {"weight": "W", "bias": "b"}, "embedding": {"weight": "W"}}
LOWEST = -1e30
NORM_ROLES = {"weight": "gamma", "bias": "beta"}


class ChainerSession(ArraySession):
    """A chain and its optimizer; ranks average gradients by the naive communicator, the one for CPUs."""

    def setup(self) -> None:
        """Create the communicator, the chain, the optimizer."""
        self.versions = {"chainer": chainer.__version__}
        np.random.seed(self.job["seed"])
        chainer.config.train = True
        self.net = ChainerNetwork(self.job["network"], training=self.training)
        self.optimizer = chainer.optimizers.MomentumSGD(RATE, MOMENTUM)
        self.communicator = None
        if self.ranks > 1:
            import chainermn

            self.communicator = chainermn.create_communicator("naive")
            self.multi_node = chainermn.create_multi_node_optimizer(self.optimizer, self.communicator)
            self.multi_node.setup(self.net)
        else:
            self.optimizer.setup(self.net)
        self.loss: Any = None

    def place(self, inputs: Any, targets: Any) -> Any:
        """Chainer computes on NumPy arrays; a copy represents the transfer to the device."""
        images = inputs.dtype.kind == "f"
        return inputs.astype(np.float32 if images else np.int32), targets.astype(np.int32)

    def read(self) -> Iterator[Any]:
        """Chainer's multi-threaded iterator."""
        files = FileSet(self.job)
        own = chainer.datasets.TransformDataset(share(len(files), self.job, self.rank), lambda index: files[index])
        iterator = chainer.iterators.MultithreadIterator(own, self.job["batch"], n_threads=1)
        while True:
            samples = next(iterator)
            yield self.place(np.stack([image for image, _ in samples]), np.asarray([label for _, label in samples]))

    def _loss_of(self, batch: Any) -> Any:
        logits = self.net(batch[0])
        return ops.softmax_cross_entropy(ops.reshape(logits, (-1, logits.shape[-1])), batch[1].reshape(-1))

    def run(self, part: str, batch: Any) -> None:
        """One step: the multi-node optimizer's update is the mean of the gradients, then the usual update."""
        self.loss = self._loss_of(batch)
        if part == "forward":
            return
        self.net.cleargrads()
        self.loss.backward()
        if part == "compute":
            return
        if self.communicator is not None:
            self.communicator.multi_node_mean_grad(self.net)
        if part == "update":
            self.optimizer.update()

    def load(self, tensors: dict[str, Any]) -> None:
        """Set all trainable tensors."""
        for name, array in tensors.items():
            self.net.parameter(name).array[...] = array

    def tensors(self) -> dict[str, Any]:
        """All trainable tensors."""
        return {name: self.net.parameter(name).array for name in tensor_shapes(self.job["network"])}

    def reveal(self) -> tuple[Any, float, dict[str, Any]]:
        """Logits, loss and gradients of the resident batch, without exchange."""
        self.run("compute", self.batch)
        gradients = {name: self.net.parameter(name).grad.copy() for name in tensor_shapes(self.job["network"])}
        return self.net(self.batch[0]).array, float(self.loss.array), gradients

    def facts(self) -> dict[str, Any]:
        """Facts of the session for the run: loss and wrapper."""
        return {"loss": float(self.loss.array), "wrapper": type(self.communicator).__name__}

    def close(self) -> None:
        """Leave the group of ranks, as MPI requires."""
        if self.communicator is not None:
            from mpi4py import MPI

            MPI.Finalize()


class ChainerNetwork(chainer.Chain):
    """A chain of links and functions, channels first; tensors have Paceline's layout already."""

    def __init__(self, network: Plain, *, training: bool) -> None:
        super().__init__()
        self._network = network
        self._shapes = input_shapes(network)
        self._training = training
        self._keys = layer_keys(network)
        self._kinds = {layer["name"]: layer["kind"] for layer in network["layers"]}
        self._free: set[str] = set()
        with self.init_scope():
            for layer in network["layers"]:
                self._declare(layer)

    def _declare(self, layer: Plain) -> None:
        link = _link(layer, self._shapes[layer["name"]][0])
        if link is not None:
            setattr(self, self._keys[layer["name"]], link)
            return
        for tensor in layer.get("tensors", ()):
            self._free.add(tensor["name"])
            setattr(self, self._free_key(tensor["name"]), chainer.Parameter(np.zeros(tensor["shape"], np.float32)))

    def _free_key(self, tensor: str) -> str:
        layer, role = tensor.rsplit(".", 1)
        return f"{self._keys[layer]}_{role}"

    def parameter(self, name: str) -> Any:
        """The Chainer parameter that holds a tensor of Paceline."""
        if name in self._free:
            return getattr(self, self._free_key(name))
        layer, role = name.rsplit(".", 1)
        return getattr(getattr(self, self._keys[layer]), ROLES.get(self._kinds[layer], NORM_ROLES)[role])

    def forward(self, value: Any) -> Any:
        """Logits of a batch of images or tokens."""
        return run_layers(self._network, self._apply, value)

    def _apply(self, layer: Plain, *inputs: Any) -> Any:
        operation = getattr(self, "_" + layer["kind"], None)
        if operation is not None:
            return operation(layer, *inputs)
        return getattr(self, self._keys[layer["name"]])(*inputs)

    def _linear(self, layer: Plain, x: Any) -> Any:
        if layer.get("tied_to"):
            bias = self.parameter(f"{layer['name']}.bias") if layer["bias"] else None
            return ops.linear(x, self.parameter(f"{layer['tied_to']}.weight"), bias, n_batch_axes=x.ndim - 1)
        return getattr(self, self._keys[layer["name"]])(x, n_batch_axes=x.ndim - 1)

    def _relu(self, _: Plain, x: Any) -> Any:
        return ops.relu(x)

    def _tanh(self, _: Plain, x: Any) -> Any:
        return ops.tanh(x)

    def _gelu(self, layer: Plain, x: Any) -> Any:
        if layer["approximate"]:
            return 0.5 * x * (1 + ops.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + ops.erf(x * 2**-0.5))

    def _layer_norm(self, layer: Plain, x: Any) -> Any:
        link = getattr(self, self._keys[layer["name"]])
        return ops.reshape(link(ops.reshape(x, (-1, x.shape[-1]))), x.shape)

    def _local_response_norm(self, layer: Plain, x: Any) -> Any:
        alpha = layer["alpha"] / layer["size"]
        return ops.local_response_normalization(x, layer["size"], layer["k"], alpha, layer["beta"])

    def _max_pool(self, layer: Plain, x: Any) -> Any:
        if layer["ceil"]:
            x = self._padded(layer, x, LOWEST)
        padding = 0 if layer["ceil"] else layer["padding"]
        return ops.max_pooling_2d(x, layer["kernel"], layer["stride"], padding, cover_all=False)

    def _avg_pool(self, layer: Plain, x: Any) -> Any:
        shares = pool_shares(layer, self._shapes[layer["name"]][0])
        if not layer["ceil"]:
            return ops.average_pooling_2d(x, layer["kernel"], layer["stride"], layer["padding"])
        x = ops.average_pooling_2d(self._padded(layer, x, 0.0), layer["kernel"], layer["stride"])
        return x * np.broadcast_to(np.outer(*shares).astype(np.float32), x.shape) if shares else x

    def _padded(self, layer: Plain, x: Any, value: float) -> Any:
        """Explicit padding: Chainer keeps a last window that starts beyond the image."""
        sides = pool_padding(layer, self._shapes[layer["name"]][0])
        return ops.pad(x, ((0, 0), (0, 0), *sides), "constant", constant_values=value)

    def _global_avg_pool(self, _: Plain, x: Any) -> Any:
        return ops.mean(x, axis=(2, 3))

    def _dropout(self, layer: Plain, x: Any) -> Any:
        return ops.dropout(x, layer["rate"]) if self._training else x

    def _flatten(self, layer: Plain, x: Any) -> Any:
        return ops.reshape(x, (x.shape[0], -1))

    def _add(self, _: Plain, *inputs: Any) -> Any:
        return ops.add(*inputs)

    def _concat(self, _: Plain, *inputs: Any) -> Any:
        return ops.concat(inputs, axis=1)

    def _pad_shortcut(self, layer: Plain, x: Any) -> Any:
        extra, stride = (layer["channels"] - x.shape[1]) // 2, layer["stride"]
        return ops.pad(x[:, :, ::stride, ::stride], ((0, 0), (extra, extra), (0, 0), (0, 0)), "constant")

    def _position_embedding(self, layer: Plain, x: Any) -> Any:
        rows = self.parameter(f"{layer['name']}.weight")[: layer["shape"][0]]
        return x + ops.broadcast_to(rows, x.shape)

    def _type_embedding(self, layer: Plain, x: Any) -> Any:
        return x + ops.broadcast_to(self.parameter(f"{layer['name']}.weight")[0], x.shape)

    def _first_token(self, _: Plain, x: Any) -> Any:
        return x[:, 0]

    def _attention(self, layer: Plain, x: Any) -> Any:
        batch, length, width = x.shape
        own = {
            role: self.parameter(f"{layer['name']}.{role}")
            for role in ("qkv_weight", "qkv_bias", "out_weight", "out_bias")
        }
        qkv = ops.linear(x, own["qkv_weight"], own["qkv_bias"], n_batch_axes=2)
        qkv = ops.transpose(ops.reshape(qkv, (batch, length, 3, layer["heads"], -1)), (2, 0, 3, 1, 4))
        scores = ops.matmul(qkv[0], qkv[1], transb=True) * (width // layer["heads"]) ** -0.5
        if layer["causal"]:
            scores += np.triu(np.full((length, length), -1e30, np.float32), 1)
        mixed = ops.matmul(ops.softmax(scores, axis=3), qkv[2])
        mixed = ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (batch, length, width))
        return ops.linear(mixed, own["out_weight"], own["out_bias"], n_batch_axes=2)


def _link(layer: Plain, shape: Any) -> Any:
    kind = layer["kind"]
    if kind == "conv2d":
        sizes = (layer["stride"], layer["padding"], not layer["bias"])
        return links.Convolution2D(shape[0], layer["channels"], tuple(layer["kernel"]), *sizes, groups=layer["groups"])
    if kind == "linear" and not layer.get("tied_to"):
        return links.Linear(shape[-1], layer["features"], nobias=not layer["bias"])
    if kind == "batch_norm":
        return links.BatchNormalization(shape[0], eps=layer["eps"])
    if kind == "layer_norm":
        return links.LayerNormalization(shape[-1], eps=layer["eps"])
    if kind == "embedding":
        return links.EmbedID(layer["rows"], layer["width"])
    return None


if __name__ == "__main__":
    main(ChainerSession)
