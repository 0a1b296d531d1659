"""A study: networks x clusters x frameworks x strategies x sizes, measured by one protocol; it expands into cases."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from paceline.errors import InputError
from paceline.spec.cluster import Cluster
from paceline.spec.fields import Count, Label, Name, Seconds, SpecModel
from paceline.spec.network import Network
from paceline.spec.strategy import Strategy
from paceline.units import format_count

__all__ = [
    "Case",
    "Catalog",
    "Conflict",
    "InputMode",
    "Protocol",
    "Script",
    "Study",
    "case_label",
    "conflicts",
    "expand",
]

MAX_CASES = 100_000
"""A study with more cases is refused as a probable mistake."""

InputMode = Literal["resident", "copied", "files"]


class Protocol(SpecModel):
    """The measurement protocol of a study. Launches are independent samples; steps within a launch are correlated."""

    launches: Count = 5
    """Minimum number of launches of a case."""
    max_launches: Count = 20
    """Maximum number of launches of a case, even if its interval is still wider than `width`."""
    warmup: Annotated[int, Field(ge=1)] = 10
    """Minimum number of warm-up steps; warm-up continues until step times have no trend and are within `width` / 2."""
    steps: Count = 100
    """Timed steps of the clean pass of a launch."""
    launch_budget: Seconds = 20.0
    """Time limit of everything that a launch measures: warm-up (at most half of it), the clean pass and the passes of
    phases. At the limit a launch ends with fewer steps: at least `warmup`, 5 of the clean pass, 2 of each other."""
    width: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Full relative width of the throughput's confidence interval at which a case stops; drift beyond it, and a trend
    of half of it at the end of warm-up, are not accepted."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """Confidence level of intervals."""
    phases: bool = True
    """Whether to run the instrumented passes, which divide the step into phases."""
    phase_steps: Count = 20
    """Timed steps of each instrumented pass of a launch."""
    budget: Seconds | None = None
    """Time limit of the whole study; cases stop early at the limit, and the results say so."""
    timeout: Seconds = 600.0
    """Time limit of a launch; a launch that takes longer is stopped and stored as a failure."""
    threads: Count | None = None
    """Compute threads of each rank; by default the cores of the host, divided evenly."""
    seed: int = 0
    """Random seed of the weights and the data."""

    @model_validator(mode="after")
    def _order(self) -> Protocol:
        if self.max_launches < self.launches:
            raise ValueError(f"max_launches {self.max_launches} is below launches {self.launches}")
        return self


class Script(SpecModel):
    """A user's training command and how to extract the speed from its output."""

    command: Annotated[tuple[str, ...], Field(min_length=1)]
    """Program and arguments; `{ranks}`, `{batch}`, `{threads}`, `{python}`, `{bin}` and `{here}` are substituted."""
    pattern: str | None = None
    """Regular expression with a group `throughput` (samples/s of all ranks), `per_rank` (samples/s of one) or
    `seconds` (of a step); each match is one measurement. By default, lines of Paceline's own format."""
    environment: Name | None = None
    """The framework environment whose interpreter and programs replace `{python}` and `{bin}`."""


class Study(SpecModel):
    """The content of a study file; networks and clusters are catalog names or paths that end in .toml."""

    name: Label
    """Letters, digits, dots, dashes; commands select the runs of a study by its name."""
    title: str = ""
    """Description for reports."""
    networks: Annotated[tuple[Name, ...], Field(min_length=1)]
    """`paceline networks` lists them; a path is relative to the study's file."""
    frameworks: Annotated[tuple[Name, ...], Field(min_length=1)]
    """`pytorch` for the default mode of the framework, or `pytorch/fsdp2` for another mode."""
    clusters: Annotated[tuple[Name, ...], Field(min_length=1)] = ("local",)
    """`paceline catalog clusters` lists them; a path is relative to the study's file."""
    devices: Annotated[tuple[Count, ...], Field(min_length=1)] = (1,)
    """Numbers of ranks, one per device."""
    batch: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Samples per step: per device if scaling is weak, of all devices if scaling is strong."""
    scaling: Literal["weak", "strong"] = "weak"
    """Whether the batch grows with the number of devices or is divided among them."""
    placement: Literal["packed", "spread"] = "packed"
    """Fill host after host, or distribute ranks over the hosts round robin."""
    input: Annotated[tuple[InputMode, ...], Field(min_length=1)] = ("resident",)
    """Source of the batches: already on the device, copied from host memory, or read from files."""
    strategy: Annotated[tuple[Strategy, ...], Field(min_length=1)] = (Strategy(),)
    """Aggregation strategies to compare."""
    script: Script | None = None
    """Command of the framework `script`."""
    protocol: Protocol = Protocol()
    """Measurement protocol of every case."""


class Case(SpecModel):
    """One point of a study: all parameters that determine its speed on a given machine."""

    network: Network
    cluster: Cluster
    framework: Name
    strategy: Strategy
    ranks: Count
    batch: Count
    """Samples per device and step."""
    scaling: Literal["weak", "strong"]
    placement: Literal["packed", "spread"]
    input: InputMode
    threads: Count | None
    script: Script | None = None
    """Command of the framework `script`."""

    @property
    def canonical(self) -> dict[str, Any]:
        """The case as plain data that does not depend on names or on the order of fields."""
        data = self.model_dump(mode="json", exclude={"network", "strategy", *([] if self.script else ["script"])})
        for host in data["cluster"]["hosts"]:
            for device in host["devices"]:
                del device["power"]  # it costs money, not time
        strategy = self.strategy.model_dump(mode="json", exclude={"name"})
        if self.strategy.precision is None and not self.has_tf32:
            strategy["precision"] = "float32"
        network = {"name": self.network.name, "digest": self.network.digest}
        return {**data, "network": network, "strategy": strategy}

    @property
    def has_tf32(self) -> bool:
        """Whether some device computes float32 in TF32 where a framework's default allows it."""
        return any("tf32" in device.peak for host in self.cluster.hosts for device in host.devices)

    @property
    def id(self) -> str:
        """Hash of the canonical form: equal cases have equal ids, on every machine."""
        plain = {**self.canonical, "network": self.network.digest}
        del plain["scaling"]
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """A short label for tables, see `case_label`."""
        named = "" if self.strategy.name == "default" else f" {self.strategy.name}"
        return case_label(self.network.name, self.framework + named, self.batch, self.ranks, self.cluster.name)


