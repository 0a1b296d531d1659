"""Breakdowns, stragglers, findings, gaps and what-ifs of runs whose content is known."""

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.explain.cases.exchange import gradient_exchange
from paceline.explain.confirm import plan_trials, with_measured, with_stored
from paceline.explain.explanation import Explanation, explain_campaign
from paceline.measurements.integrity import write_sums
from paceline.measurements.store import Store
from tests.made import Made, write


def explain(root: Path, *cases: Made) -> Explanation:
    return explain_campaign(write(root, list(cases)), "made-1")


def first_cause(explanation: Explanation) -> str | None:
    return explanation.findings[0].cause if explanation.findings else None


def test_shares_sum_to_one_and_parts_to_the_step(tmp_path):
    made = Made(aggregate=0.03, update=0.01, h2d=0.002, io=0.02, input="files")
    breakdown = explain(tmp_path, made).cases[0].breakdown
    assert sum(part.share for part in breakdown.parts) == pytest.approx(1.0)
    assert sum(part.seconds for part in breakdown.parts) == pytest.approx(breakdown.step_s.value)
    expected = {"io": 0.02, "h2d": 0.002, "forward": 0.04, "backward": 0.08, "aggregate": 0.03, "update": 0.01}
    for name, seconds in expected.items():
        assert breakdown.part(name).seconds == pytest.approx(seconds, rel=0.01)
    assert breakdown.part("other").seconds == pytest.approx(0, abs=0.002)


def test_cases_of_one_series_by_two_launchers_are_predicted_apart(tmp_path):
    store = write(tmp_path, [Made(ranks=1), Made(ranks=2, aggregate=0.03)])
    for folder in store.runs.glob("made-1-0001-*"):
        path = folder / "run.json"
        path.write_text(path.read_text().replace('"launcher":"local"', '"launcher":"ssh"').replace(
            '"launcher": "local"', '"launcher": "ssh"'))  # fmt: skip
        write_sums(folder)
    explanation = explain_campaign(Store(store.root), "made-1")
    assert [[case.run.launcher for case in series.cases] for series in explanation.series] == [["local"], ["ssh"]]


def test_layers_and_ranks_are_told_apart(tmp_path):
    breakdown = explain(tmp_path, Made(rank_factors=(1.0, 1.5))).cases[0].breakdown
    assert [item.rank for item in breakdown.ranks] == [0, 1]
    assert breakdown.ranks[1].seconds["backward"] == pytest.approx(1.5 * breakdown.ranks[0].seconds["backward"])
    assert [layer.name for layer in breakdown.layers] == [f"layer{n}" for n in range(20)]
    assert breakdown.layers[0].gradient_bytes == 50_000


def test_a_persistent_straggler_is_named_with_its_cost(tmp_path):
    explanation = explain(tmp_path, Made(ranks=3, rank_factors=(1.0, 1.0, 1.4)))
    (straggler,) = explanation.cases[0].stragglers
    assert (straggler.rank, straggler.host, straggler.kind) == (2, "node2", "persistent")
    assert straggler.cost_s.value == pytest.approx(0.4 * 0.12, rel=0.01)
    assert straggler.cost_per_day_s == pytest.approx(86400 * 0.4 / 1.4, rel=0.01)
    assert first_cause(explanation) == "slow_rank"
    assert explanation.findings[0].gain.value == pytest.approx(0.4 / 1.4, rel=0.02)


def test_equal_ranks_have_no_straggler(tmp_path):
    assert explain(tmp_path, Made(ranks=4)).cases[0].stragglers == ()


