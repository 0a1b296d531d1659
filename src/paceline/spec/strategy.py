"""How gradients are aggregated. A missing field means the default of the framework."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paceline.spec.fields import Bytes, Count, Name, Noun

__all__ = ["Strategy"]


class Strategy(Noun):
    """Aggregation of gradients: algorithm, overlap, fusion, precision, synchrony."""

    name: Name = "default"
    """A label for tables; it does not change the run."""
    aggregation: Literal["none", "allreduce", "parameter_server", "sharded"] | None = None
    """Gradients on every rank, on servers, or sharded over the ranks (FSDP, ZeRO); `none`: no exchange."""
    algorithm: (
        Literal["ring", "halving_doubling", "recursive_doubling", "tree", "double_tree", "hierarchical"] | None
    ) = None
    """Algorithm of the collective."""
    transport: Literal["gloo", "nccl", "mpi", "grpc", "zmq"] | None = None
    """Communication library."""
    overlap: bool | None = None
    """Whether gradients are exchanged during the backward pass (wait-free back-propagation)."""
    bucket: Bytes | None = None
    """Size up to which gradients are fused into one message; 0 sends each gradient separately."""
    precision: Literal["float64", "float32", "float16", "bfloat16"] = "float32"
    """Precision of compute and of the exchanged gradients."""
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
