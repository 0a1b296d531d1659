"""Common code of frameworks with PyTorch tensors: files, loss, proof of equality, a session with NumPy input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from paceline.bench.frameworks.arrays import ArraySession
from paceline.bench.frameworks.datasets import FileSet, share
from paceline.bench.frameworks.harness import Job

__all__ = ["TorchArraySession", "batches_from_files", "copy_arrays", "loss_of_logits", "revealed"]


def batches_from_files(job: Job, rank: int) -> Iterator[list[Tensor]]:
    """An endless iterator over batches of this rank's share: DataLoader with one worker process."""
    files = FileSet(job)
    own = torch.utils.data.Subset(files, share(len(files), job, rank))
    loader = torch.utils.data.DataLoader(
        own, job["batch"], shuffle=True, drop_last=True, num_workers=1, persistent_workers=True
    )
    while True:
        yield from loader


def loss_of_logits(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over the batch and, for sequences, the positions."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def copy_arrays(arrays: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Set the tensors of these names."""
    with torch.no_grad():
        for name, array in arrays.items():
            tensors[name].copy_(torch.from_numpy(array))


def revealed(
    model: Callable[[Tensor], Tensor], tensors: Mapping[str, Tensor], inputs: Tensor, targets: Tensor
) -> tuple[Any, float, dict[str, Any]]:
    """Logits, loss and gradients of a batch, without exchange."""
    logits = model(inputs)
    loss = loss_of_logits(logits, targets)
    gradients = torch.autograd.grad(loss, list(tensors.values()))
    by_name = {name: gradient.cpu().numpy() for name, gradient in zip(tensors, gradients)}
    return logits.detach().cpu().numpy(), float(loss.detach()), by_name


class TorchArraySession(ArraySession):
    """Input of a session that computes on PyTorch tensors."""

    def place(self, inputs: Any, targets: Any) -> Any:
        """Copies in PyTorch's memory."""
        return torch.tensor(inputs), torch.tensor(targets)

    def read(self) -> Iterator[Any]:
        """PyTorch's DataLoader."""
        return batches_from_files(self.job, self.rank)
