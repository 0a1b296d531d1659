"""Stored runs of known content, written through the real store: what explanations are checked against."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.catalog import shipped_catalog
from paceline.measurements.run import Machine, Run, RunData, Span, Step
from paceline.measurements.store import Store
from paceline.spec.cluster import Cluster, Device, Host, Link
from paceline.spec.strategy import Strategy
from paceline.spec.study import Case

LINK = Link(name="ethernet", bandwidth=125e6, latency=1e-4)


def cluster(hosts: int = 4, name: str = "made", *, one_host: bool = False) -> Cluster:
    device = Device(name="accelerator")
    if one_host:
        return Cluster(name=name, hosts=(Host(name="node", devices=(device,) * hosts, inside=LINK, link=LINK),))
    return Cluster(
        name=name,
        hosts=tuple(Host(name=f"node{n}", devices=(device,), inside=LINK, link=LINK) for n in range(hosts)),
    )


@dataclass(frozen=True)
class Made:
    """One case: seconds of each part of its step, and what was asked."""

    ranks: int = 2
    batch: int = 32
    forward: float = 0.04
    backward: float = 0.08
    aggregate: float = 0.0
    update: float = 0.0
    h2d: float = 0.0
    io: float = 0.0
    strategy: dict[str, Any] = field(default_factory=dict)
    rank_factors: tuple[float, ...] = ()
    """How much slower each rank computes."""
    network: str = "lenet"
    shown_network: str = ""
    framework: str = "pytorch/ddp"
    input: str = "resident"
    launches: int = 3
    gradients: int = 20
    before_first_layer: float = 0.0
    host: str = "here"
    threads: int = 1
    cores: int = 2
    steps: int = 6
    one_host: bool = False
    aggregate_by_launch: tuple[float, ...] = ()
    """Seconds of exposed exchange in each launch, where they differ."""
    traced: bool = True
    """Whether layers and gradients have spans."""
    alone_factor: float = 1.0
    """How much longer forward and backward take in a pass without the rest of the step."""
    exchanges: tuple[tuple[float, float], ...] = ()
    """Start and seconds of traced exchanges, after the start of the step."""
    probes: tuple[float, ...] = ()
    """Seconds of the probe before each launch."""
    catalog_cluster: str = ""
    """A cluster of the catalog to run on, rather than devices of unknown rates."""


def write(
    root: Path,
    cases: list[Made],
    *,
    study: str = "made",
    campaign: str = "made-1",
    title: str = "",
    started_at: str = "2026-01-02T03:04:05.000+00:00",
) -> Store:
    store = Store(root)
    for number, made in enumerate(cases):
        case = _case(made)
        for launch in range(made.launches):
            name = f"{campaign}-{number:04d}-{launch:03d}"
            store.write(RunData(_run(made, case, name, launch, study, campaign), _steps(made, launch), _spans(made)))
    store.write_campaign(
        campaign,
        {
            "campaign": campaign,
            "study": study,
            "title": title,
            "started_at": started_at,
            "launcher": "local",
            "text": f"name = {study!r}\n",
            "digest": "0",
            "cases": [],
        },
    )
    return store


def _case(made: Made) -> Case:
    return Case(
        network=shipped_catalog().network(made.network),
        cluster=shipped_catalog().cluster(made.catalog_cluster)
        if made.catalog_cluster
        else cluster(max(4, made.ranks), one_host=made.one_host),
        framework=made.framework,
        strategy=Strategy.model_validate(made.strategy),
        ranks=made.ranks,
        batch=made.batch,
        scaling="weak",
        placement="packed",
        input=made.input,  # type: ignore[arg-type]
        threads=None,
    )


def _run(made: Made, case: Case, name: str, launch: int, study: str, campaign: str) -> Run:
    return Run(
        id=name,
        campaign=campaign,
        study=study,
        case_id=case.id,
        case=case.canonical,
        network=made.shown_network or made.network,
        framework=made.framework,
        strategy=case.strategy.name,
        cluster=case.cluster.name,
        ranks=made.ranks,
        batch=made.batch,
        scaling="weak",
        input=made.input,
        launch=launch,
        started_at=f"2026-01-02T03:04:{launch:02d}.000+00:00",
        seconds=1.0,
        outcome="ok",
        machine=Machine(
            host=made.host,
            cpu="made",
            cores=made.cores,
            memory_bytes=2**30,
            os="Linux",
            kernel="6",
            python="3.11",
            paceline="0.1.0",
            versions={"torch": "2.13.0"},
            threads=made.threads,
        ),
        warmup={"clean": 3},
        probe_s=made.probes[launch] if made.probes else None,
    )


def _passes(made: Made, factor: float) -> dict[str, float]:
    """Seconds of each pass of a rank that computes this much slower than stated."""
    slowest = max(made.rank_factors, default=1.0)
    forward, compute = made.forward * factor, (made.forward + made.backward) * factor
    exchange = (made.forward + made.backward) * slowest + made.aggregate
    passes = {"forward": forward, "compute": compute}
    if made.ranks > 1:
        passes["exchange"] = exchange
    resident = (exchange if made.ranks > 1 else compute) + made.update
    passes["resident"] = resident
    if made.input != "resident":
        passes["copied"] = resident + made.h2d
    if made.input == "files":
        passes["full"] = resident + made.h2d + made.io
    clean = max(passes.values())
    stretched = {name: made.alone_factor * passes[name] for name in ("forward", "compute")}
    return {**passes, **stretched, "clean": clean}


def _steps(made: Made, launch: int) -> tuple[Step, ...]:
    steps = []
    if made.aggregate_by_launch:
        made = replace(made, aggregate=made.aggregate_by_launch[launch])
    for rank in range(made.ranks):
        factor = made.rank_factors[rank] if made.rank_factors else 1.0
        for name, seconds in _passes(made, factor).items():
            noise = 1 + 0.001 * launch
            steps += [Step(name, rank, n, False, n * seconds, seconds * noise) for n in range(made.steps)]
    return tuple(steps)


def _spans(made: Made) -> tuple[Span, ...]:
    """Two traced steps of every rank, alike."""
    spans = []
    for rank, step in itertools.product(range(made.ranks if made.traced else 0), range(2)):
        spans += [Span(rank, step, "aggregate", "bucket", at, seconds, 1000) for at, seconds in made.exchanges]
        at = made.before_first_layer
        for layer in range(made.gradients):
            seconds = made.forward / made.gradients
            spans.append(Span(rank, step, "forward", f"layer{layer}", at, seconds, 1000))
            at += seconds
        for layer in reversed(range(made.gradients)):
            seconds = made.backward / made.gradients
            spans.append(Span(rank, step, "backward", f"layer{layer}.weight", at, seconds, 50_000))
            at += seconds
    return tuple(spans)
