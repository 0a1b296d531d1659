"""The measured MXNet process: one worker of a key-value store."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

from paceline.bench.frameworks.arrays import MOMENTUM, RATE, ArraySession
from paceline.bench.frameworks.datasets import FileSet, share
from paceline.bench.frameworks.graph import tensor_shapes
from paceline.bench.frameworks.harness import main
from paceline.bench.frameworks.mxnet.worker_network import MxnetNetwork

__all__ = ["MxnetSession"]

warnings.filterwarnings("ignore", module="mxnet")


class MxnetSession(ArraySession):
    """A hybridised Gluon network and its Trainer; with more ranks the kvstore's servers apply the update."""

    def setup(self) -> None:
        """Connect to the kvstore, build the network."""
        mx.random.seed(self.job["seed"])
        np.random.seed(self.job["seed"])
        self.versions = {"mxnet": mx.__version__}
        self.net = MxnetNetwork(self.job["network"], training=self.training)
        self.net.initialize(mx.init.Normal(0.05))
        self.net.hybridize(static_alloc=True, static_shape=True)
        self.names = list(tensor_shapes(self.job["network"]))
        self.criterion = gluon.loss.SoftmaxCrossEntropyLoss()
        self.criterion.hybridize(static_alloc=True, static_shape=True)
        self.store = self.connect()
        self.trainer = self.trainer_of(self.net.collect_params())
        self.loss = nd.zeros((1,))

    def connect(self) -> Any:
        """The kvstore of the mode; one rank keeps it in its process."""
        if self.ranks > 1:
            self.labels.append("servers apply the update: it is counted as aggregate")
            self.same = {"resident": "exchange"}
        return mx.kv.create(self.job["mode"] if self.ranks > 1 else "local")

    def trainer_of(self, parameters: Any) -> Any:
        """A Trainer that pushes gradients to the store and pulls the result."""
        options = {"learning_rate": RATE, "momentum": MOMENTUM}
        return gluon.Trainer(parameters, "sgd", options, kvstore=self.store)

    def place(self, inputs: Any, targets: Any) -> Any:
        """Copies in MXNet's memory."""
        return nd.array(inputs, dtype="float32"), nd.array(targets, dtype="float32")

    def read(self) -> Iterator[Any]:
        """Gluon's DataLoader with a pool of threads."""
        files = FileSet(self.job)
        own = gluon.data.SimpleDataset(share(len(files), self.job, self.rank))
        own = own.transform(lambda index: files[int(index)], lazy=True)
        options = {"shuffle": True, "last_batch": "rollover", "num_workers": 1, "thread_pool": True}
        loader = gluon.data.DataLoader(own, self.job["batch"], **options)
        while True:
            for inputs, targets in loader:
                yield tuple(part.as_in_context(mx.cpu()).astype("float32") for part in (inputs, targets))

    def run(self, part: str, batch: Any) -> None:
        """Run one step; MXNet's engine executes it asynchronously."""
        inputs, targets = batch
        with autograd.record():
            self.loss = self.criterion(self.net(inputs), targets)
        if part == "forward":
            return
        self.loss.backward()
        if part == "compute" or (part == "exchange" and self.ranks == 1):
            return
        self.exchange(part, inputs.shape[0])

    def exchange(self, part: str, batch: int) -> None:
        """Push gradients, pull weights; where servers update, exchange and update are one."""
        self.trainer.step(batch * self.ranks)

    def sync(self) -> None:
        """Wait for the engine."""
        nd.waitall()

    def load(self, tensors: dict[str, Any]) -> None:
        """Set all trainable tensors; a new trainer resets the momentum and sends the weights to the servers."""
        for name, array in tensors.items():
            self.net.parameter(name).set_data(nd.array(array, dtype="float32"))
        nd.waitall()

    def tensors(self) -> dict[str, Any]:
        """All trainable tensors."""
        nd.waitall()
        return {name: self.net.parameter(name).data().asnumpy() for name in self.names}

    def reveal(self) -> tuple[Any, float, dict[str, Any]]:
        """Logits, loss and gradients of the resident batch, without exchange."""
        inputs, targets = self.batch
        with autograd.record():
            logits = self.net(inputs)
            loss = self.criterion(logits, targets).mean()
        loss.backward()
        gradients = {name: self.net.parameter(name).grad().asnumpy() for name in self.names}
        return logits.asnumpy(), float(loss.asscalar()), gradients

    def facts(self) -> dict[str, Any]:
        """Facts of the session for the run: loss and wrapper."""
        return {"loss": float(self.loss.mean().asscalar()), "wrapper": self.store.type}

    def close(self) -> None:
        """Leave the group of ranks."""
        nd.waitall()
        if self.ranks > 1:
            self.store._barrier()


if __name__ == "__main__":
    main(MxnetSession)
