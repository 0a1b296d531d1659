"""One rule per cause: each derives a finding from the evidence of a case, or None.

Each rule predicts the step without its cause, for each launch, so that the gain has an interval over launches. Rules
about the exchange use the model to price the same gradients under a change (see `exchange`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from paceline.cost.collective import bus_factor
from paceline.explain.cases.evidence import CaseEvidence
from paceline.explain.cases.exchange import FASTEST_PER_BYTE, GradientExchange
from paceline.explain.cases.stragglers import find_stragglers
from paceline.explain.findings import Change, Finding, Trial, exchange_gain, gain_of, weighty_exchange
from paceline.measurements.summary import amount_interval, phases_of
from paceline.units import BANDWIDTH, BYTES, SECONDS, format_share

__all__ = ["RULES", "Rule", "make"]

Rule = Callable[[CaseEvidence], Finding | None]

LINK_FACTOR = 10.0
"""Factor by which 'a faster link' is faster."""


def make(measured: CaseEvidence, cause: str, title: str, **rest: Any) -> Finding:
    """Make a finding of this case."""
    return Finding(cause, title, case_id=measured.run.case_id, case=measured.label, **rest)


def slow_rank(evidence: CaseEvidence) -> Finding | None:
    """One rank computes longer than the other ranks, which wait for it."""
    stragglers = find_stragglers(evidence)
    if not stragglers:
        return None
    worst = stragglers[0]
    return make(
        evidence,
        "slow_rank",
        f"Rank {worst.rank} on {worst.host} holds up the others",
        evidence=(
            f"its compute alone takes {worst.slower:.2f} x that of the median rank, mostly in {worst.phase}",
            f"it was the slowest in {format_share(worst.share_slowest)} of the steps ({worst.kind})",
            f"{SECONDS.format(worst.cost_s.value)} a step, {SECONDS.format(worst.cost_per_day_s)} of every day",
        ),
        gain=gain_of(evidence, worst.cost_s),
        change=Change("machine", _for_straggler(evidence, worst.kind)),
    )


def _for_straggler(evidence: CaseEvidence, kind: str) -> str:
    """The advice for a slow rank: replacing the host helps only if the other ranks are on other hosts."""
    unequal = len({item.device.model_dump_json() for item in evidence.placed}) > 1
    if len({item.host for item in evidence.placed}) == 1:
        return "look at what else runs on its core (`top -H`, `paceline doctor`), and pin each rank to cores of its own"
    if unequal:
        return "give it a smaller part of the batch (`paceline plan`), or replace it by one like the others"
    if kind == "transient":
        return "look at what else runs on its host now and then: daemons, backups, other jobs"
    return "look at what else runs on its host, or replace it by one like the others"


def no_overlap(evidence: CaseEvidence) -> Finding | None:
    """Gradients are exchanged after the backward pass although they could be exchanged during it."""
    exchange = weighty_exchange(evidence)
    if exchange is None or exchange.overlap or exchange.contended:
        return None
    better = _overlapped(exchange)
    more = {} if better.num_exchanges == exchange.num_exchanges else {"bucket": round(better.bucket_limit)}
    return make(
        evidence,
        "no_overlap",
        "Gradients are exchanged only after the backward pass",
        evidence=(
            *_exchange_facts(evidence, exchange),
            f"with overlap the model leaves {SECONDS.format(better.exposed)} of it exposed",
        ),
        gain=exchange_gain(evidence, lambda now: now.exposed - _overlapped(now).exposed),
        change=Change("setting", f"strategy.overlap = true{_bucket_words(more)} (DistributedDataParallel)"),
        trial=Trial(strategy={"overlap": True, **more}),
    )


def _overlapped(exchange: GradientExchange) -> GradientExchange:
    """The exchange with overlap; a single bucket is divided first."""
    better = replace(exchange, overlap=True)
    return better.best_buckets() if better.num_exchanges == 1 else better


def small_buckets(evidence: CaseEvidence) -> Finding | None:
    """Buckets are too small, or too large to overlap."""
    exchange = weighty_exchange(evidence)
    if exchange is None or _served(evidence):
        return None
    better = exchange.best_buckets()
    smaller = better.bucket_limit < exchange.bucket_limit
    size = BYTES.format(better.bucket_limit)
    return make(
        evidence,
        "large_buckets" if smaller else "small_buckets",
        f"Buckets are too {'large' if smaller else 'small'}: {_times(exchange.num_exchanges)} a step",
        evidence=(
            *_exchange_facts(evidence, exchange),
            f"start-up is {SECONDS.format(exchange.startup)} of each exchange; "
            f"{better.num_exchanges} exchanges of up to {size} would expose {SECONDS.format(better.exposed)}",
        ),
        gain=exchange_gain(evidence, lambda now: now.exposed - now.rebucketed(better.bucket_limit).exposed),
        change=Change("setting", f'strategy.bucket = "{size}" (bucket_cap_mb={better.bucket_limit / 2**20:.2g})'),
        trial=Trial(strategy={"bucket": round(better.bucket_limit)}),
    )


def slow_link(evidence: CaseEvidence) -> Finding | None:
    """The exchange takes longer than compute can hide, even with the best overlap and buckets.

    Ranks of one host have no link that a purchase could replace.
    """
    exchange = weighty_exchange(evidence)
    if exchange is None or len({item.host for item in evidence.placed}) == 1:
        return None
    faster = _on_faster_link(evidence, exchange)[1]
    rate = bus_factor("all_reduce", evidence.run.ranks) / exchange.per_byte
    return make(
        evidence,
        "slow_link",
        "The link between the ranks is the bottleneck",
        evidence=(
            *_exchange_facts(evidence, exchange),
            f"bytes move at {BANDWIDTH.format(rate)} per rank; "
            f"ten times that would expose {SECONDS.format(faster.exposed)}",
        ),
        gain=exchange_gain(evidence, lambda now: _saved_by_link(evidence, now)),
        change=Change("purchase", f"a link of {BANDWIDTH.format(rate * LINK_FACTOR)} or more between the hosts"),
    )


def _on_faster_link(evidence: CaseEvidence, exchange: GradientExchange) -> tuple[GradientExchange, GradientExchange]:
    """The exchange with the best settings, on the present and on a faster link; settings come before purchases."""
    ports = evidence.run.ranks / evidence.policy.servers if evidence.policy and evidence.policy.servers else 1.0
    spread = _spread_over(exchange, ports) if _served(evidence) else exchange
    variants = (exchange, spread, spread.best_buckets(), replace(spread, overlap=True).best_buckets())
    settings = min(variants, key=lambda item: item.exposed)
    return settings, replace(settings, per_byte=max(settings.per_byte / LINK_FACTOR, FASTEST_PER_BYTE))


def _saved_by_link(evidence: CaseEvidence, exchange: GradientExchange) -> float:
    settings, faster = _on_faster_link(evidence, exchange)
    return settings.exposed - faster.exposed


def hierarchical(evidence: CaseEvidence) -> Finding | None:
    """A flat ring crosses the network with every rank's bytes although hosts have several ranks."""
    exchange, policy = weighty_exchange(evidence), evidence.policy
    hosts = [item.host for item in evidence.placed]
    local = max((hosts.count(host) for host in hosts), default=0)
    if exchange is None or policy is None or policy.algorithm == "hierarchical" or len(set(hosts)) < 2 or local < 2:
        return None
    return make(
        evidence,
        "flat_allreduce",
        f"One flat ring over {len(set(hosts))} hosts of {local} ranks",
        evidence=_exchange_facts(evidence, exchange),
        gain=exchange_gain(evidence, lambda now: now.exposed - _spread_over(now, local).exposed),
        change=Change("setting", 'strategy.algorithm = "hierarchical"'),
        trial=Trial(strategy={"algorithm": "hierarchical"}),
    )


