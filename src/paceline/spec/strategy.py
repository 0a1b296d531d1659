"""How gradients are aggregated. A missing field means the default of the framework."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from paceline.errors import UnknownName
from paceline.spec.fields import Bytes, Count, Name, SpecModel

__all__ = ["PRECISIONS", "ComputePrecision", "Strategy", "precision_by_alias"]

PRECISIONS = ("float64", "float32", "tf32", "float16", "bfloat16", "amp")
_ALIASES = {
    "fp64": "float64", "double": "float64", "fp32": "float32", "single": "float32", "tensorfloat32": "tf32",
    "fp16": "float16", "half": "float16", "bf16": "bfloat16", "mixed": "amp", "mixed_precision": "amp",
}  # fmt: skip
"""Other names of precisions."""


def _plain(given: Any) -> Any:
    text = given.strip().lower().replace("-", "_") if isinstance(given, str) else given
    return _ALIASES.get(text, text) if isinstance(text, str) else given


ComputePrecision = Annotated[
    Literal["float64", "float32", "tf32", "float16", "bfloat16", "amp"], BeforeValidator(_plain)
]


def precision_by_alias(text: str) -> str:
    """The precision by what people call it."""
    if _plain(text) not in PRECISIONS:
        known = f"known: {', '.join(PRECISIONS)}, and fp32, fp16, bf16, mixed"
        raise UnknownName("precision", text, [*PRECISIONS, *_ALIASES], otherwise=known)
    return str(_plain(text))


class Strategy(SpecModel):
    """Aggregation of gradients: algorithm, overlap, fusion, precision, synchrony."""

    name: Name = "default"
    """A label for tables; it does not change the run."""
    aggregation: Literal["none", "allreduce", "parameter_server", "sharded"] | None = None
    """Gradients on every rank, on servers, or sharded over the ranks (FSDP, ZeRO); `none`: no exchange."""
    algorithm: (
        Literal["ring", "halving_doubling", "recursive_doubling", "tree", "double_tree", "hierarchical"] | None
    ) = None
    """Algorithm of the collective; by default what the library chooses: NCCL for each message, others a ring."""
    transport: Literal["gloo", "nccl", "mpi", "grpc", "zmq"] | None = None
    """Communication library."""
    overlap: bool | None = None
    """Whether gradients are exchanged during the backward pass (wait-free back-propagation)."""
    bucket: Bytes | None = None
    """Size up to which gradients are fused into one message; 0 sends each gradient separately."""
    precision: ComputePrecision | None = None
    """Precision of compute and of the exchanged gradients; `amp` is automatic mixed precision, which multiplies in half
    precision and keeps float32 weights and gradients. By default what the framework does on the device."""
    compression: Literal["none", "float16", "powersgd", "1bit"] = "none"
    """Compression of gradients before the exchange."""
    synchrony: Literal["synchronous", "asynchronous"] | None = None
    """Whether every rank waits for the gradients of all ranks before its update."""
    accumulate: Count = 1
    """Number of batches whose gradients are summed before an exchange."""
    servers: Annotated[int, Field(ge=0)] | None = None
    """Number of parameter servers; 0 means one on every worker."""
    shard_stage: Annotated[int, Field(ge=0, le=3)] | None = None
    """ZeRO stage: 1 optimizer state, 2 also gradients, 3 also parameters."""
