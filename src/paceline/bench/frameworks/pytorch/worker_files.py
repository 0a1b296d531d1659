"""PyTorch's DataLoader for the job's files, for every framework with PyTorch tensors."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from paceline.bench.frameworks.datasets import FileSet, share
from paceline.bench.frameworks.harness import Job

__all__ = ["batches_from_files"]


def batches_from_files(job: Job, rank: int) -> Iterator[list[Tensor]]:
    """An endless iterator over batches of this rank's share: DataLoader with one worker process."""
    files = FileSet(job)
    own = torch.utils.data.Subset(files, share(len(files), job, rank))
    loader = torch.utils.data.DataLoader(
        own, job["batch"], shuffle=True, drop_last=True, num_workers=1, persistent_workers=True
    )
    while True:
        yield from loader
