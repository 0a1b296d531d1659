"""The measured PaddlePaddle process: one rank, plain for one device, paddle.DataParallel over Gloo for more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.nn import functional as ops

from paceline.bench.frameworks.arrays import MOMENTUM, RATE, ArraySession
from paceline.bench.frameworks.datasets import FileSet, share
from paceline.bench.frameworks.graph import tensor_shapes
from paceline.bench.frameworks.harness import main
from paceline.bench.frameworks.paddle.worker_network import PaddleNetwork

__all__ = ["PaddleSession"]


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


if __name__ == "__main__":
    main(PaddleSession)
