"""What a user may choose about a training run; every default works without knowing the machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from paceline.errors import InputError
from paceline.runtime.members.view import Patience
from paceline.runtime.state import Stateful
from paceline.runtime.syncer.packing import Packing, check_packing

__all__ = ["Settings", "Transport"]

Transport = Literal["auto", "gloo", "nccl", "mpi"]


@dataclass(frozen=True)
class Settings:
    """Choices about a training run."""

    seed: int = 0
    """Decides the order of samples in every epoch."""
    strategy: Literal["group", "auto"] = "group"
    """'group': all that were launched step together. 'auto': measure, then decide between one group and several that
    exchange through a syncer; decide again when devices or links change."""
    balance: bool = True
    """Split batches so that all ranks finish together; otherwise equally."""
    chunk: int | None = None
    """Samples that fit into this rank's memory at once; larger shares are taken in several passes."""
    bucket: float | None = None
    """Bytes of gradients that travel together; chosen from measured times if absent."""
    batchnorm: Literal["warn", "sync"] = "warn"
    """Plain BatchNorm normalises over a rank's share: warn about it, or replace it by one over the whole batch."""
    reduction: Literal["mean", "sum"] = "mean"
    """What the loss function does with the losses of its samples."""
    compress: Packing = "none"
    """How progress travels between groups: 'none', 'half', or 'int8' with what was rounded off sent later."""
    transport: Transport = "auto"
    """What carries gradients inside the group: 'gloo', 'nccl', 'mpi' (needs mpi4py), or as the device needs."""
    clip: float | None = None
    """Largest norm of the whole gradient."""
    checkpoint: Path | None = None
    """File to resume from, if it is there, and to write to."""
    checkpoint_every: int = 100
    """Steps between two checkpoints."""
    noise: bool = False
    """Estimate the gradient noise scale, which costs two norms of the gradient per step."""
    also: tuple[Stateful, ...] = ()
    """Further objects whose state is kept and shared, such as a learning rate schedule."""
    collate: Callable[[Sequence[Any]], Any] | None = None
    """Puts samples together into a batch; torch's default if absent."""
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        if self.strategy not in ("group", "auto"):
            raise InputError(f"strategy is {self.strategy!r}, expected 'group' or 'auto'")
        if self.chunk is not None and self.chunk < 1:
            raise InputError(f"chunk is {self.chunk}, expected at least 1 sample")
        if self.checkpoint_every < 1:
            raise InputError(f"checkpoint_every is {self.checkpoint_every}, expected at least 1 step")
        if self.bucket is not None and self.bucket <= 0:
            raise InputError(f"bucket is {self.bucket} bytes, expected more than 0")
        if self.batchnorm not in ("warn", "sync"):
            raise InputError(f"batchnorm is {self.batchnorm!r}, expected 'warn' or 'sync'")
        if self.batchnorm == "sync" and self.chunk is not None:
            raise InputError(
                "batchnorm='sync' normalises a rank's share in one pass, chunk takes it in several",
                hint="leave one of them out, or use GroupNorm",
            )
        check_packing(self.compress)
        if self.transport not in ("auto", "gloo", "nccl", "mpi"):
            raise InputError(f"transport is {self.transport!r}, expected auto, gloo, nccl or mpi")
        if self.strategy == "auto" and self.transport == "mpi":
            raise InputError(
                "strategy='auto' regroups running processes, which MPI cannot",
                hint="leave transport out, or take strategy='group'",
            )
        if self.reduction not in ("mean", "sum"):
            raise InputError(f"reduction is {self.reduction!r}, expected 'mean' or 'sum'")
