"""FSDP2 in the measured PyTorch process: parameters, gradients and optimiser state sharded over the ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.bench.frameworks.pytorch.layers import TorchNetwork
from paceline.bench.frameworks.pytorch.worker import TorchSession
from paceline.bench.frameworks.pytorch.worker_arrays import copy_arrays, loss_of_logits

__all__ = ["FsdpSession"]


class FsdpSession(TorchSession):
    """Each layer with parameters is a unit; an unsharded twin computes the passes without exchange."""

    def _distribute(self, net: TorchNetwork) -> nn.Module:
        self.twin = self.build(self.job["network"]).to(self.device, self.dtype)
        return super()._distribute(net)

    def step(self, upto: str) -> None:
        """Partial passes run on the twin, complete steps on the sharded network."""
        if self.job["ranks"] > 1 and upto in ("forward", "compute"):
            loss = loss_of_logits(self.twin(self.batch), self.targets)
            if upto == "compute":
                loss.backward()
                self.twin.zero_grad(set_to_none=True)
            return
        super().step(upto)

    def load(self, tensors: dict[str, Any]) -> None:
        """Set whole tensors; each rank keeps its shard."""
        if self.job["ranks"] == 1:
            super().load(tensors)
            return
        with torch.no_grad():
            for name, tensor in self.net.named_tensors().items():
                whole = torch.from_numpy(tensors[name]).to(tensor.dtype)
                shards = whole.chunk(self.job["ranks"])
                local = tensor.to_local()
                if local.numel():
                    local.copy_(shards[dist.get_rank()])
        copy_arrays(tensors, self.twin.named_tensors())

    def tensors(self) -> dict[str, Any]:
        """Whole tensors, gathered."""
        return {name: _whole(tensor) for name, tensor in self.net.named_tensors().items()}

    def trace(self, step: int) -> list[dict[str, Any]]:
        """No spans, because hooks on sharded tensors would include the all-gather."""
        return []


def _whole(tensor: Tensor) -> Any:
    full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().cpu().numpy()
