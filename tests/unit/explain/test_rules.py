"""Rules about the exchange of one case, and the facts they rest on, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.explain.cases import breakdown
from paceline.explain.cases.evidence import CaseEvidence, load_evidence
from paceline.explain.cases.exchange import CALL_S, GradientExchange, _hops, gradient_exchange
from paceline.explain.cases.stragglers import Straggler
from paceline.explain.explanation import explain_campaign
from paceline.explain.findings import Finding, exchange_gain, rules
from paceline.measurements.summary import Interval
from paceline.units import BANDWIDTH
from tests.made import Made, write

TWO = GradientExchange(sizes=(100.0, 300.0), ready=(1.0, 2.0), last=(0, 1), overlap=True, startup=0.5, per_byte=0.01)
"""Exchanges of 1.5 and 3.5 s, ready at 1 and 2: 4 s exposed."""
THREE = GradientExchange(
    sizes=(1e6, 2e6, 1e6), ready=(1.0, 2.0, 4.0), last=(0, 1, 2), overlap=True, startup=0.5, per_byte=1e-6
)
"""2.5 s exposed; in one bucket 4.5 s; in two, of 3 and 1 MB, 3 s."""
Ask = Callable[..., Finding | None]


def case(ranks: int = 4, hosts: tuple[int, ...] = (0, 1, 2, 3), **policy: Any) -> Any:
    """A case, as far as rules about its exchange look at it."""
    usual = {"aggregation": "allreduce", "algorithm": "ring", "servers": None}
    device = SimpleNamespace(model_dump_json=lambda: "one")
    return SimpleNamespace(
        run=SimpleNamespace(ranks=ranks, case_id="id"),
        label="case",
        policy=SimpleNamespace(**{**usual, **policy}),
        placed=[SimpleNamespace(host=host, device=device) for host in hosts],
        result=SimpleNamespace(shares={"aggregate": 0.5}),
    )


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """A rule on a case with this exchange; the gain is in seconds."""

    def asked(rule: rules.Rule, evidence: Any, exchange: GradientExchange | None) -> Finding | None:
        monkeypatch.setattr(rules, "weighty_exchange", lambda _: exchange)
        monkeypatch.setattr(rules, "exchange_gain", lambda _, saved: saved(exchange))
        return rule(evidence)

    return asked


def test_gradients_could_overlap_and_one_bucket_is_divided_first(ask: Ask) -> None:
    found = ask(rules.no_overlap, case(), replace(TWO, overlap=False))
    assert found is not None
    assert (found.cause, found.gain, found.trial.strategy) == ("no_overlap", pytest.approx(1.0), {"overlap": True})
    single = ask(rules.no_overlap, case(), replace(THREE.rebucketed(4e6), overlap=False))
    assert single is not None
    assert (single.gain, single.trial.strategy) == (pytest.approx(2.0), {"overlap": True, "bucket": 2_000_000})
    for exchange in (TWO, replace(TWO, overlap=False, contended=True), None):
        assert ask(rules.no_overlap, case(), exchange) is None


def test_buckets_are_too_small_or_too_large(ask: Ask) -> None:
    small = ask(rules.small_buckets, case(), replace(THREE, startup=4.0))  # ends at 6, 12 and 17; in one bucket at 12
    assert small is not None
    assert (small.cause, small.gain, small.trial.strategy) == ("small_buckets", pytest.approx(5.0), {"bucket": 4000000})
    assert "too small: 3 exchanges a step" in small.title
    large = ask(rules.small_buckets, case(), THREE.rebucketed(4e6))
    assert large is not None
    assert (large.cause, large.gain, large.trial.strategy) == ("large_buckets", pytest.approx(1.5), {"bucket": 2000000})
    assert "too large: 1 exchange a step" in large.title
    assert ask(rules.small_buckets, case(aggregation="parameter_server"), THREE) is None


def test_a_link_ten_times_as_fast_leaves_less_exposed_than_the_best_settings(ask: Ask) -> None:
    found = ask(rules.slow_link, case(), TWO)
    assert found is not None
    assert found.gain == pytest.approx(4.0 - 0.8)  # 0.6 and 0.8 s, ready at 1 and 2
    assert f"bytes move at {BANDWIDTH.format(150.0)} per rank" in found.evidence[-1], "2 x 3 / 4 of each byte"
    assert (found.change.kind, found.trial) == ("purchase", None)
    assert f"a link of {BANDWIDTH.format(1500.0)} or more" in found.change.what
    assert ask(rules.slow_link, case(hosts=(0, 0, 0, 0)), TWO) is None, "ranks of one host have no link"


def test_servers_share_what_few_of_them_carry(ask: Ask) -> None:
    served = case(8, (0, 1), aggregation="parameter_server", servers=2)
    found = ask(rules.server_hot_spot, served, TWO)
    assert found is not None
    assert found.title == "2 parameter servers for 8 workers"
    assert "carry 4 times" in found.evidence[-1]
    assert found.gain == pytest.approx(4.0 - 1.25)  # 0.75 and 1.25 s
    for other in (case(8, (0, 1)), case(8, (0, 1), aggregation="parameter_server", servers=0)):
        assert ask(rules.server_hot_spot, other, TWO) is None
    # Bytes over all ports before a purchase: 1.25 s are exposed, and on a faster link 0.55 and 0.575 s.
    link = ask(rules.slow_link, served, TWO)
    assert link is not None
    assert link.gain == pytest.approx(1.25 - 0.575)


def test_a_flat_ring_over_hosts_of_several_ranks_could_be_hierarchical(ask: Ask) -> None:
    found = ask(rules.hierarchical, case(5, (0, 0, 1, 1, 1)), TWO)
    assert found is not None
    assert found.title == "One flat ring over 2 hosts of 3 ranks"
    assert found.gain == pytest.approx(4.0 - 1.5)  # 0.8333 and 1.5 s
    two = ask(rules.hierarchical, case(4, (0, 0, 1, 1)), TWO)
    assert two is not None
    assert two.gain == pytest.approx(2.0)
    for other in (case(2, (0, 0)), case(2, (0, 1)), case(4, (0, 0, 1, 1), algorithm="hierarchical")):
        assert ask(rules.hierarchical, other, TWO) is None


def test_what_to_do_about_a_slow_rank_depends_on_where_the_others_are() -> None:
    assert "pin each rank" in rules._for_straggler(case(hosts=(0, 0)), "persistent")
    assert "now and then" in rules._for_straggler(case(hosts=(0, 1)), "transient")
    assert "or replace it" in rules._for_straggler(case(hosts=(0, 1)), "persistent")
    unequal = case(hosts=(0, 1))
    unequal.placed[1].device = SimpleNamespace(model_dump_json=lambda: "other")
    assert "smaller part of the batch" in rules._for_straggler(unequal, "transient")


def test_of_several_slow_ranks_the_one_that_costs_most_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (case,) = load_evidence(write(tmp_path, [Made(ranks=4)]), "made-1")
    cost = Interval(0.03, 0.02, 0.04)
    slow = [Straggler(rank, f"node{rank}", "forward", "persistent", 1.5, 0.8, cost, 10.0) for rank in (2, 1)]
    monkeypatch.setattr(rules, "find_stragglers", lambda _: tuple(slow))
    finding = rules.slow_rank(case)
    assert finding is not None
    assert finding.title == "Rank 2 on node2 holds up the others"


def test_a_batch_that_the_step_waits_for_costs_reading_and_copying(tmp_path: Path) -> None:
    made = Made(io=0.2, h2d=0.02, input="files")
    (found,) = explain_campaign(write(tmp_path, [made]), "made-1").findings
    assert (found.cause, found.gain.value) == ("slow_input", pytest.approx(0.22 / 0.34, rel=1e-3))


# What is known of a case.


def run(**facts: Any) -> Any:
    machine = SimpleNamespace(threads=facts.pop("threads", 2), cores=facts.pop("cores", 4))
    kind, emulation = facts.pop("kind", "cpu"), facts.pop("emulation", None)
    device = SimpleNamespace(kind=kind, emulation=emulation)
    hosts = facts.pop("hosts", (0, 0, 1))
    found = SimpleNamespace(
        run=SimpleNamespace(**{"launcher": "ssh", "ranks": 3, **facts}, machine=machine),
        placed=[SimpleNamespace(host=host, device=device) for host in hosts],
    )
    found.is_emulated = CaseEvidence.is_emulated.fget(found)  # type: ignore[attr-defined]
    found.ranks_per_host = CaseEvidence.ranks_per_host.fget(found)  # type: ignore[attr-defined]
    return found


def test_ranks_of_a_virtual_cluster_are_all_on_one_machine() -> None:
    assert run().ranks_per_host == 2
    assert run(launcher="virtual").ranks_per_host == 3
    assert run(hosts=()).ranks_per_host == 3


@pytest.mark.parametrize(
    ("facts", "shares"),
    [({}, True), ({"cores": 5}, False), ({"threads": None, "cores": 2}, True), ({"threads": None}, False),
     ({"kind": "gpu"}, False), ({"emulation": "timed"}, False)],
)  # fmt: skip
def test_exchanges_need_the_cores_of_compute_where_its_threads_take_all(facts: dict[str, Any], shares: bool) -> None:
    assert CaseEvidence.shares_cores.func(run(**facts)) is shares  # type: ignore[attr-defined]


def test_a_ring_takes_two_hops_less_than_twice_its_ranks() -> None:
    links = [
        SimpleNamespace(link=SimpleNamespace(latency=n * 1e-3), inside=SimpleNamespace(latency=5e-6)) for n in (2, 1)
    ]
    apart = SimpleNamespace(
        cluster=SimpleNamespace(hosts=links), run=SimpleNamespace(ranks=4),
        placed=[SimpleNamespace(host=host) for host in (0, 1, 1, 1)],
    )  # fmt: skip
    assert _hops(apart) == pytest.approx(6 * 2e-3)  # type: ignore[arg-type]
    apart.placed = apart.placed[1:]
    assert _hops(apart) == pytest.approx(6 * 5e-6)  # type: ignore[arg-type]
    apart.cluster = None
    assert _hops(apart) == 0.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("native", "traced", "exchange", "expected"),
    [
        ({"ddp_overlap": 0.3, "communication": 9.0}, [0.7, None, 0.2], TWO, (0.2, "traced")),
        ({"ddp_overlap": 0.3, "communication": 9.0}, [None], TWO, (0.3, "timers")),
        ({"communication": 1.5}, [], TWO, (0.5, "timers")),
        ({"communication": 0.5}, [], TWO, (0.0, "timers")),
        ({}, [], TWO, (1.0, "model")),
        ({}, [], None, (None, None)),
    ],
    ids=["traced", "overlap", "communication", "less than exposed", "model", "nothing"],
)
def test_what_is_hidden_is_traced_or_timed_or_modelled(
    monkeypatch: pytest.MonkeyPatch, native: Any, traced: list[float | None], exchange: Any, expected: Any
) -> None:
    monkeypatch.setattr(breakdown, "gradient_exchange", lambda _: exchange)
    result = SimpleNamespace(native=native, phases={"aggregate": 1.0})
    ranks = tuple(SimpleNamespace(hidden_s=seconds) for seconds in traced)
    evidence = SimpleNamespace(run=SimpleNamespace(ranks=2), result=result)
    assert breakdown._hidden(evidence, ranks) == pytest.approx(expected)  # type: ignore[arg-type]
    evidence.run.ranks = 1
    assert breakdown._hidden(evidence, ranks) == (None, None)  # type: ignore[arg-type]


def test_the_best_of_ten_bucket_sizes_is_taken() -> None:
    tried: list[float] = []

    class Noted(GradientExchange):
        def rebucketed(self, limit: float) -> GradientExchange:
            tried.append(self.total_bytes / limit)
            return super().rebucketed(limit)

    ready = tuple(0.1 * number for number in range(1, 97))
    Noted(sizes=(1.0,) * 96, ready=ready, last=(95,), overlap=True, startup=0.5, per_byte=0.1).best_buckets()
    assert tried == pytest.approx([1, 2, 3, 4, 6, 8, 12, 16, 24, 32])


def test_a_batch_that_is_only_copied_is_waited_for_too(tmp_path: Path) -> None:
    (found,) = explain_campaign(write(tmp_path, [Made(h2d=0.06, input="copied")]), "made-1").findings
    assert (found.cause, found.gain.value) == ("slow_input", pytest.approx(0.06 / 0.18, rel=1e-3))


def test_the_interval_of_an_exchange_s_gain_has_half_and_twice_the_usual_cost_of_a_call(tmp_path: Path) -> None:
    explanation = explain_campaign(write(tmp_path, [Made(aggregate=0.06, strategy={"overlap": False})]), "made-1")
    evidence = explanation.cases[0].evidence
    now = gradient_exchange(evidence)
    assert now is not None
    factor = 0.02 / now.startup
    gain = exchange_gain(evidence, lambda exchange: factor * (exchange.startup - now.startup) + 0.03)
    # Calls of 75, 150 and 300 us, and the latency of the link.
    low, high = (factor * (call - CALL_S) + 0.03 for call in (CALL_S / 2, 2 * CALL_S))
    assert gain.value == pytest.approx(0.03 / 0.18, rel=0.01)
    assert (gain.low, gain.high) == (pytest.approx(low / 0.18, rel=0.02), pytest.approx(high / 0.18, rel=0.02))
