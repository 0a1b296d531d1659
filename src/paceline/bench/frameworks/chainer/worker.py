"""The measured Chainer process: one rank, plain for one device, ChainerMN over MPI for more."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

warnings.filterwarnings("ignore")

import chainer  # noqa: E402
import chainer.functions as ops  # noqa: E402

from paceline.bench.frameworks.arrays import MOMENTUM, RATE, ArraySession  # noqa: E402
from paceline.bench.frameworks.chainer.worker_network import ChainerNetwork  # noqa: E402
from paceline.bench.frameworks.datasets import FileSet, share  # noqa: E402
from paceline.bench.frameworks.graph import tensor_shapes  # noqa: E402
from paceline.bench.frameworks.harness import main  # noqa: E402

__all__ = ["ChainerSession"]


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
        self.started = False
        self.loss: Any = None

    def place(self, inputs: Any, targets: Any) -> Any:
        """Chainer computes on NumPy arrays; a copy stands for the way to the device."""
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


if __name__ == "__main__":
    main(ChainerSession)
