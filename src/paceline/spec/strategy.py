"""How gradients are aggregated. A field that is not given means: what the framework does by default."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paceline.spec.fields import Bytes, Count, Name, Noun

__all__ = ["Strategy"]


class Strategy(Noun):
    """Aggregation of gradients: algorithm, overlap, fusion, precision, synchrony."""

    name: Name = "default"
    """A label for tables; it does not change what runs."""
    aggregation: Literal["none", "allreduce", "parameter_server", "sharded"] | None = None
    """Whole gradients on every rank, on servers, or sharded over the ranks (FSDP, ZeRO); `none`: each by itself."""
    algorithm: (
        Literal["ring", "halving_doubling", "recursive_doubling", "tree", "double_tree", "hierarchical"] | None
    ) = None
    """How the collective moves data; see the explanation of its cost."""
    transport: Literal["gloo", "nccl", "mpi", "grpc", "zmq"] | None = None
    """The library that carries the messages."""
    overlap: bool | None = None
    """Exchange gradients while the backward pass still runs (wait-free back-propagation)."""
    bucket: Bytes | None = None
    """Gradients are fused up to this size before they are exchanged; 0 exchanges each by itself."""
    precision: Literal["float64", "float32", "float16", "bfloat16"] = "float32"
    """Precision of compute and of the exchanged gradients."""
    compression: Literal["none", "float16", "powersgd", "1bit"] = "none"
    """What is done to gradients before they are exchanged."""
    synchrony: Literal["synchronous", "asynchronous"] | None = None
    """Whether every rank waits for the gradients of all others before it updates."""
    accumulate: Count = 1
    """Batches whose gradients are summed before one exchange."""
    servers: Annotated[int, Field(ge=0)] | None = None
    """Parameter servers; 0 means one on every worker."""
    shard_stage: Annotated[int, Field(ge=0, le=3)] | None = None
    """ZeRO stage: 1 optimiser state, 2 also gradients, 3 also parameters."""
