"""The measured Horovod process on PyTorch: gradients averaged by hooks of DistributedOptimizer."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch

from paceline.bench.frameworks.arrays import MOMENTUM, RATE
from paceline.bench.frameworks.harness import main
from paceline.bench.frameworks.pytorch.layers import TorchNetwork
from paceline.bench.frameworks.pytorch.worker_arrays import TorchArraySession, copy_arrays, loss_of_logits, revealed

__all__ = ["HorovodTorchSession"]

NEVER = 1 << 30
"""More backward passes than ever happen, so that the hooks exchange nothing."""


class HorovodTorchSession(TorchArraySession):
    """PyTorch's usual loop with Horovod's optimizer around SGD."""

    def setup(self) -> None:
        """Join the ring, build the network, wrap the optimizer."""
        hvd.init()
        torch.set_num_threads(self.job["threads"])
        torch.manual_seed(self.job["seed"])
        self.versions = {"horovod": "0.28.1", "torch": torch.__version__}
        self.labels = ["Horovod 0.28.1 was built here for PyTorch 2.13 as C++20, newer than it was released for"]
        self.net = TorchNetwork(self.job["network"], dropout=self.training)
        plain = torch.optim.SGD(self.net.parameters(), lr=RATE, momentum=MOMENTUM)
        self.optimizer: Any = plain
        if self.ranks > 1:
            hvd.broadcast_parameters(self.net.state_dict(), root_rank=0)
            self.optimizer = hvd.DistributedOptimizer(plain, named_parameters=self.net.named_parameters())
        self.loss = torch.zeros(())

    def run(self, part: str, batch: Any) -> None:
        """Run one step up to and including a part."""
        quiet = part == "compute" and self.ranks > 1
        if quiet:
            self.optimizer.set_backward_passes_per_step(NEVER)
        loss = loss_of_logits(self.net(batch[0]), batch[1])
        self.loss = loss.detach()
        if part == "forward":
            return
        loss.backward()
        if part == "exchange" and self.ranks > 1:
            self.optimizer.synchronize()
        if part == "update":
            self.optimizer.step()
        if quiet:
            self.optimizer.set_backward_passes_per_step(1)
        self._clear()

    def _clear(self) -> None:
        """Set gradients to None; the wrapper's own zero_grad refuses to run between synchronize and step."""
        for parameter in self.net.parameters():
            parameter.grad = None

    def load(self, tensors: dict[str, Any]) -> None:
        """Set all trainable tensors."""
        copy_arrays(tensors, self.net.named_tensors())

    def tensors(self) -> dict[str, Any]:
        """All trainable tensors."""
        return {name: tensor.detach().numpy() for name, tensor in self.net.named_tensors().items()}

    def reveal(self) -> tuple[Any, float, dict[str, Any]]:
        """Logits, loss and gradients of the resident batch, without exchange."""
        return revealed(self.net, self.net.named_tensors(), *self.batch)

    def facts(self) -> dict[str, Any]:
        """Facts of the session for the run: loss and wrapper."""
        return {"loss": float(self.loss), "wrapper": type(self.optimizer).__name__, "mpi": bool(hvd.mpi_enabled())}

    def close(self) -> None:
        """Leave the group of ranks."""
        hvd.shutdown()


if __name__ == "__main__":
    main(HorovodTorchSession)
