"""What a user may choose about a training run; every default works without knowing the machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from paceline.errors import InputError
from paceline.runtime.checkpoint import Stateful
from paceline.runtime.large.recipe import LARGE_OUTER, LargeBatch, Layerwise
from paceline.runtime.members.view import Timeouts
from paceline.runtime.syncer.packing import Packing, check_packing
from paceline.runtime.syncer.rounds import OuterOptimizer, StalenessRule

__all__ = ["Scheme", "Settings", "Transport"]

Scheme = Literal["group", "auto"]
Transport = Literal["auto", "gloo", "nccl", "mpi"]
BatchNormMode = Literal["warn", "sync"]
Reduction = Literal["mean", "sum"]


@dataclass(frozen=True)
class Settings:
    """Choices about a training run."""

    seed: int = 0
    """Decides the order of samples in every epoch."""
    scheme: Scheme = "group"
    """'group': all ranks that were launched step together. 'auto': measure, then decide between one group and several
    that exchange through a syncer; decide again when devices or links change."""
    balance: bool = True
    """Split batches so that all ranks finish together; otherwise equally."""
    chunk: int | None = None
    """Samples that fit into this rank's memory at once; larger shares are taken in several passes."""
    bucket: float | None = None
    """Bytes of gradients that travel together; chosen from measured times if absent."""
    batchnorm: BatchNormMode = "warn"
    """Plain BatchNorm normalises over a rank's share: warn about it, or replace it by one over the whole batch."""
    reduction: Reduction = "mean"
    """What the loss function does with the losses of its samples."""
    compress: Packing = "none"
    """How progress travels between groups: 'none', 'half', or 'int8' with what was rounded off sent later."""
    staleness: StalenessRule | None = None
    """How progress of a group counts if other groups have moved the common parameters since it started: a
    `StalenessRule` named 'divide' (by 1 + staleness), 'gap', 'compensate', 'discard' or 'keep'. None: 'divide', or as
    the syncer was started with. The first group that starts decides for all groups."""
    outer: OuterOptimizer | None = None
    """Rate and delayed Nesterov momentum with which the syncer applies progress. None: applied as it is, or as the
    syncer was started with. The first group that starts decides for all groups."""
    transport: Transport = "auto"
    """What carries gradients inside the group: 'gloo', 'nccl', 'mpi' (needs mpi4py), or as the device needs."""
    clip: float | None = None
    """Largest norm of the whole gradient."""
    checkpoint: Path | None = None
    """File to resume from, if it is there, and to write to."""
    checkpoint_every: int = 100
    """Steps between two checkpoints."""
    metrics: Path | None = None
    """Folder to which each rank writes a JSON line per second: steps, shares, waiting, staleness, membership."""
    metrics_port: int | None = None
    """Port for Prometheus on the loopback interface; each rank adds its number to it."""
    tensorboard: Path | None = None
    """Folder for event files with the same numbers; needs the tensorboard package."""
    noise: bool = False
    """Estimate the gradient noise scale, which costs two norms of the gradient per step."""
    large: LargeBatch | None = None
    """How the rate follows the batch; see `large_batch`."""
    also: tuple[Stateful, ...] = ()
    """Further objects whose state is kept and shared, such as a learning rate schedule."""
    collate: Callable[[Sequence[Any]], Any] | None = None
    """Puts samples together into a batch; torch's default if absent."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    """How long ranks wait for each other, and after how long one without heartbeats is declared failed."""

    @classmethod
    def large_batch(
        cls,
        reference_batch: int,
        *,
        warmup: int = 500,
        layerwise: Layerwise = "none",
        trust: float = 0.001,
        **others: Any,
    ) -> Settings:
        """Settings for a batch far above the one that the optimizer's rate was tuned for, which is `reference_batch`.

        The rate grows over the warm-up to that of the global batch: linearly, but no further than the measured noise
        of the gradients allows. `layerwise`: 'lars' with SGD, 'lamb' with Adam or AdamW. Between groups, late progress
        counts by the default rule, under delayed Nesterov momentum. `others` are further settings.
        """
        large = LargeBatch(reference_batch, warmup, layerwise, trust)
        return cls(**{"noise": True, "outer": LARGE_OUTER, "large": large, **others})

    def __post_init__(self) -> None:
        for name in ("checkpoint", "metrics", "tensorboard"):
            if isinstance(path := getattr(self, name), str):
                object.__setattr__(self, name, Path(path))
        _check_states(self.also)
        if self.checkpoint is not None and not self.checkpoint.name:
            raise InputError(f"checkpoint is {self.checkpoint}, expected a file", hint="run/state.safetensors")
        _check_choice("scheme", self.scheme, Scheme)
        _check_choice("batchnorm", self.batchnorm, BatchNormMode)
        _check_choice("reduction", self.reduction, Reduction)
        _check_choice("transport", self.transport, Transport)
        check_packing(self.compress)
        if self.chunk is not None and self.chunk < 1:
            raise InputError(f"chunk is {self.chunk}, expected at least 1 sample")
        if self.checkpoint_every < 1:
            raise InputError(f"checkpoint_every is {self.checkpoint_every}, expected at least 1 step")
        if self.bucket is not None and self.bucket <= 0:
            raise InputError(f"bucket is {self.bucket} bytes, expected more than 0")
        if self.metrics_port is not None and not 1 <= self.metrics_port <= 65535:
            raise InputError(f"metrics_port is {self.metrics_port}, expected 1 to 65535")
        if self.batchnorm == "sync" and self.chunk is not None:
            raise InputError(
                "batchnorm='sync' normalises a rank's share in one pass, chunk takes it in several",
                hint="leave one of them out, or use GroupNorm",
            )
        if self.scheme == "auto" and self.transport == "mpi":
            raise InputError(
                "scheme='auto' regroups running processes, which MPI cannot",
                hint="leave transport out, or take scheme='group'",
            )


def _check_states(also: object) -> None:
    for one in also if isinstance(also, tuple | list) else [None]:
        if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
            raise InputError(
                f"also is {also!r}, expected objects with state_dict() and load_state_dict()",
                hint="Settings(also=(scheduler,))",
            )


def _check_choice(name: str, value: object, choices: Any) -> None:
    if value not in get_args(choices):
        expected = ", ".join(repr(choice) for choice in get_args(choices))
        raise InputError(f"{name} is {value!r}, expected one of {expected}")
