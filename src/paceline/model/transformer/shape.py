"""A transformer and its parallelism (tensor, pipeline, data, ZeRO, recomputation), and the memory that a device needs.

Activations of one block and micro-batch: s b h (10 + 24/t + 5 a s / (h t)) bytes, without the last term if scores are
recomputed, 2 s b h if all is; a stage of 1F1B keeps at most `pipeline` micro-batches. Korthikanti et al., Reducing
activation recomputation, 2023. State in mixed precision with Adam: 2 + 2 + 12 bytes a parameter; Rajbhandari et al.,
ZeRO, 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.cost.memory import state_bytes
from paceline.errors import InputError
from paceline.units import BYTES

__all__ = ["Parallel", "TransformerMemory", "TransformerShape", "check_memory", "transformer_memory"]


@dataclass(frozen=True)
class TransformerShape:
    """A decoder of equal blocks."""

    hidden: int
    heads: int
    layers: int
    sequence: int
    vocabulary: int = 51200

    @property
    def block_parameters(self) -> float:
        """Parameters of one block: attention 4 h^2, feed-forward 8 h^2, biases and norms 13 h."""
        return 12.0 * self.hidden**2 + 13.0 * self.hidden

    @property
    def parameters(self) -> float:
        """All parameters, positions and the tied embedding included."""
        return self.layers * self.block_parameters + (self.vocabulary + self.sequence) * self.hidden


@dataclass(frozen=True)
class Parallel:
    """How one iteration is spread over devices."""

    tensor: int
    pipeline: int
    data: int
    micro_batch: int
    global_batch: int
    interleave: int = 1
    """Model chunks per device in the pipeline; 1 is plain 1F1B."""
    zero_stage: int = 0
    recompute: Literal["none", "selective", "full"] = "none"
    """What backward recomputes: nothing, attention scores, or the whole forward pass."""
    per_host: int = 8

    @property
    def devices(self) -> int:
        """Devices that it takes."""
        return self.tensor * self.pipeline * self.data

    @property
    def num_micro(self) -> int:
        """Micro-batches of one pipeline in one iteration."""
        return self.global_batch // (self.data * self.micro_batch)

    def check(self, shape: TransformerShape) -> None:
        """Refuse what cannot be run."""
        wrong = [name for name in ("tensor", "pipeline", "data", "micro_batch", "global_batch", "interleave")
                 if getattr(self, name) < 1]  # fmt: skip
        if wrong:
            raise InputError(f"{wrong[0]} is {getattr(self, wrong[0])}, expected at least 1")
        if self.global_batch % (self.data * self.micro_batch):
            raise InputError(
                f"a global batch of {self.global_batch} does not split into micro-batches of {self.micro_batch} "
                f"over {self.data} data-parallel groups",
                hint=f"make it a multiple of {self.data * self.micro_batch}",
            )
        if shape.layers % (self.pipeline * self.interleave):
            raise InputError(
                f"{shape.layers} layers do not split into {self.pipeline} stages of {self.interleave} chunks",
                hint="choose a pipeline that divides the layers",
            )
        if shape.heads % self.tensor:
            raise InputError(f"{shape.heads} heads do not split over {self.tensor} tensor-parallel ranks")
        if shape.hidden % shape.heads:
            raise InputError(
                f"a hidden size of {shape.hidden} does not split into {shape.heads} heads",
                hint=f"make it a multiple of {shape.heads}",
            )


@dataclass(frozen=True)
class TransformerMemory:
    """Bytes on the fullest device, the first stage."""

    weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.activations


def transformer_memory(shape: TransformerShape, parallel: Parallel) -> TransformerMemory:
    """Memory of a device of the first stage."""
    parallel.check(shape)
    blocks = shape.layers / parallel.pipeline
    embedding = (shape.vocabulary + shape.sequence) * shape.hidden
    held = (blocks * shape.block_parameters + embedding) / parallel.tensor
    state = state_bytes(2, moments=2, shards=(parallel.zero_stage, parallel.data))
    return TransformerMemory(
        weights=state.weights * held,
        gradients=state.gradients * held,
        optimizer=state.optimizer * held,
        activations=_activations(shape, parallel, blocks),
    )


def _activations(shape: TransformerShape, parallel: Parallel, blocks: float) -> float:
    tokens = float(shape.sequence * parallel.micro_batch * shape.hidden)
    scores = (
        5 * shape.heads * shape.sequence / (shape.hidden * parallel.tensor) if parallel.recompute == "none" else 0.0
    )
    full = tokens * (10 + 24 / parallel.tensor + scores)
    in_flight = min(parallel.pipeline, parallel.num_micro)
    growth = 1 + (parallel.pipeline - 1) / (parallel.pipeline * parallel.interleave) if parallel.interleave > 1 else 1.0
    if parallel.recompute == "full":
        return (2 * tokens * blocks * in_flight + full) * growth
    return full * blocks * in_flight * growth


def check_memory(shape: TransformerShape, parallel: Parallel, *, device_bytes: float) -> TransformerMemory:
    """The memory use; an error with the missing memory if the model does not fit."""
    use = transformer_memory(shape, parallel)
    if use.total > device_bytes:
        raise InputError(
            f"needs {BYTES.format(use.total)} per device, there are {BYTES.format(device_bytes)}: "
            f"{BYTES.format(use.total - device_bytes)} too much",
            hint="more tensor or pipeline ranks, ZeRO, recomputation, or a smaller micro-batch",
        )
    return use
