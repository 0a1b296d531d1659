"""Framework records: the default overlap, fusion and aggregation of each mode.

On one rank every mode is the plain single-process loop without aggregation. Other distributions offer frameworks as
entry points of the group `paceline.frameworks`, such as `plain = "paceline_plain.plugin:framework"`; the record of
`plain` is then the file `plain.toml` in the package `paceline_plain`. Records are read without importing anything.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from paceline.errors import InputError, PluginError, UnknownName, nearest
from paceline.spec.fields import Bytes, Count, Name, Seconds, SpecModel
from paceline.spec.load import load_spec
from paceline.spec.strategy import Strategy

__all__ = [
    "FrameworkRecord",
    "PluginEntry",
    "Policy",
    "framework",
    "framework_names",
    "framework_record",
    "is_built_in",
    "plugin_entries",
    "plugin_entry",
    "policy",
    "record_names",
    "resolve",
]

FOLDER = Path(__file__).parent
GROUP = "paceline.frameworks"


class Policy(SpecModel):
    """The defaults of one mode of a framework for gradients and input."""

    aggregation: Literal["none", "allreduce", "parameter_server", "sharded"]
    """Gradients on every rank, on servers, or sharded over the ranks; `none`: one rank only."""
    algorithm: (
        Literal["ring", "halving_doubling", "recursive_doubling", "tree", "double_tree", "hierarchical"] | None
    ) = None
    """Algorithm of the collective; absent if the transport chooses by size and topology."""
    transport: Literal["gloo", "nccl", "mpi", "grpc", "zmq"] | None = None
    """Transport on processors without accelerator, which Paceline tries first."""
    gpu_transport: Literal["gloo", "nccl", "mpi", "grpc", "zmq"] = "nccl"
    """Transport between GPUs; a strategy that names a transport means both."""
    overlap: bool = False
    """Whether gradients are exchanged during the backward pass."""
    fusion: Literal["tensor", "layer", "module", "bytes", "all", "optimal"]
    """The unit of exchange: one tensor, one layer, one wrapped module, up to `bucket` bytes, everything, or the
    buckets that end earliest."""
    bucket: Bytes | None = None
    """Size up to which gradients are fused; given exactly if fusion is `bytes`."""
    first_bucket: Bytes | None = None
    """Size of the bucket that is ready first, if it differs."""
    order: Literal["reverse", "ready", "priority"] = "reverse"
    """Order in which gradients are sent: reverse declaration order, order of readiness, or input layers first."""
    cycle: Seconds | None = None
    """Interval at which a background thread checks for ready gradients."""
    synchrony: Literal["synchronous", "asynchronous"] = "synchronous"
    compression: Literal["none", "float16", "powersgd", "1bit"] = "none"
    block_samples: Count | None = None
    """Samples that each rank trains between two exchanges of the model; by default one step."""
    servers: Annotated[int, Field(ge=0)] | None = None
    """Number of parameter servers; 0 means one on every worker."""
    shard_stage: Annotated[int, Field(ge=0, le=3)] | None = None
    """ZeRO stage: 1 optimizer state, 2 also gradients, 3 also parameters."""
    precision: Literal[
        "float64", "float32", "tf32", "float16", "bfloat16", "amp", "tf32_convolutions", "tf32_everywhere"
    ] = "float32"
    """Precision of compute unless a strategy states one; `tf32_convolutions` and `tf32_everywhere` mean TF32 on devices
    that have it (for convolutions alone, or for matrix products as well), and float32 on others."""
    precision_source: str = ""
    """The document that states this default."""
    input_overlap: bool
    """Whether the next batch is read during the current step."""
    version: Name
    """Version of the framework to which these defaults apply."""
    source: Name
    """The document that states the defaults."""
    note: str = ""
    """Further notes."""

    @property
    def nccl_on_gpus(self) -> bool:
        """Whether NCCL exchanges gradients between GPUs."""
        return self.gpu_transport == "nccl" and self.aggregation != "parameter_server"

    @model_validator(mode="after")
    def _bucket(self) -> Policy:
        if (self.fusion == "bytes") != (self.bucket is not None):
            raise ValueError("bucket must be given exactly if fusion is 'bytes'")
        return self


class FrameworkRecord(SpecModel):
    """A framework and its modes."""

    name: Name
    title: Name
    about: Name
    """One-sentence description."""
    default: Name
    """The mode that the name of the framework alone selects."""
    mode: Annotated[dict[Name, Policy], Field(min_length=1)]

    @model_validator(mode="after")
    def _default_exists(self) -> FrameworkRecord:
        if self.default not in self.mode:
            raise ValueError(f"default {self.default!r} is none of its modes {', '.join(self.mode)}")
        return self


@cache
def _records() -> dict[str, FrameworkRecord]:
    """Every record: those of this package, then those of other distributions; a broken one is left out."""
    records = _built_in_records()
    for name in plugin_entries():
        with contextlib.suppress(PluginError):
            records.setdefault(name, _plugin_record(name))
    return records


def _built_in_records() -> dict[str, FrameworkRecord]:
    records = [load_spec(path, FrameworkRecord) for path in sorted(FOLDER.glob("*.toml"))]
    return {record.name: record for record in records}


def _plugin_record(name: str) -> FrameworkRecord:
    entry = plugin_entry(name, built_in=is_built_in(name))
    if entry is None:
        modes = sorted(known for known in framework_names() if known.partition("/")[2].startswith(name.lower()))
        meant = (
            f"a mode is named with its framework: {', '.join(modes)}"
            if name and modes and not nearest(name, _records())
            else ""
        )
        raise UnknownName("framework", name, [] if meant else _records(), otherwise=meant)
    try:
        record = load_spec(entry.record_path, FrameworkRecord)
    except InputError as error:
        raise entry.broken(f"its record is wrong: {error}", hint=f"correct {name}.toml in the package") from error
    if record.name != name:
        raise entry.broken(f"its record is called {record.name!r}", hint=f"write name = {name!r} in {name}.toml")
    return record


def is_built_in(name: str) -> bool:
    """Whether a framework belongs to Paceline itself."""
    return f"{name}.toml" in {
        path.name for path in FOLDER.iterdir()
    }  # any text is a name, also one too long for a file


def framework_names() -> tuple[str, ...]:
    """Names of all frameworks with their modes, as `framework` returns them."""
    return tuple(f"{record.name}/{mode}" for record in _records().values() for mode in record.mode)


def record_names() -> tuple[str, ...]:
    """Names of all frameworks, without modes."""
    return tuple(_records())


def framework_record(name: str) -> FrameworkRecord:
    """The record of a framework; the name has no mode."""
    return _records()[name] if name in _records() else _plugin_record(name)


def framework(name: str) -> str:
    """The full name: `pytorch` becomes `pytorch/ddp`, `pytorch/fsdp2` is unchanged, another name raises UnknownName."""
    short, slash, mode = name.partition("/")
    record = framework_record(short)
    if not slash:
        return f"{short}/{record.default}"
    if mode not in record.mode:
        raise UnknownName("framework", name, [f"{short}/{known}" for known in record.mode])
    return name


def policy(name: str) -> Policy:
    """The default policy of a framework and mode."""
    short, _, mode = framework(name).partition("/")
    return framework_record(short).mode[mode]


def resolve(name: str, strategy: Strategy) -> Policy:
    """The policy of a strategy: its own fields, else the defaults of the framework."""
    default = policy(name)
    fields = ("aggregation", "algorithm", "transport", "overlap", "synchrony", "servers", "shard_stage", "precision")
    changes: dict[str, Any] = {field: value for field in fields if (value := getattr(strategy, field)) is not None}
    if strategy.transport is not None:
        changes["gpu_transport"] = strategy.transport
    if strategy.compression != "none":
        changes["compression"] = strategy.compression
    if strategy.bucket is not None:
        fused = strategy.bucket > 0
        changes |= {"fusion": "bytes" if fused else "tensor", "bucket": strategy.bucket if fused else None}
        changes["first_bucket"] = None
    return default.model_copy(update=changes)


@dataclass(frozen=True)
class PluginEntry:
    """One framework that a distribution offers."""

    name: str
    distribution: str
    """Name and version."""
    point: EntryPoint

    @property
    def package(self) -> Path:
        """The folder of the top-level package, which holds the record and the worker."""
        top = self.point.module.partition(".")[0]
        spec = importlib.util.find_spec(top)
        if spec is None or not spec.submodule_search_locations:
            raise self.broken(f"package {top!r} is missing", hint=f"reinstall {self.distribution}")
        return Path(next(iter(spec.submodule_search_locations)))

    @property
    def record_path(self) -> Path:
        """The file of the record."""
        path = self.package / f"{self.name}.toml"
        if not path.is_file():
            raise self.broken(f"its record {path} is missing", hint=f"ship {path.name} as data of the package")
        return path

    def broken(self, reason: str, *, hint: str) -> PluginError:
        """The error that names the distribution."""
        return PluginError(f"framework {self.name!r} of distribution {self.distribution}: {reason}", hint=hint)


@cache
def plugin_entries() -> dict[str, tuple[PluginEntry, ...]]:
    """Everything that is offered, by name; a name with several entries cannot be used."""
    offered: dict[str, list[PluginEntry]] = defaultdict(list)
    for point in entry_points(group=GROUP):
        distribution = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "unknown"
        offered[point.name].append(PluginEntry(point.name, distribution, point))
    return {name: tuple(entries) for name, entries in sorted(offered.items())}


def plugin_entry(name: str, *, built_in: bool) -> PluginEntry | None:
    """The entry of a name, none if no distribution offers it; a clash of names is an error."""
    entries = plugin_entries().get(name, ())
    if not entries:
        return None
    sources = [*(["Paceline itself"] if built_in else []), *(entry.distribution for entry in entries)]
    if len(sources) > 1:
        raise PluginError(
            f"framework {name!r} is offered by {' and by '.join(sources)}",
            hint=f"uninstall one of them: pip uninstall {entries[-1].distribution.split()[0]}",
        )
    return entries[0]