def case_label(network: str, framework: str, batch: int, ranks: int, cluster: str) -> str:
    """The label of a case; `framework` includes the name of the strategy; the local cluster is not named."""
    where = "" if cluster == "local" else f", {cluster}"
    return f"{network} {framework}, batch {batch} x {format_count(ranks, 'rank')}{where}"


@dataclass(frozen=True)
class Catalog:
    """Lookup of the names in a study: networks, clusters, frameworks."""

    network: Callable[[str], Network]
    cluster: Callable[[str], Cluster]
    framework: Callable[[str], str]
    """The full name of a framework and its mode, or UnknownName."""
    names: Mapping[str, Collection[str]]


@dataclass(frozen=True)
class Conflict:
    """A field of a study whose value is valid alone but conflicts with other fields."""

    field: str
    given: str
    expected: str
    hint: str | None = None


def conflicts(study: Study, catalog: Catalog) -> tuple[Conflict, ...]:
    """The conflicts that prevent the expansion of a study."""
    lists = (study.networks, study.clusters, study.frameworks, study.strategy, study.batch, study.input, study.devices)
    total = math.prod(len(values) for values in lists)
    if total > MAX_CASES:
        return (Conflict("devices", f"lists that make {total} cases", f"at most {MAX_CASES}", "split the study"),)
    return (*_too_few_devices(study, catalog), *_uneven_batches(study))


def _too_few_devices(study: Study, catalog: Catalog) -> list[Conflict]:
    too_few = []
    for name in study.clusters:
        have = catalog.cluster(name).num_devices
        if max(study.devices) > have:
            expected = f"at most {have}, which cluster {name!r} has"
            too_few.append(Conflict("devices", str(max(study.devices)), expected, "or name a larger cluster"))
    return too_few


def _uneven_batches(study: Study) -> list[Conflict]:
    if study.scaling == "weak":
        return []
    pairs = itertools.product(study.batch, study.devices)
    uneven = [(batch, ranks) for batch, ranks in pairs if batch % ranks]
    return [
        Conflict("batch", str(batch), f"a multiple of {ranks} devices", "strong scaling splits the batch evenly")
        for batch, ranks in uneven[:10]
    ]


def expand(study: Study, catalog: Catalog) -> tuple[Case, ...]:
    """All cases of the study without duplicates, in the order of its lists."""
    for conflict in conflicts(study, catalog):
        raise InputError(f"{conflict.field}: got {conflict.given}, expected {conflict.expected}", hint=conflict.hint)
    cases = [
        first.model_copy(
            update={"strategy": strategy, "batch": _per_device(study, batch, ranks), "input": source, "ranks": ranks}
        )
        for first in _first_cases(study, catalog)
        for strategy, batch, source, ranks in itertools.product(study.strategy, study.batch, study.input, study.devices)
    ]
    return tuple({case.id: case for case in cases}.values())


def _first_cases(study: Study, catalog: Catalog) -> list[Case]:
    """One case for each network, cluster and framework; the others differ from it in values that are checked."""
    return [
        Case(
            network=catalog.network(network),
            cluster=catalog.cluster(cluster),
            framework=catalog.framework(framework),
            strategy=study.strategy[0],
            ranks=study.devices[0],
            batch=study.batch[0],
            scaling=study.scaling,
            placement=study.placement,
            input=study.input[0],
            threads=study.protocol.threads,
            script=study.script if framework.split("/")[0] == "script" else None,
        )
        for network, cluster, framework in itertools.product(study.networks, study.clusters, study.frameworks)
    ]


def _per_device(study: Study, batch: int, ranks: int) -> int:
    return batch if study.scaling == "weak" else batch // ranks
