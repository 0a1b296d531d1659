"""The common part of adapters: refuse cases that the mode of the framework does not support, build worker commands."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import ClassVar

from paceline import variables
from paceline.bench.job import CaseLaunch, rank_processes, shared_env
from paceline.bench.sites.site import Process
from paceline.catalog.frameworks import policy
from paceline.spec.cluster import Placed
from paceline.spec.network import Network, layer_costs
from paceline.spec.study import Case

__all__ = ["MpiAdapter", "PolicyAdapter", "mpi_processes", "rank_endpoint"]

RANK_PORTS = 4
"""Index of the first port of the ranks."""
IMAGE = 3
"""Axes of an image without the batch."""
FIELDS = ("aggregation", "algorithm", "transport", "overlap", "bucket", "synchrony", "servers", "shard_stage")

FEATURES = {
    "groups": "grouped convolutions",
    "even_window": "local response normalisation over an even number of channels",
    "rounded_up": "pooling that rounds its size up",
    "padded_mean": "average pooling with padding",
    "repeated_input": "a sum with one layer more than once",
    "image_rows": "a linear layer or layer normalisation over the columns of an image",
}
"""Variants of layers that some frameworks do not support, as named in refusals."""


def _features(network: Network) -> Iterator[tuple[str, str]]:
    """Each layer's name with its kind, then with each requirement beyond its kind."""
    shapes = {"input": network.input.shape}
    for layer, cost in zip(network.layers, layer_costs(network), strict=True):
        shapes[layer.name] = cost.shape
        needs = {
            "groups": layer.kind == "conv2d" and layer.groups > 1,
            "even_window": layer.kind == "local_response_norm" and layer.size % 2 == 0,
            "rounded_up": layer.kind in ("max_pool", "avg_pool") and layer.ceil,
            "padded_mean": layer.kind == "avg_pool" and any(layer.padding),
            "repeated_input": layer.kind == "add" and len(set(layer.inputs)) < len(layer.inputs),
            "image_rows": layer.kind in ("linear", "layer_norm") and len(shapes[layer.inputs[0]]) == 3,
        }
        yield layer.name, layer.kind
        yield from ((layer.name, name) for name, needed in needs.items() if needed)


class PolicyAdapter:
    """An adapter that supports its catalog policy, except for fields that a study may choose."""

    name: str
    module: ClassVar[str]
    """Module of the worker, one process per rank."""
    choices: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Fields of a strategy that a study may set, with their allowed values; an empty tuple allows any value."""
    missing: ClassVar[Mapping[str, str]] = {}
    """Kinds of layer and FEATURES of them that the framework cannot build or train, with the reason."""
    inputs: ClassVar[tuple[str, ...]] = ("image", "tokens")
    labels: ClassVar[tuple[str, ...]] = ()
    """Notes on all its numbers."""

    def environment(self, mode: str) -> str:
        """One environment for all modes."""
        return self.name

    def refusal(self, case: Case) -> str | None:
        """Why the mode does not support a case; None if it does."""
        return self._refused_network(case) or self._refused_ranks(case) or self._refused_strategy(case)

    def _refused_network(self, case: Case) -> str | None:
        if case.network.input.kind not in self.inputs:
            return f"{self.name} builds networks of images only, {case.network.name} reads {case.network.input.kind}"
        if case.input == "files" and case.network.input.kind != "image":
            return "only images are read from files"
        if len(layer_costs(case.network)[-1].shape) == IMAGE:
            last = case.network.layers[-1].name
            return f"{case.network.name} ends in an image ({last}), {self.name}'s loss reads no image: flatten it"
        layers = {name: layer for layer, name in reversed(list(_features(case.network))) if name in self.missing}
        reasons = [f"{FEATURES.get(name, f'{name} layers')} ({layers[name]}): {self.missing[name]}" for name in layers]
        return f"{case.network.name} has {'; '.join(reversed(reasons))}" if reasons else None

    def _refused_ranks(self, case: Case) -> str | None:
        if case.ranks > 1 and policy(case.framework).aggregation == "none":
            return f"{case.framework} runs on one rank: it has no data parallelism of its own"
        return None

    def _refused_strategy(self, case: Case) -> str | None:
        usual, strategy = policy(case.framework), case.strategy
        if strategy.precision not in (None, "float32", *self.choices.get("precision", ())):
            return f"{case.framework} is measured in float32, not {strategy.precision}"
        if strategy.compression not in ("none", usual.compression, *self.choices.get("compression", ())):
            return f"compression {strategy.compression!r} is not offered for {case.framework}"
        if strategy.accumulate != 1:
            return f"accumulation over {strategy.accumulate} batches is not offered for {case.framework}"
        for field in FIELDS:
            asked = getattr(strategy, field)
            if asked is None or asked == getattr(usual, field) or self._may_choose(field, asked):
                continue
            return f"{case.framework} does {field} {getattr(usual, field)!r}, not {asked!r}"
        return None

    def _may_choose(self, field: str, asked: object) -> bool:
        return field in self.choices and (not self.choices[field] or asked in self.choices[field])

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """One worker per rank."""
        return rank_processes(launch, self.module, lambda placed: self.rank_env(launch, placed))

    def rank_env(self, launch: CaseLaunch, placed: Placed) -> dict[str, str]:
        """Environment variables of the rendezvous of this framework."""
        return {}


class MpiAdapter(PolicyAdapter):
    """A framework whose ranks are all started by one mpirun."""

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """All ranks under one mpirun."""
        return mpi_processes(launch, self.module)


def rank_endpoint(launch: CaseLaunch, placed: Placed) -> str:
    """Address and port on which a rank may listen."""
    ports, host = launch.rendezvous.ports, launch.case.cluster.hosts[placed.host]
    own = ports[RANK_PORTS + placed.rank] if len(ports) > RANK_PORTS else ports[-1] + 100 + placed.local_rank
    at_first = placed.host == launch.placement[0].host
    return f"{launch.rendezvous.address if at_first else host.address or host.name}:{own}"


def mpi_processes(
    launch: CaseLaunch, module: str, *, python: str | None = None, env: Mapping[str, str] | None = None
) -> list[Process]:
    """The ranks under one mpirun, each with its own variables; a single rank runs without MPI."""
    command = (python or str(launch.python), "-m", module)
    if launch.case.ranks == 1:
        single = rank_processes(launch, module, lambda placed: dict(env or {}))
        return [dataclasses.replace(process, argv=command) for process in single]
    argv = [str(launch.python.parent / "mpirun"), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    for placed in launch.placement:
        own = {**shared_env(launch, placed), **launch.env, **(env or {})}
        pairs = [f"{name}={value}" for name, value in sorted(own.items())]
        argv += [":"] if placed.rank else []
        argv += ["-n", "1", "/usr/bin/env", "-u", variables.PARENT, *pairs, *command]
    first = launch.placement[0]
    log = launch.folder / "rank-0.log"
    return [Process(name="rank 0", rank=0, host=first.host, argv=tuple(argv), env=dict(launch.env), log=log)]
