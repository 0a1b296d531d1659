"""Frameworks as small records: what each mode overlaps, fuses, and where it aggregates, unless told otherwise.

One rank of any mode is the plain single-process loop: no aggregation, whatever the policy says.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from paceline.errors import UnknownName
from paceline.spec.fields import Bytes, Count, Name, Noun, Seconds
from paceline.spec.load import load_noun
from paceline.spec.strategy import Strategy

__all__ = [
    "FrameworkRecord",
    "Policy",
    "framework",
    "framework_names",
    "framework_record",
    "policy",
    "record_names",
    "resolve",
]

FOLDER = Path(__file__).parent


class Policy(Noun):
    """What one way of running a framework does by default with its gradients and its input."""

    aggregation: Literal["none", "allreduce", "parameter_server", "sharded"]
    """Whole gradients on every rank, on servers, or sharded over the ranks; `none`: it runs on one rank only."""
    algorithm: (
        Literal["ring", "halving_doubling", "recursive_doubling", "tree", "double_tree", "hierarchical"] | None
    ) = None
    """Algorithm of the collective; absent if the transport chooses by size and topology."""
    transport: Literal["gloo", "nccl", "mpi", "grpc", "zmq"] | None = None
    """Transport on processors without accelerator, where Paceline runs it first."""
    overlap: bool = False
    """Gradients are exchanged while the backward pass still runs."""
    fusion: Literal["tensor", "layer", "module", "bytes", "all", "optimal"]
    """What is exchanged at once: one tensor, one layer, one wrapped module, up to `bucket` bytes, everything, or the
    buckets that end earliest."""
    bucket: Bytes | None = None
    """Size up to which gradients are fused; given exactly if fusion is `bytes`."""
    first_bucket: Bytes | None = None
    """Size of the bucket that is ready first, if it differs."""
    order: Literal["reverse", "ready", "priority"] = "reverse"
    """Gradients leave in reverse order of declaration, as they become ready, or input layers first."""
    cycle: Seconds | None = None
    """A background thread looks for ready gradients this often."""
    synchrony: Literal["synchronous", "asynchronous"] = "synchronous"
    compression: Literal["none", "float16", "powersgd", "1bit"] = "none"
    block_samples: Count | None = None
    """Samples each rank trains by itself between two exchanges of the model; absent: it exchanges every step."""
    servers: Annotated[int, Field(ge=0)] | None = None
    """Parameter servers; 0 means one beside every worker."""
    shard_stage: Annotated[int, Field(ge=0, le=3)] | None = None
    """ZeRO stage: 1 optimiser state, 2 also gradients, 3 also parameters."""
    input_overlap: bool
    """The next batch is read while this one trains."""
    version: Name
    """Version of the framework whose defaults these are."""
    source: Name
    """Where the defaults are stated."""
    note: str = ""
    """What the fields cannot say."""

    @model_validator(mode="after")
    def _bucket(self) -> Policy:
        if (self.fusion == "bytes") != (self.bucket is not None):
            raise ValueError("bucket must be given exactly if fusion is 'bytes'")
        return self


class FrameworkRecord(Noun):
    """A framework and the ways to run it."""

    name: Name
    title: Name
    about: Name
    """One sentence for people who have not met it."""
    default: Name
    """The mode that its bare name means."""
    mode: Annotated[dict[Name, Policy], Field(min_length=1)]

    @model_validator(mode="after")
    def _default_exists(self) -> FrameworkRecord:
        if self.default not in self.mode:
            raise ValueError(f"default {self.default!r} is none of its modes {', '.join(self.mode)}")
        return self


@cache
def _records() -> dict[str, FrameworkRecord]:
    found = [load_noun(path, FrameworkRecord) for path in sorted(FOLDER.glob("*.toml"))]
    return {record.name: record for record in found}


def framework_names() -> tuple[str, ...]:
    """Every framework with its mode, as `framework` returns it."""
    return tuple(f"{record.name}/{mode}" for record in _records().values() for mode in record.mode)


def record_names() -> tuple[str, ...]:
    """Every framework, without modes."""
    return tuple(_records())


def framework_record(name: str) -> FrameworkRecord:
    """The record of a framework, without mode."""
    if name not in _records():
        raise UnknownName("framework", name, _records())
    return _records()[name]


def framework(name: str) -> str:
    """The full name: `pytorch` becomes `pytorch/ddp`, `pytorch/fsdp2` stays, a wrong one is UnknownName."""
    short, slash, mode = name.partition("/")
    record = framework_record(short)
    if not slash:
        return f"{short}/{record.default}"
    if mode not in record.mode:
        raise UnknownName("framework", name, [f"{short}/{known}" for known in record.mode])
    return name


def policy(name: str) -> Policy:
    """What this framework and mode do by default."""
    short, _, mode = framework(name).partition("/")
    return framework_record(short).mode[mode]


def resolve(name: str, strategy: Strategy) -> Policy:
    """The policy that applies: what the strategy asks for, else the framework's default."""
    default = policy(name)
    fields = ("aggregation", "algorithm", "transport", "overlap", "synchrony", "servers", "shard_stage")
    asked: dict[str, Any] = {field: value for field in fields if (value := getattr(strategy, field)) is not None}
    if strategy.compression != "none":
        asked["compression"] = strategy.compression
    if strategy.bucket is not None:
        fused = strategy.bucket > 0
        asked |= {"fusion": "bytes" if fused else "tensor", "bucket": strategy.bucket if fused else None}
        asked["first_bucket"] = None
    return default.model_copy(update=asked)
