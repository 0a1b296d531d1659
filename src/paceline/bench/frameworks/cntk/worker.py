"""The measured CNTK process: one rank; more use CNTK's distributed learners over MPI."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

warnings.filterwarnings("ignore")

importlib.import_module("paceline_shims")  # what CNTK expects of CPython 3.6; put there by its recipe

import cntk  # noqa: E402
import numpy as np  # noqa: E402

from paceline.bench.frameworks.arrays import MOMENTUM, RATE, ArraySession  # noqa: E402
from paceline.bench.frameworks.graph import (  # noqa: E402
    ImageBuilder,
    Plain,
    pool_padding,
    pool_shares,
    run_layers,
    tensor_shapes,
)
from paceline.bench.frameworks.harness import main  # noqa: E402

__all__ = ["CntkSession"]

LABEL = "unsupported combination: CNTK 2.7's extension for CPython 3.6 loaded into 3.11"
LOWEST = -1e30
"""Padding of a maximum."""


class CntkSession(ArraySession):
    """A Trainer with a momentum learner, wrapped by the distributed learner of the mode."""

    def setup(self) -> None:
        """Build the function, its learner and its trainer."""
        cntk.device.try_set_default_device(cntk.device.cpu())
        cntk.cntk_py.set_fixed_random_seed(self.job["seed"] + 1)
        cntk.cntk_py.set_math_lib_trace_level(0)
        self.versions = {"cntk": cntk.__version__}
        self.labels = [LABEL]
        source = self.job["network"]["input"]
        self.images = cntk.input_variable((source["channels"], source["height"], source["width"]))
        self.answers = cntk.input_variable(self.job["network"]["classes"])
        self.net = CntkNetwork(self.job["network"], training=self.training)
        self.logits = self.net.logits(self.images)
        self.loss = cntk.cross_entropy_with_softmax(self.logits, self.answers)
        self.parameters = list(self.net.tensors.values())
        self.trainer = cntk.Trainer(self.logits, (self.loss, None), [self._learner()])
        if self.ranks > 1:
            self.labels.append("the learner exchanges and updates in one call: update is counted as aggregate")
            self.same = {"resident": "exchange"}

    def _learner(self) -> Any:
        rate = cntk.learning_parameter_schedule(RATE)
        momentum = cntk.momentum_schedule(MOMENTUM)
        learner = cntk.momentum_sgd(self.logits.parameters, rate, momentum, unit_gain=False)
        if self.ranks == 1:
            return learner
        distributed = cntk.train.distributed
        if self.job["mode"] == "block_momentum":
            block = 2 * self.ranks * self.job["batch"]
            return distributed.block_momentum_distributed_learner(learner, block_size=block)
        bits = 1 if self.job["mode"] == "onebit" else 32
        return distributed.data_parallel_distributed_learner(learner, num_quantization_bits=bits, distributed_after=0)

    def arrange(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Targets as one-hot rows."""
        return inputs, np.eye(self.job["network"]["classes"], dtype=np.float32)[targets]

    def place(self, inputs: Any, targets: Any) -> Any:
        """Values in CNTK's memory."""
        return {self.images: _value(inputs), self.answers: _value(targets)}

    def run(self, part: str, batch: Any) -> None:
        """One step; a learner of CNTK exchanges and updates in one call."""
        if part == "forward":
            # keeping activations for backward makes this a forward pass of training
            self.loss.forward(batch, self.loss.outputs, self.loss.outputs, as_numpy=False)
        elif part == "compute" or (part == "exchange" and self.ranks == 1):
            self._backward(batch)
        else:
            self.trainer.train_minibatch(batch)

    def _backward(self, batch: Any) -> Any:
        return self.loss.grad(batch, self.parameters, as_numpy=False)

    def load(self, tensors: dict[str, Any]) -> None:
        """Set all trainable tensors."""
        for name, array in tensors.items():
            self.net.tensors[name].value = np.ascontiguousarray(self.net.native(name, array), np.float32)

    def tensors(self) -> dict[str, Any]:
        """Parameters in Paceline's layout."""
        return {name: self.net.plain(name, parameter.value) for name, parameter in self.net.tensors.items()}

    def reveal(self) -> tuple[Any, float, dict[str, Any]]:
        """Logits, loss and gradients of the resident batch, without exchange."""
        logits = self._trained(self.logits, {self.images: self.batch[self.images]})
        losses = self._trained(self.loss, self.batch)
        size = len(losses)
        raw = self.loss.grad(self.batch, self.parameters)
        gradients = {name: self.net.plain(name, raw[value] / size) for name, value in self.net.tensors.items()}
        return np.asarray(logits), float(np.mean(losses)), gradients

    def _trained(self, function: Any, batch: Any) -> Any:
        """The output of a forward pass of training."""
        _, found = function.forward(batch, function.outputs, function.outputs)
        return found[function.output]

    def facts(self) -> dict[str, Any]:
        """Facts of the session for the run: loss and wrapper."""
        wrapper = "none" if self.ranks == 1 else self.job["mode"]
        return {"loss": float(self.trainer.previous_minibatch_loss_average), "wrapper": wrapper}

    def close(self) -> None:
        """Leave the group of ranks."""
        if self.ranks > 1:
            cntk.train.distributed.Communicator.finalize()


def _value(array: Any) -> Any:
    dense = np.ascontiguousarray(array, np.float32)
    return cntk.Value(cntk.NDArrayView.from_dense(dense, device=cntk.device.cpu()))


class CntkNetwork(ImageBuilder):
    """The network as a CNTK function over its own parameters, channels first."""

    framework = "CNTK"

    def __init__(self, network: Plain, *, training: bool) -> None:
        super().__init__(network, training=training)
        self.tensors = {
            name: cntk.parameter(self.native(name, np.zeros(shape, np.float32)).shape, init=0, name=name)
            for name, shape in tensor_shapes(network).items()
        }

    def logits(self, images: Any) -> Any:
        """The function that computes the logits of an input variable of images."""
        return run_layers(self._network, self._apply, images)

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


if __name__ == "__main__":
    main(CntkSession)
