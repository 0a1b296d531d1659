"""What a transformer is and how it is spread: shape, tensor, pipeline and data parallelism, ZeRO, recomputation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.errors import InputError

__all__ = ["Parallel", "TransformerShape"]


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
    """What backward computes again instead of keeping it: nothing, attention scores, or the whole forward."""
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
