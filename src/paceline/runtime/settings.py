"""Settings of a training run; the defaults work on any machine."""

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
    """Settings of a training run."""

    seed: int = 0
    """Random seed of the order of samples in every epoch."""
    scheme: Scheme = "group"
    """'group': all launched ranks form one group. 'auto': measure, then choose between one group and several groups
    that exchange through a syncer; choose again when devices or links change."""
    balance: bool = True
    """Split batches so that all ranks finish together; otherwise equally."""
    chunk: int | None = None
    """Samples that fit into this rank's memory; larger shares are computed in several passes."""
    bucket: float | None = None
    """Bucket size in bytes; chosen from measured times if absent."""
    batchnorm: BatchNormMode = "warn"
    """Plain BatchNorm normalises over a rank's share: warn about this, or replace it by BatchNorm over the whole
    batch."""
    reduction: Reduction = "mean"
    """Reduction of the loss function over samples."""
    compress: Packing = "none"
    """Compression of progress between groups: 'none', 'half', or 'int8' with error feedback."""
    staleness: StalenessRule | None = None
    """Weight of stale progress, if other groups have changed the common parameters since the group read them: a
    `StalenessRule` named 'divide' (by 1 + staleness), 'gap', 'compensate', 'discard' or 'keep'. None: 'divide', or the
    rule with which the syncer was started. The first group that starts decides for all groups."""
    outer: OuterOptimizer | None = None
    """Rate and delayed Nesterov momentum with which the syncer applies progress. None: progress is applied unchanged,
    or by the rule with which the syncer was started. The first group that starts decides for all groups."""
    transport: Transport = "auto"
    """Transport of gradients inside the group: 'gloo', 'nccl', 'mpi' (needs mpi4py), or automatic by device."""
    clip: float | None = None
    """Gradient clipping: maximum norm of the whole gradient."""
    checkpoint: Path | None = None
    """Checkpoint file: training resumes from it if it exists, and writes to it."""
    checkpoint_every: int = 100
    """Steps between two checkpoints."""
    metrics: Path | None = None
    """Folder to which each rank appends one JSON line per second: steps, shares, waiting, staleness, membership."""
    metrics_port: int | None = None
    """Port for Prometheus on the loopback interface; a rank listens on this port plus its rank."""
    tensorboard: Path | None = None
    """Folder for event files with the same numbers; needs the tensorboard package."""
    noise: bool = False
    """Estimate the gradient noise scale, which costs two norms of the gradient per step."""
    large: LargeBatch | None = None
    """How the learning rate scales with the batch; see `large_batch`."""
    also: tuple[Stateful, ...] = ()
    """Further objects whose state is checkpointed and sent to late joiners, such as a learning rate schedule."""
    collate: Callable[[Sequence[Any]], Any] | None = None
    """Collates samples into a batch; torch's default if absent."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    """Timeouts: how long ranks wait for each other, and the heartbeat timeout."""

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
        """Settings for a batch much larger than `reference_batch`, for which the optimizer's rate was tuned.

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
