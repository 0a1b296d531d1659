"""Memory of one device of a parallel transformer: fits or not, and by how much.

Activations of one block and micro-batch: s b h (10 + 24/t + 5 a s / (h t)) bytes, without the last term if scores are
recomputed, 2 s b h if all is; a stage of 1F1B keeps at most `pipeline` micro-batches. Korthikanti et al., Reducing
activation recomputation, 2023. State in mixed precision with Adam: 2 + 2 + 12 bytes a parameter; Rajbhandari et al.,
ZeRO, 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.cost.memory import state_bytes
from paceline.errors import InputError
from paceline.model.transformer.shape import Parallel, TransformerShape
from paceline.units import BYTES

__all__ = ["TransformerMemory", "check_memory", "transformer_memory"]


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
    """The memory use, or one clear error that says by how much it does not fit."""
    use = transformer_memory(shape, parallel)
    if use.total > device_bytes:
        raise InputError(
            f"needs {BYTES.format(use.total)} per device, there are {BYTES.format(device_bytes)}: "
            f"{BYTES.format(use.total - device_bytes)} too much",
            hint="more tensor or pipeline ranks, ZeRO, recomputation, or a smaller micro-batch",
        )
    return use
