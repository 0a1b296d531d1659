"""The measured DeepSpeed process: an engine with the ZeRO stage of the mode."""

from __future__ import annotations

import logging
import os
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
import torch.distributed as dist

from paceline.bench.frameworks.arrays import MOMENTUM, RATE
from paceline.bench.frameworks.graph import tensor_shapes
from paceline.bench.frameworks.harness import main
from paceline.bench.frameworks.pytorch.layers import TorchNetwork
from paceline.bench.frameworks.pytorch.worker_arrays import TorchArraySession, copy_arrays, loss_of_logits, revealed

__all__ = ["DeepSpeedSession"]

logging.getLogger("DeepSpeed").setLevel(logging.ERROR)


class DeepSpeedSession(TorchArraySession):
    """An engine that trains; a plain twin of the network that computes the passes without exchange."""

    def setup(self) -> None:
        """Join the group, build the engine and the twin."""
        torch.set_num_threads(self.job["threads"])
        torch.manual_seed(self.job["seed"])
        self.versions = {"deepspeed": deepspeed.__version__, "torch": torch.__version__}
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # for inference only, and compiled at first use
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        self.stage = int(self.job["mode"].removeprefix("zero"))
        self.twin = TorchNetwork(self.job["network"], dropout=self.training)
        self.loss = torch.zeros(())

    def _engine(self, net: Any) -> Any:
        zero: dict[str, Any] = {"stage": self.stage}
        bucket = self.job["strategy"]["bucket"]
        if bucket:
            zero["reduce_bucket_size"] = int(bucket // 4)
        config = {
            "train_micro_batch_size_per_gpu": self.job["batch"],
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 0.0,
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 10**9,
        }
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM)
        return deepspeed.initialize(model=net, optimizer=optimizer, config=config, dist_init_required=False)[0]

    def run(self, part: str, batch: Any) -> None:
        """One step: with exchange on the engine, without it on the twin."""
        model = self.twin if part in ("forward", "compute") else self.engine
        loss = loss_of_logits(model(batch[0]), batch[1])
        self.loss = loss.detach()
        if part == "forward":
            return
        if part == "compute":
            loss.backward()
            self.twin.zero_grad(set_to_none=True)
            return
        self.engine.backward(loss)
        if part == "update":
            self.engine.step()
        else:
            self._drop_gradients()

    def _drop_gradients(self) -> None:
        if self.stage == 0:
            self.engine.zero_grad()
        else:
            self.engine.optimizer.zero_grad()

    def load(self, tensors: dict[str, Any]) -> None:
        """Set the parameters of the twin and recreate the engine, which copies and shards weights at creation."""
        self.net = TorchNetwork(self.job["network"], dropout=self.training)
        for net in (self.twin, self.net):
            copy_arrays(tensors, net.named_tensors())
        self.engine = self._engine(self.net)

    def tensors(self) -> dict[str, Any]:
        """Whole parameters of the engine."""
        mine = self.net.named_tensors()
        with deepspeed.zero.GatheredParameters(list(mine.values()), enabled=self.stage == 3):
            return {name: mine[name].detach().clone().numpy() for name in tensor_shapes(self.job["network"])}

    def reveal(self) -> tuple[Any, float, dict[str, Any]]:
        """Logits, loss and gradients of the resident batch, from the twin."""
        return revealed(self.twin, self.twin.named_tensors(), *self.batch)

    def facts(self) -> dict[str, Any]:
        """Facts of the session for the run: loss and wrapper."""
        return {"loss": float(self.loss), "wrapper": f"DeepSpeedEngine, ZeRO {self.stage}"}

    def close(self) -> None:
        """Leave the group of ranks."""
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(DeepSpeedSession)