def server_hot_spot(evidence: CaseEvidence) -> Finding | None:
    """All gradients pass through few servers, whose ports are saturated while those of the workers are not."""
    exchange, policy = weighty_exchange(evidence), evidence.policy
    if exchange is None or policy is None or not _served(evidence) or not policy.servers:
        return None
    servers, ranks = policy.servers, evidence.run.ranks
    plural = "server" if servers == 1 else "servers"
    return make(
        evidence,
        "server_hot_spot",
        f"{servers} parameter {plural} for {ranks} workers",
        evidence=(
            *_exchange_facts(evidence, exchange),
            f"the servers' ports carry {ranks / servers:.3g} times what each worker's does",
        ),
        gain=exchange_gain(evidence, lambda now: now.exposed - _spread_over(now, ranks / servers).exposed),
        change=Change("setting", 'strategy.aggregation = "allreduce", or strategy.servers = 0 (one on every worker)'),
        trial=Trial(strategy={"aggregation": "allreduce", "servers": None}),
    )


def _spread_over(exchange: GradientExchange, ports: float) -> GradientExchange:
    """The exchange if `ports` ports share the bytes of one."""
    return replace(exchange, per_byte=max(exchange.per_byte / ports, FASTEST_PER_BYTE))


def slow_input(evidence: CaseEvidence) -> Finding | None:
    """The step waits for its batch."""
    phases = evidence.result.phases
    waits = phases.get("io", 0.0) + phases.get("h2d", 0.0)
    if not waits:
        return None
    samples = [phases_of(passes) for passes in evidence.launches.passes]
    shares = [
        (item["io"] + item["h2d"]) / passes["clean"]
        for item, passes in zip(samples, evidence.launches.passes, strict=True)
    ]
    return make(
        evidence,
        "slow_input",
        "The step waits for its batch",
        evidence=(
            f"reading takes {SECONDS.format(phases['io'])}, copying {SECONDS.format(phases['h2d'])} of every step",
            "no part of it overlaps with the previous step",
        ),
        gain=amount_interval([min(1.0, max(0.0, share)) for share in shares]),
        change=Change("code", "DataLoader(..., num_workers=2, prefetch_factor=2), or store decoded samples"),
        trial=Trial(input="resident"),
    )


def _exchange_facts(evidence: CaseEvidence, exchange: GradientExchange) -> tuple[str, ...]:
    share = evidence.result.shares.get("aggregate", 0.0)
    return (
        f"exposed exchange is {SECONDS.format(exchange.exposed)}, {format_share(share)} of the step",
        f"{BYTES.format(exchange.total_bytes)} of gradients in {_times(exchange.num_exchanges)}, "
        f"{SECONDS.format(exchange.communication)} in all",
    )


def _bucket_words(more: dict[str, int]) -> str:
    return f', strategy.bucket = "{BYTES.format(more["bucket"])}"' if more else ""


def _times(count: int) -> str:
    return "1 exchange" if count == 1 else f"{count} exchanges"


def _served(evidence: CaseEvidence) -> bool:
    return evidence.policy is not None and evidence.policy.aggregation == "parameter_server"


RULES: tuple[Rule, ...] = (
    slow_rank,
    no_overlap,
    small_buckets,
    server_hot_spot,
    hierarchical,
    slow_input,
    slow_link,
)
"""Rules for one case; rules that compare cases are in `across`."""
