"""The measured SINGA process: one rank; more average their gradients through mpi4py."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

from paceline import variables

warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402

np.int, np.float = int, float  # type: ignore[attr-defined]  # SINGA's preview uses removed names of NumPy

from singa import autograd, data, device, tensor  # noqa: E402

from paceline.bench.frameworks.arrays import MOMENTUM, RATE, ArraySession  # noqa: E402
from paceline.bench.frameworks.datasets import FileSet, decode_png, share, write_list  # noqa: E402
from paceline.bench.frameworks.harness import main  # noqa: E402
from paceline.bench.frameworks.singa.worker_network import SingaNetwork, open_bridge  # noqa: E402
from paceline.bench.frameworks.singa.worker_operators import SoftmaxCrossEntropy  # noqa: E402
from paceline.bench.virtual.namespaces import set_parent_death_signal  # noqa: E402

__all__ = ["SingaSession"]

LABELS = (
    "unsupported combination: SINGA 3.0.0.dev1's extension for CPython 3.6 loaded into 3.11, arrays copied past SWIG",
    "re-creation: the wheel has no Communicator, gradients are averaged through mpi4py as they become ready",
)
COMPOSED = ("batch_norm", "local_response_norm", "concat", "pad_shortcut")
"""Kinds of layer that are made of SINGA's primitive operations."""


class SingaSession(ArraySession):
    """SINGA's autograd: gradients come one by one from `backward`, last layer first."""

    def setup(self) -> None:
        """Build the network; join MPI if there are more ranks."""
        open_bridge()
        self.versions = {"singa": "3.0.0.dev1"}
        self.labels = list(LABELS[: 1 if self.ranks == 1 else 2])
        composed = [kind for kind in COMPOSED if any(layer["kind"] == kind for layer in self.job["network"]["layers"])]
        if composed:
            self.labels.append(
                f"re-creation: {', '.join(composed)} of SINGA's primitive operations, not its own kernels"
            )
        self.device = device.get_default_device()
        autograd.training = True
        self.net = SingaNetwork(self.job["network"], self.device, training=self.training)
        self.momenta = {name: _zeros_like(value, self.device) for name, value in self.net.tensors.items()}
        self.world: Any = None
        if self.ranks > 1:
            from mpi4py import MPI

            self.world = MPI.COMM_WORLD
        self.images: Any = None
        self.loss: Any = None

    def arrange(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Targets as one-hot rows."""
        return inputs, np.eye(self.job["network"]["classes"], dtype=np.float32)[targets]

    def place(self, inputs: Any, targets: Any) -> Any:
        """Copies in SINGA's memory."""
        return tuple(tensor.Tensor(data=array, device=self.device) for array in (inputs, targets))

    def read(self) -> Iterator[Any]:
        """SINGA's ImageBatchIter for a folder of images; CIFAR's records, which it does not know, by a thread."""
        if self.job["data"]["kind"] == "cifar":
            yield from super().read()
            return
        files = FileSet(self.job)
        path = os.path.join(os.path.dirname(os.environ[variables.EVENTS]), f"files-{self.rank}.txt")
        write_list(path, files, share(len(files), self.job, self.rank))
        self.images = _Images(path, self.job["batch"], lambda place: [_Picture(place)], image_folder="")
        self.images.start()
        while True:
            inputs, targets = next(self.images)
            yield self.place(*self.arrange(inputs / np.float32(127.5) - np.float32(1), targets))

    def run(self, part: str, batch: Any) -> None:
        """Run one step up to and including a part."""
        inputs, targets = batch
        self.loss = SoftmaxCrossEntropy(targets)(self.net(inputs))[0]
        if part == "forward":
            return
        for parameter, gradient in autograd.backward(self.loss):
            if self.world is not None and part != "compute":
                self._average(gradient)
            if part == "update":
                self._apply(parameter, gradient)

    def _average(self, gradient: Any) -> None:
        array = tensor.to_numpy(gradient)
        total = np.empty_like(array)
        self.world.Allreduce(array, total)
        gradient.copy_from_numpy(total / self.ranks)

    def _apply(self, parameter: Any, gradient: Any) -> None:
        momentum = self.momenta[parameter.name]
        momentum *= MOMENTUM
        tensor.axpy(1.0, gradient, momentum)
        tensor.axpy(-RATE, momentum, parameter)

    def sync(self) -> None:
        """SINGA's CPU device is synchronous; reading the loss guarantees completion."""
        tensor.to_numpy(self.loss)

    def load(self, tensors: dict[str, Any]) -> None:
        """Set all trainable tensors."""
        for name, array in tensors.items():
            native = np.ascontiguousarray(self.net.native(name, array), np.float32)
            self.net.tensors[name].copy_from_numpy(native)

    def tensors(self) -> dict[str, Any]:
        """Parameters in Paceline's layout."""
        return {name: self.net.plain(name, tensor.to_numpy(value)) for name, value in self.net.tensors.items()}

    def reveal(self) -> tuple[Any, float, dict[str, Any]]:
        """Logits, loss and gradients of the resident batch, without exchange."""
        inputs, targets = self.batch
        logits = self.net(inputs)
        loss = SoftmaxCrossEntropy(targets)(logits)[0]
        raw = {parameter.name: tensor.to_numpy(gradient) for parameter, gradient in autograd.backward(loss)}
        gradients = {name: self.net.plain(name, array) for name, array in raw.items()}
        return tensor.to_numpy(logits), float(tensor.to_numpy(loss).sum()), gradients

    def facts(self) -> dict[str, Any]:
        """Facts of the session for the run: loss and wrapper."""
        wrapper = "none" if self.world is None else "mpi4py all-reduce"
        return {"loss": float(tensor.to_numpy(self.loss).sum()), "wrapper": wrapper}

    def close(self) -> None:
        """Leave the group of ranks, as MPI requires, and end the reader process."""
        if self.images is not None:
            self.images.end()
        if self.world is not None:
            from mpi4py import MPI

            MPI.Finalize()


class _Images(data.ImageBatchIter):
    """SINGA's reader with a process that ends with this process."""

    def run(self) -> None:
        """Read batches until the process ends."""
        set_parent_death_signal()
        super().run()


class _Picture:
    """An image for ImageBatchIter, which requires RGB."""

    def __init__(self, path: str) -> None:
        self._path = path

    def convert(self, _: str) -> Any:
        """The pixels of the image."""
        with open(self._path, "rb") as file:
            return decode_png(file.read())


def _zeros_like(value: Any, place: Any) -> Any:
    made = tensor.Tensor(value.shape, place)
    made.set_value(0.0)
    return made


if __name__ == "__main__":
    main(SingaSession)