@pytest.mark.parametrize(
    ("made", "cause"),
    [
        (Made(aggregate=0.1, strategy={"bucket": 65536.0}), "slow_link"),
        (Made(aggregate=0.03, strategy={"overlap": False, "bucket": 65536.0}), "no_overlap"),
        (Made(backward=0.005, aggregate=0.008, gradients=50, strategy={"bucket": 0.0}), "small_buckets"),
        (Made(io=0.2, input="files"), "slow_input"),
        (Made(before_first_layer=0.05), "fixed_overhead"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_cause_is_named_first(tmp_path, made, cause):
    assert first_cause(explain(tmp_path, made)) == cause


def test_a_good_case_has_no_finding(tmp_path):
    explanation = explain(tmp_path, Made(aggregate=0.001, strategy={"bucket": 65536.0}))
    assert explanation.findings == ()
    assert "No single change" in explanation.summary[-1]


@pytest.mark.parametrize("launches", [(0.06, 0.0, 0.05), (0.06,)], ids=["launches that disagree", "one launch"])
def test_what_may_be_noise_is_not_advised_but_told(tmp_path, launches):
    made = Made(aggregate=0.05, strategy={"bucket": 65536.0}, launches=len(launches), aggregate_by_launch=launches)
    explanation = explain(tmp_path, made)
    assert explanation.findings == ()
    assert "slow_link" in {finding.cause for finding in explanation.unsure}
    assert "noise" in explanation.summary[-1]


def test_a_slow_rank_beside_others_on_a_host_is_about_its_core_not_its_host(tmp_path):
    apart, together = (
        explain(tmp_path / str(one_host), Made(rank_factors=(1.0, 1.4), one_host=one_host)).findings[0]
        for one_host in (False, True)
    )
    assert apart.cause == together.cause == "slow_rank"
    assert "replace it" in apart.change.what
    assert "core" in together.change.what
    assert "replace" not in together.change.what


def test_hidden_communication_is_what_was_traced_before_the_last_gradient(tmp_path):
    made = Made(aggregate=0.03, exchanges=((0.05, 0.03), (0.07, 0.02), (0.11, 0.04)))
    breakdown = explain(tmp_path, made).cases[0].breakdown
    assert breakdown.hidden_source == "traced"
    assert breakdown.hidden_s == pytest.approx(0.03 + 0.01 + 0.01)  # backward ends at 0.12
    assert [rank.hidden_s for rank in breakdown.ranks] == pytest.approx([0.05, 0.05])


def test_hidden_communication_by_the_model_is_called_so(tmp_path):
    breakdown = explain(tmp_path, Made(aggregate=0.03, strategy={"bucket": 65536.0})).cases[0].breakdown
    assert breakdown.hidden_source == "model"
    assert breakdown.hidden_s > 0


def test_phases_of_each_rank_sum_to_its_step(tmp_path):
    breakdown = explain(tmp_path, Made(rank_factors=(1.0, 1.5), aggregate=0.01, update=0.004)).cases[0].breakdown
    for rank in breakdown.ranks:
        assert sum(rank.seconds.values()) == pytest.approx(breakdown.step_s.value)
    waits = [rank.seconds["aggregate"] for rank in breakdown.ranks]
    assert waits == pytest.approx([0.06 + 0.01, 0.01], rel=0.02)


def test_a_small_batch_is_found_by_comparing_batches(tmp_path):
    cases = [Made(batch=size, forward=0.01 + 0.001 * size, backward=0.02 + 0.002 * size) for size in (1, 4)]
    finding = explain(tmp_path, *cases).findings[0]
    assert finding.cause == "small_batch"
    assert finding.trial.batch == 16
    assert finding.gain.value == pytest.approx(1 - (0.03 / 16 + 0.003) / 0.033, abs=0.01)
    assert "accuracy" in finding.change.warning


def test_waiting_threads_are_told_from_work_by_two_batches(tmp_path):
    shared = {"threads": 8, "cores": 2, "one_host": True}
    alone = explain(tmp_path / "one", Made(**shared))
    assert first_cause(alone) == "oversubscribed_threads"
    assert alone.findings[0].unknown
    assert alone.unsure == ()
    cases = [Made(batch=size, forward=0.02 + 0.001 * size, backward=0.04 + 0.002 * size, **shared) for size in (8, 32)]
    found = explain(tmp_path / "two", *cases).findings
    assert {finding.cause for finding in found} == {"oversubscribed_threads"}
    assert found[0].gain.value == pytest.approx((0.06 - 20 * 60e-6) / (0.06 + 8 * 0.003), rel=0.02)
    assert found[0].trial.threads == 1


def test_more_ranks_that_do_not_help_are_named(tmp_path):
    explanation = explain(tmp_path, Made(ranks=1), Made(ranks=2, aggregate=0.4))
    assert "too_many_devices" in {finding.cause for finding in explanation.findings}


@pytest.mark.parametrize(
    ("launches", "words"),
    [((0.4, 0.39, 0.41), "1 rank is 2.16 times as fast as 2"), ((0.14, 0.10, 0.16), "1 rank is as fast as 2")],
)
def test_fewer_ranks_are_called_as_fast_only_where_no_difference_is_shown(tmp_path, launches, words):
    cases = Made(ranks=1), Made(ranks=2, aggregate_by_launch=launches)
    explanation = explain(tmp_path, *cases)
    finding = next(f for f in (*explanation.findings, *explanation.unsure) if f.cause == "too_many_devices")
    assert finding.title == words


def test_more_ranks_than_cores_are_named_first_with_what_was_measured(tmp_path):
    crowded = Made(ranks=4, one_host=True, forward=0.08, backward=0.16, before_first_layer=0.05)
    explanation = explain(tmp_path, Made(ranks=2, one_host=True), crowded)
    first = explanation.findings[0]
    assert (first.cause, first.title) == ("too_few_cores", "4 ranks share 2 cores")
    assert first.gain.value == pytest.approx(0.0, abs=0.01)
    assert first.trial.ranks == 2
    assert "share 2 cores" in explanation.summary[-1]
    assert {"too_many_devices", "fixed_overhead"}.isdisjoint(
        {f.cause for f in (*explanation.findings, *explanation.unsure)}
    )


def test_a_refuted_advice_is_no_advice(tmp_path):
    explanation = explain(tmp_path, Made(aggregate=0.03, strategy={"overlap": False, "bucket": 65536.0}))
    trials = plan_trials(explanation, 1, lambda case: None)
    key = trials.confirmations[0].key
    before = {0: 100.0, 1: 101.0, 2: 99.0}
    refuted = with_measured(explanation, trials, {key: (before, {0: 93.0, 1: 92.0, 2: 94.0})})
    assert [finding.verdict for finding in refuted.refuted] == ["refuted"]
    assert refuted.refuted[0].measured_gain.value == pytest.approx(1 - 100 / 93)
    assert refuted.refuted[0] not in refuted.findings
    assert "What would help most: strategy.overlap" not in " ".join(refuted.summary)
    confirmed = with_measured(explanation, trials, {key: (before, {0: 120.0, 1: 121.0, 2: 119.0})})
    assert confirmed.findings[0].verdict == "confirmed"
    assert "measured to save 16.7 %" in confirmed.summary[-1]


def test_trials_are_compared_round_by_round(tmp_path):
    explanation = explain(tmp_path, Made(aggregate=0.03, strategy={"overlap": False, "bucket": 65536.0}))
    trials = plan_trials(explanation, 1, lambda case: None)
    key = trials.confirmations[0].key
    before = {0: 100.0, 1: 150.0, 2: 60.0}  # the machine's speed differs by round, the gain does not
    gained = {place: 1.05 * rate for place, rate in before.items()}
    (paired,) = (item for item in with_measured(explanation, trials, {key: (before, gained)}).findings if item.verdict)
    assert paired.verdict == "confirmed"
    assert (paired.measured_gain.low, paired.measured_gain.high) == pytest.approx((1 - 1 / 1.05,) * 2)
    apart = {place + 3: rate for place, rate in gained.items()}
    (alone,) = (item for item in with_measured(explanation, trials, {key: (before, apart)}).findings if item.verdict)
    assert alone.measured_gain.low < 0 < alone.measured_gain.high


def test_stored_trials_are_part_of_every_later_explanation(tmp_path):
    made = Made(aggregate=0.03, strategy={"overlap": False, "bucket": 65536.0})
    explanation = explain(tmp_path, made)
    trial = plan_trials(explanation, 1, lambda case: None).confirmations[0]
    same = replace(made, launches=3)
    slower = replace(made, aggregate=0.04, strategy=trial.after.strategy.model_dump(exclude_none=True))
    store = write(tmp_path, [same, slower], study="made.confirm", campaign="made.confirm-2", started_at="2026-01-03")
    assert [finding.verdict for finding in with_stored(explanation, store).refuted] == ["refuted"]
    later = replace(explanation, started_at="2026-01-04")
    assert with_stored(later, store).refuted == ()
    faster = replace(slower, aggregate=0.001)
    newest = {"study": "made.confirm", "campaign": "made.confirm-3", "started_at": "2026-01-03T09:00"}
    again = with_stored(explanation, write(tmp_path, [same, faster], **newest))
    assert [finding.verdict for finding in again.findings if finding.verdict] == ["confirmed"], "the newest counts"


def test_a_condition_that_costs_nothing_is_said_all_the_same(tmp_path):
    explanation = explain(tmp_path, Made(aggregate=0.03, strategy={"overlap": False, "bucket": 65536.0}))
    trials = plan_trials(explanation, 1, lambda case: None)
    (place,) = trials.findings
    findings = tuple(replace(one, first=number == place) for number, one in enumerate(explanation.findings))
    rates = {trials.confirmations[0].key: ({0: 100.0, 1: 101.0, 2: 99.0}, {0: 93.0, 1: 92.0, 2: 94.0})}
    tried = with_measured(replace(explanation, findings=findings), trials, rates)
    assert tried.refuted == ()
    assert tried.findings[0].verdict == "refuted"


def test_a_network_that_the_catalog_has_otherwise_by_now_is_not_tried(tmp_path):
    explanation = explain(tmp_path, Made(aggregate=0.03, strategy={"overlap": False, "bucket": 65536.0}))
    assert plan_trials(explanation, 1, lambda case: None).findings
    explanation.cases[0].evidence.run.case["network"]["digest"] = "another"
    assert plan_trials(explanation, 1, lambda case: None).findings == {}


def test_frameworks_are_ranked_within_a_network_and_size(tmp_path):
    cases = [
        Made(ranks=ranks, framework=name, network=network, forward=forward, launches=launches)
        for network, launches in (("lenet", 4), ("resnet20", 2))
        for name, forward in (("pytorch/ddp", 0.04), ("jax/data_parallel", 0.06))
        for ranks in (1, 2)
    ]
    explanation = explain(tmp_path, *cases)
    assert len(explanation.rankings) == 4
    winners = {(r.network, r.ranks): r.winner.name if r.winner else None for r in explanation.rankings}
    assert winners == {
        ("lenet", 1): "pytorch/ddp", ("lenet", 2): "pytorch/ddp", ("resnet20", 1): None, ("resnet20", 2): None
    }  # fmt: skip
    for ranking in explanation.rankings:
        assert ranking.lead.value == pytest.approx(0.14 / 0.12, rel=0.01)
        assert ranking.places[1].behind.verdict == ("slower" if ranking.network == "lenet" else "too few launches")
    who, how_much, why = explanation.summary
    assert "pytorch/ddp wins lenet, batch 32 x 1 rank, made and lenet, batch 32 x 2 ranks, made" in who
    assert "resnet20, batch 32 x 1 rank, made is not decided" in who
    assert "too few launches (2, 3 are needed)" in who
    assert "1.17 times as fast as jax/data_parallel" in how_much
    assert why.startswith("Why: kernels, 20 of the 20 ms")


def test_strategies_compete_on_several_ranks_only(tmp_path):
    strategies = ({}, {"name": "after", "overlap": False})
    cases = [
        Made(ranks=r, strategy=one, aggregate=0.01 * n, launches=4) for r in (1, 2) for n, one in enumerate(strategies)
    ]
    places = {ranking.ranks: [place.name for place in ranking.places] for ranking in explain(tmp_path, *cases).rankings}
    assert places == {1: ["pytorch/ddp after"], 2: ["pytorch/ddp", "pytorch/ddp after"]}


def test_one_framework_gets_no_winner_and_networks_are_not_compared(tmp_path):
    speed, scaling, _ = explain(tmp_path, Made(ranks=1), Made(ranks=2), Made(network="resnet20", forward=0.2)).summary
    assert "fastest" not in speed
    assert "lenet under pytorch/ddp reaches" in speed
    assert "resnet20 under pytorch/ddp reaches" in speed
    assert scaling.startswith("From 1 to 2 ranks lenet becomes 2.00 times as fast")


def test_phases_that_do_not_close_are_marked_wherever_they_are_used(tmp_path):
    slow = Made(ranks=1, framework="cntk/sync", alone_factor=1.7, forward=0.3, backward=0.3, launches=4)
    explanation = explain(tmp_path, slow, Made(ranks=1, launches=4))
    doubtful = explanation.cases[0]
    assert not doubtful.evidence.result.closes
    assert not doubtful.breakdown.closes
    assert explanation.cases[1].breakdown.closes
    (gap,) = explanation.gaps
    assert "do not close" in gap.untrusted
    assert explanation.summary[-1].startswith("Why is not known: the phases of lenet cntk/sync")
    assert "do not close" in next(item.why_not for item in explanation.series if "cntk" in item.label)
    assert all("cntk" not in finding.case for finding in explanation.findings)


def test_bars_sum_to_the_measured_gap(tmp_path):
    slow = Made(aggregate=0.06, forward=0.05, update=0.01, strategy={"name": "after", "overlap": False})
    fast = Made(aggregate=0.01, strategy={"name": "before", "bucket": 100_000.0})
    (gap,) = explain(tmp_path, slow, fast).gaps
    assert gap.slow.endswith("after, batch 32 x 2 ranks, made")
    assert sum(bar.seconds for bar in gap.bars) == pytest.approx(gap.seconds, abs=1e-12)
    seconds = {bar.cause: bar.seconds for bar in gap.bars}
    assert seconds["kernels"] == pytest.approx(0.01, rel=0.02)
    assert seconds["update"] == pytest.approx(0.01, rel=0.02)
    assert seconds["overlap"] > 0
    assert gap.bars[-1].cause == "unexplained"
    assert gap.bars[-1].interval is not None


def test_a_framework_that_traces_nothing_is_explained_with_the_gradients_of_the_other(tmp_path):
    slow = Made(aggregate=0.06, framework="tensorflow/multiworker", traced=False)
    fast = Made(aggregate=0.01, strategy={"bucket": 100_000.0})
    (gap,) = explain(tmp_path, slow, fast).gaps
    bars = {bar.cause: bar for bar in gap.bars}
    assert set(bars) >= {"fusion", "overlap", "link and start-up", "unexplained"}
    assert sum(bar.seconds for bar in gap.bars) == pytest.approx(gap.seconds, abs=1e-12)
    assert bars["overlap"].trial.strategy == {"overlap": True}
    assert bars["overlap"].reverse.strategy == {"overlap": False}


def test_compute_that_does_not_depend_on_the_batch_is_a_bar_of_its_own(tmp_path):
    cases = [
        Made(batch=size, framework=name, forward=fixed + 0.001 * size, backward=0.002 * size)
        for name, fixed in (("pytorch/ddp", 0.02), ("jax/data_parallel", 0.005))
        for size in (8, 32)
    ]
    gaps = explain(tmp_path, *cases).gaps
    assert len(gaps) == 2, "one for each batch"
    for gap in gaps:
        bars = {bar.cause: bar.seconds for bar in gap.bars}
        assert bars["fixed overhead"] == pytest.approx(0.015, rel=0.05)
        assert bars["kernels"] == pytest.approx(0.0, abs=1e-4)


def test_curves_say_what_they_were_calibrated_with_and_no_case_predicts_itself(tmp_path):
    one, several = Made(ranks=1), Made(ranks=2, aggregate=0.02)
    (series,) = explain(tmp_path / "one", one, several).series
    assert series.basis == "this study's own case on several ranks"
    assert [residual.basis.split(",")[0] for residual in series.residuals[1:]] == [
        "catalog figures of links and start-up"
    ]
    (series,) = explain(tmp_path / "two", one, several, Made(ranks=4, aggregate=0.03)).series
    assert series.basis == "this study's own 2 cases on several ranks"
    assert {residual.basis for residual in series.residuals[1:]} == {"the other case of this study on several ranks"}


def test_what_ifs_and_sensitivities_move_the_right_way(tmp_path):
    case = explain(tmp_path, Made(aggregate=0.1, strategy={"bucket": 65536.0})).cases[0]
    steps = {item.change: item.predicted_step_s for item in case.what_ifs}
    now = case.evidence.result.step_s.value
    assert steps["no exchange at all"] < steps["link ten times as fast"] < steps["link twice as fast"] < now
    assert steps["overlap off"] > now
    assert steps["overlap on"] == pytest.approx(now)
    for item in case.sensitivities:
        assert item.halved_s <= item.base_s <= item.doubled_s


def test_the_model_predicts_from_one_rank(tmp_path):
    (series,) = explain(tmp_path, Made(ranks=1), Made(ranks=2, aggregate=0.02)).series
    assert [residual.ranks for residual in series.residuals] == [1, 2]
    assert series.residuals[0].predicted_step_s == pytest.approx(0.12, rel=0.1)
    assert {term.phase for term in series.residuals[0].terms} >= {"forward", "backward", "aggregate"}


def test_without_one_rank_there_is_no_curve_and_a_reason(tmp_path):
    (series,) = explain(tmp_path, Made(ranks=2)).series
    assert series.curve is None
    assert series.why_not


def test_what_is_computed_of_a_case_is_kept_with_it_and_dropped_with_it(tmp_path):
    explanation = explain(tmp_path, Made(aggregate=0.03))
    evidence = explanation.cases[0].evidence
    assert gradient_exchange(evidence) is gradient_exchange(evidence)
    seen = weakref.ref(evidence)
    del explanation, evidence
    gc.collect()
    assert seen() is None
