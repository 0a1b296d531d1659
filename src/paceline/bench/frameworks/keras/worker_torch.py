"""The measured Keras process on the PyTorch backend: a Keras model is a torch module, wrapped by DDP."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import keras

keras.config.set_image_data_format("channels_first")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812

from paceline.bench.frameworks.arrays import MOMENTUM, RATE, ArraySession  # noqa: E402
from paceline.bench.frameworks.graph import tensor_shapes  # noqa: E402
from paceline.bench.frameworks.harness import main  # noqa: E402
from paceline.bench.frameworks.keras.worker_network import KerasNetwork  # noqa: E402
from paceline.bench.frameworks.pytorch.worker_files import batches_from_files  # noqa: E402

__all__ = ["KerasTorchSession"]


class KerasTorchSession(ArraySession):
    """As Keras' guide to custom loops with PyTorch: the model's own parameters, a torch optimizer."""

    def setup(self) -> None:
        """Join the group, build and wrap the model."""
        torch.set_num_threads(self.job["threads"])
        keras.utils.set_random_seed(self.job["seed"])
        self.versions = {"keras": keras.__version__, "torch": torch.__version__}
        self.net = KerasNetwork(self.job["network"], training=self.training)
        self.model: Any = self.net.model
        if self.ranks > 1:
            dist.init_process_group("gloo", timeout=timedelta(seconds=self.job["timeout"]))
            bucket = self.job["strategy"]["bucket"]
            options = {} if bucket is None else {"bucket_cap_mb": max(bucket / 2**20, 1e-6)}
            self.model = torch.nn.parallel.DistributedDataParallel(self.net.model, **options)
        trained = [variable.value for variable in self.net.model.trainable_variables]
        self.optimizer = torch.optim.SGD(trained, lr=RATE, momentum=MOMENTUM)
        self.loss = torch.zeros(())

    def place(self, inputs: Any, targets: Any) -> Any:
        """Copies in PyTorch's memory."""
        return torch.tensor(inputs), torch.tensor(targets)

    def read(self) -> Iterator[Any]:
        """PyTorch's DataLoader."""
        return batches_from_files(self.job, self.rank)

    def _loss_of(self, batch: Any) -> Any:
        return F.cross_entropy(self.model(batch[0], training=True).flatten(0, -2), batch[1].flatten())

    def run(self, part: str, batch: Any) -> None:
        """Run one step up to and including a part."""
        quiet = self.ranks > 1 and part in ("forward", "compute")
        with self.model.no_sync() if quiet else contextlib.nullcontext():
            loss = self._loss_of(batch)
            self.loss = loss.detach()
            if part == "forward":
                return
            loss.backward()
        if part == "update":
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def load(self, tensors: dict[str, Any]) -> None:
        """Set variables."""
        with torch.no_grad():
            for name, array in tensors.items():
                native = torch.tensor(self.net.native(name, array).copy())
                self.net.variable(name).value.copy_(native)

    def tensors(self) -> dict[str, Any]:
        """Variables in Paceline's layout."""
        names = tensor_shapes(self.job["network"])
        return {name: self.net.plain(name, self.net.variable(name).value.detach().numpy()) for name in names}

    def reveal(self) -> tuple[Any, float, dict[str, Any]]:
        """Logits, loss and gradients of the resident batch, without exchange."""
        logits = self.net.model(self.batch[0], training=True)
        loss = F.cross_entropy(logits.flatten(0, -2), self.batch[1].flatten())
        names = list(tensor_shapes(self.job["network"]))
        gradients = torch.autograd.grad(loss, [self.net.variable(name).value for name in names])
        found = {name: self.net.plain(name, grad.numpy()) for name, grad in zip(names, gradients, strict=True)}
        return logits.detach().numpy(), float(loss), found

    def facts(self) -> dict[str, Any]:
        """Facts of the session for the run: loss and wrapper."""
        return {"loss": float(self.loss), "wrapper": type(self.model).__name__}

    def close(self) -> None:
        """Leave the group of ranks."""
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()


if __name__ == "__main__":
    main(KerasTorchSession)
