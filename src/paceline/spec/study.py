"""A study: networks x clusters x frameworks x strategies x sizes, measured by one protocol; it expands into cases."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from paceline.errors import InputError
from paceline.spec.cluster import Cluster
from paceline.spec.fields import Count, Name, Noun
from paceline.spec.network import Network
from paceline.spec.protocol import Protocol
from paceline.spec.strategy import Strategy

__all__ = ["Case", "InputMode", "Known", "Study", "expand"]

InputMode = Literal["resident", "copied", "files"]


class Study(Noun):
    """What is asked, as the file says it; networks and clusters are catalog names or paths ending in .toml."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    """Letters, digits, dots, dashes; runs of one study are found by it."""
    title: str = ""
    """A sentence for people."""
    networks: Annotated[tuple[Name, ...], Field(min_length=1)]
    frameworks: Annotated[tuple[Name, ...], Field(min_length=1)]
    """`pytorch` for the framework's usual way to run, or `pytorch/fsdp2` to name one."""
    clusters: Annotated[tuple[Name, ...], Field(min_length=1)] = ("local",)
    devices: Annotated[tuple[Count, ...], Field(min_length=1)] = (1,)
    """Numbers of ranks, one per device."""
    batch: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Samples of a step: per device if scaling is weak, of all devices together if it is strong."""
    scaling: Literal["weak", "strong"] = "weak"
    placement: Literal["packed", "spread"] = "packed"
    """Fill host after host, or take one device of each host in turn."""
    input: Annotated[tuple[InputMode, ...], Field(min_length=1)] = ("resident",)
    """Where batches come from: already on the device, copied from host memory, or read from files."""
    strategy: tuple[Strategy, ...] = (Strategy(),)
    protocol: Protocol = Protocol()


class Case(Noun):
    """One point of a study: everything that decides how fast it is, apart from the machine's mood."""

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

    @property
    def canonical(self) -> dict[str, Any]:
        """The case as plain data that does not depend on names or on the order of fields."""
        data = self.model_dump(mode="json", exclude={"network", "strategy"})
        strategy = self.strategy.model_dump(mode="json", exclude={"name"})
        network = {"name": self.network.name, "digest": self.network.digest}
        return {**data, "network": network, "strategy": strategy}

    @property
    def id(self) -> str:
        """Hash of the canonical form: equal cases have equal ids, on every machine."""
        plain = {**self.canonical, "network": self.network.digest}
        del plain["scaling"]
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """A short name for people."""
        plural = "rank" if self.ranks == 1 else "ranks"
        named = "" if self.strategy.name == "default" else f" {self.strategy.name}"
        return f"{self.network.name} {self.framework}{named} batch {self.batch} x {self.ranks} {plural}"


@dataclass(frozen=True)
class Known:
    """What names mean: the catalog's networks, clusters and frameworks, as the loader needs them."""

    network: Callable[[str], Network]
    cluster: Callable[[str], Cluster]
    framework: Callable[[str], str]
    """The full name of a framework and its mode, or UnknownName."""
    names: Mapping[str, Collection[str]]


def expand(study: Study, known: Known) -> tuple[Case, ...]:
    """Every case of the study, each once, in the order of its lists."""
    product = itertools.product(
        study.networks, study.clusters, study.frameworks, study.strategy, study.batch, study.input, study.devices
    )
    cases = [
        Case(
            network=known.network(network),
            cluster=known.cluster(cluster),
            framework=known.framework(framework),
            strategy=strategy,
            ranks=ranks,
            batch=_per_device(study, batch, ranks),
            scaling=study.scaling,
            placement=study.placement,
            input=source,
            threads=study.protocol.threads,
        )
        for network, cluster, framework, strategy, batch, source, ranks in product
    ]
    _fits(cases)
    return tuple({case.id: case for case in cases}.values())


def _per_device(study: Study, batch: int, ranks: int) -> int:
    if study.scaling == "weak":
        return batch
    if batch % ranks:
        raise InputError(f"a global batch of {batch} does not split evenly over {ranks} devices")
    return batch // ranks


def _fits(cases: list[Case]) -> None:
    for case in cases:
        if case.ranks > case.cluster.num_devices:
            have = case.cluster.num_devices
            raise InputError(
                f"{case.ranks} devices asked, cluster {case.cluster.name!r} has {have}",
                hint=f"lower `devices` to at most {have}, or name a larger cluster",
            )
