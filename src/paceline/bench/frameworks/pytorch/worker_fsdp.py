"""The measured PyTorch process with FSDP2: parameters, gradients and optimiser state sharded over the ranks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from paceline.bench.frameworks.harness import main
from paceline.bench.frameworks.pytorch.layers import Graph
from paceline.bench.frameworks.pytorch.worker import TorchSession

__all__ = ["FsdpSession"]


class FsdpSession(TorchSession):
    """Each layer with parameters is a unit of its own; a plain twin computes the passes without exchange."""

    def _distribute(self, net: Graph) -> nn.Module:
        self.twin = self.build(self.job["network"]).to(self.device, self.dtype)
        backend = self.job["strategy"]["transport"] or ("nccl" if self.device.type == "cuda" else "gloo")
        dist.init_process_group(backend, timeout=timedelta(seconds=self.job["timeout"]))
        mesh = init_device_mesh(self.device.type, (self.job["ranks"],))
        tied = {layer.get("tied_to") for layer in self.job["network"]["layers"]} - {None}
        for name, part in net.parts.items():
            shared = any(name == other.replace(".", "__") for other in tied) or self._is_tied(name)
            if any(True for _ in part.parameters()) and not shared:
                fully_shard(part, mesh=mesh)
        return fully_shard(net, mesh=mesh)

    def _is_tied(self, key: str) -> bool:
        layers = self.job["network"]["layers"]
        return any(layer.get("tied_to") and layer["name"].replace(".", "__") == key for layer in layers)

    def step(self, upto: str) -> None:
        """Partial passes run on the twin, whole ones on the sharded network."""
        if self.job["ranks"] > 1 and upto in ("forward", "compute"):
            loss = nn.functional.cross_entropy(self.twin(self.batch).flatten(0, -2), self.targets.flatten())
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
        twins = self.twin.named_tensors()
        with torch.no_grad():
            for name, array in tensors.items():
                twins[name].copy_(torch.from_numpy(array))

    def tensors(self) -> dict[str, Any]:
        """Whole tensors, gathered."""
        return {name: _whole(tensor) for name, tensor in self.net.named_tensors().items()}

    def trace(self, step: int) -> list[dict[str, Any]]:
        """Hooks on sharded tensors would time the gathering too: no spans."""
        return []


def _whole(tensor: Tensor) -> Any:
    full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().cpu().numpy()


if __name__ == "__main__":
    main(FsdpSession)
