"""The measured Keras process on the PyTorch backend: a Keras model is a torch module, wrapped by DDP."""

from __future__ import annotations

import contextlib
import functools
from datetime import timedelta
from typing import Any

import keras

keras.config.set_image_data_format("channels_first")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from paceline.bench.frameworks.arrays import MOMENTUM, RATE  # noqa: E402
from paceline.bench.frameworks.graph import tensor_shapes  # noqa: E402
from paceline.bench.frameworks.harness import main  # noqa: E402
from paceline.bench.frameworks.keras.worker_network import KerasNetwork  # noqa: E402
from paceline.bench.frameworks.pytorch.worker_arrays import TorchArraySession, loss_of_logits, revealed  # noqa: E402

__all__ = ["KerasTorchSession"]


class KerasTorchSession(TorchArraySession):
    """A custom training loop as in Keras' guide for PyTorch: parameters of the model, a torch optimizer."""

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

    def run(self, part: str, batch: Any) -> None:
        """Run one step up to and including a part."""
        quiet = self.ranks > 1 and part in ("forward", "compute")
        with self.model.no_sync() if quiet else contextlib.nullcontext():
            loss = loss_of_logits(self.model(batch[0], training=True), batch[1])
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
        variables = {name: self.net.variable(name).value for name in tensor_shapes(self.job["network"])}
        model = functools.partial(self.net.model, training=True)
        logits, loss, gradients = revealed(model, variables, *self.batch)
        return logits, loss, {name: self.net.plain(name, gradient) for name, gradient in gradients.items()}

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
