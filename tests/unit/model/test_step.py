"""Every term of a step by hand: two gradients of 1 and 2 MB, a link of 0.1 s latency and 1 us per byte.

An all-reduce of n bytes between two ranks takes 0.2 s + n us: 1.2 s and 2.2 s. Compute takes 3 + 7 s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.catalog.frameworks import Policy
from paceline.cost.collective import Fabric, allreduce
from paceline.errors import Unsupported
from paceline.model.calibration import AS_STATED, CATALOG_ONLY, Calibration, Uncertain
from paceline.model.compute import StepWork
from paceline.model.step import NOMINAL, Factors, Ranks, exchange_seconds, fusion_choices, step_terms
from paceline.model.sweep import CollectiveFit

WORK = StepWork(
    forward=np.array([1.0, 2.0]),
    backward=np.array([3.0, 4.0]),
    gradients=np.array([1e6, 2e6]),
    layer=np.array([0, 1]),
    update=0.5,
    io=0.0,
    h2d=0.0,
    jitter=0.0,
    spread=0.0,
    basis="made",
)
TWICE = replace(WORK, forward=2 * WORK.forward, backward=2 * WORK.backward)
LINK = Fabric(2, 2, 1, 0.0, 0.0, 0.1, 1e-6)
RANKS = Ranks((WORK,), (2,), LINK, batch=16, memory_per_byte=1e-9)
MIXED = replace(RANKS, works=(WORK, TWICE), counts=(3, 1), fabric=replace(LINK, ranks=4, hosts=4))


def policy(**changes: Any) -> Policy:
    given = {"aggregation": "allreduce", "fusion": "tensor", "input_overlap": False, "version": "1", "source": "made"}
    return Policy.model_validate({**given, **changes})


def terms(
    ranks: Ranks = RANKS, calibration: Any = AS_STATED, factors: Any = NOMINAL, **changes: Any
) -> dict[str, float]:
    found = step_terms(ranks, policy(**changes), calibration, factors)
    return {name: round(float(seconds[0]), 9) for name, seconds in found.items() if seconds[0]}


def test_without_overlap_the_exchange_follows_backward() -> None:
    assert terms() == {"forward": 3.0, "backward": 7.0, "update": 0.5, "aggregate": 3.4}


def test_overlap_hides_what_backward_covers() -> None:
    # Ready at 6 and 10, sent at 7.2 and 12.2.
    assert terms(overlap=True)["aggregate"] == pytest.approx(2.2)


def test_the_first_layers_first_lets_the_next_forward_begin() -> None:
    large = replace(RANKS, works=(replace(WORK, gradients=np.array([9e6, 1e6])),))
    reverse, priority = (terms(large, overlap=True, order=order)["aggregate"] for order in ("reverse", "priority"))
    assert reverse == pytest.approx(6 + 9.2 + 1.2 - 10), "ready at 6, then both in turn; compute ends at 10"
    assert priority < reverse


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({"aggregation": "sharded", "shard_stage": 3}, 3 * (0.6 + 1.1)),  # two gathers and a scatter
        ({"aggregation": "sharded", "shard_stage": 2}, 3.4),
        ({"aggregation": "parameter_server", "servers": 1}, 4.2 + 8.2),
        ({"aggregation": "parameter_server"}, 1.2 + 2.2),
        ({"compression": "float16"}, 0.7 + 1.2),
        ({"algorithm": "tree"}, 2.2 + 4.2),
        ({"fusion": "all"}, 3.2),
        ({"block_samples": 64}, 3.4 / 4),
        ({"block_samples": 8}, 3.4),
    ],
)
def test_what_is_exchanged_depends_on_the_policy(changes: dict[str, Any], seconds: float) -> None:
    assert terms(**changes)["aggregate"] == pytest.approx(seconds)
    if "block_samples" not in changes:
        assert exchange_seconds(RANKS, policy(**changes), AS_STATED) == pytest.approx(seconds)


def test_sharded_training_gathers_ahead_of_forward_and_backward() -> None:
    # Forward: gathered at 1.1 and 1.7, done at 4.1 instead of 3. Backward: scattered at 8.1, first gather of 0.6.
    found = terms(aggregation="sharded", shard_stage=3, overlap=True)
    assert found["aggregate"] == pytest.approx(1.1 + 1.1 + 0.6)


def test_a_rank_updates_its_own_shard_only() -> None:
    for stage in (1, 2, 3):
        assert terms(aggregation="sharded", shard_stage=stage)["update"] == pytest.approx(0.25)
    assert terms(aggregation="sharded", shard_stage=0)["update"] == 0.5


def test_priority_hides_behind_the_next_forward() -> None:
    # Left after backward: nothing of the first, 2.2 of the second, which is used first.
    assert terms(overlap=True, order="priority")["aggregate"] == pytest.approx(2.2)


def test_the_first_gradient_of_a_layer_waits_for_its_last() -> None:
    together = replace(RANKS, works=(replace(WORK, layer=np.array([0, 0])),))
    assert terms(together, fusion="layer")["aggregate"] == pytest.approx(3.2)
    assert terms(fusion="layer")["aggregate"] == pytest.approx(3.4)


def test_latency_and_reach_of_the_calibration_multiply_each_its_own_part() -> None:
    software = replace(AS_STATED, latency=Uncertain(3.0, 0.0), reach=Uncertain(0.5, 0.0))
    assert terms(calibration=software)["aggregate"] == pytest.approx(2 * 0.6 + 2 + 4)
    drawn = replace(NOMINAL, latency=np.array([2.0]), bandwidth=np.array([3.0]))
    assert terms(factors=drawn)["aggregate"] == pytest.approx(2 * 0.4 + 3 + 6)


def test_compute_draws_scale_compute_alone() -> None:
    found = terms(factors=replace(NOMINAL, compute=np.array([2.0])))
    assert found == {"forward": 6.0, "backward": 14.0, "update": 1.0, "aggregate": 3.4}


def test_hidden_exchange_slows_compute_down() -> None:
    found = terms(calibration=replace(AS_STATED, slowdown=Uncertain(0.1, 0.0)), overlap=True)
    assert found["slowdown"] == pytest.approx(0.1 * (3.4 - 2.2))
    most = terms(calibration=replace(AS_STATED, slowdown=Uncertain(5.0, 0.0)), overlap=True)
    assert most["slowdown"] == pytest.approx(0.97 * 1.2)


def test_a_backward_that_is_slowed_hides_more() -> None:
    late = replace(RANKS, works=(replace(WORK, gradients=np.array([4e6, 1e6])),))
    # Sent at 10.2 and 11.4: 1.4 s exposed, 4 s hidden. With 2 s lost, backward takes 9/7 as long.
    assert terms(late, overlap=True)["aggregate"] == pytest.approx(1.4)
    found = terms(late, replace(AS_STATED, slowdown=Uncertain(0.5, 0.0)), overlap=True)
    assert found["slowdown"] == pytest.approx(2.0)
    assert found["aggregate"] == pytest.approx(1.2)


def test_an_exchange_beside_compute_goes_at_its_own_pace() -> None:
    late = replace(RANKS, works=(replace(WORK, gradients=np.array([4e6, 1e6])),))
    # At half speed 8.4 and 2.4 s: 6.8 s are left after backward, and go at full speed.
    assert terms(late, replace(AS_STATED, overlap_rate=0.5), overlap=True)["aggregate"] == pytest.approx(3.4)
    assert terms(calibration=replace(AS_STATED, overlap_rate=0.5))["aggregate"] == pytest.approx(3.4)


def test_every_gradient_and_every_copied_byte_has_its_fixed_cost() -> None:
    costs = replace(AS_STATED, fixed_per_gradient=Uncertain(0.01, 0.0), fixed_copies=Uncertain(2.0, 0.0))
    assert terms(calibration=costs)["fixed"] == pytest.approx(0.02 + 2 * 3e6 * 1e-9)
    assert terms(calibration=replace(costs, copy_per_byte=1e-8))["fixed"] == pytest.approx(0.02 + 2 * 3e6 * 1e-8)


def test_accumulation_computes_several_times_and_exchanges_once() -> None:
    found = terms(replace(RANKS, accumulate=3), overlap=True)
    assert found == {"forward": 9.0, "backward": 21.0, "update": 0.5, "aggregate": 2.2}


def test_neighbours_slow_compute_and_a_profile_of_neighbours_is_eased() -> None:
    crowded = replace(AS_STATED, crowding=0.2)
    beside = replace(RANKS, fabric=replace(LINK, ranks=6, local=3))
    assert terms(beside, crowded)["slowdown"] == pytest.approx(0.4 * 10.5)
    alone = terms(replace(RANKS, works=(replace(WORK, crowd=3),)), crowded)
    assert (alone["forward"], alone["update"]) == (pytest.approx(3 / 1.4), pytest.approx(0.5 / 1.4))
    assert "slowdown" not in alone


def test_all_wait_for_the_slowest_device() -> None:
    found = terms(MIXED)
    assert (found["forward"], found["backward"], found["waiting"]) == (3.75, 8.75, 7.5)
    jitter = terms(MIXED, replace(AS_STATED, jitter=0.1))
    assert jitter["waiting"] == pytest.approx(7.5 + 20 * 0.1 * 1.0491, rel=1e-4)  # Blom's expected largest of four
    straggling = terms(replace(MIXED, straggle=(0.1, 5.0)))
    assert straggling["waiting"] == pytest.approx(7.5 + 20 * 0.4)


def test_the_jitter_of_the_profile_counts_where_the_calibration_has_none() -> None:
    shaky = replace(RANKS, works=(replace(WORK, jitter=0.1),))
    assert terms(shaky)["waiting"] == pytest.approx(10 * 0.1 * 0.5895, rel=1e-4)
    assert "waiting" not in terms(shaky, replace(AS_STATED, jitter=0.0))


def test_asynchronous_devices_step_at_the_harmonic_mean() -> None:
    found = terms(MIXED, synchrony="asynchronous")
    # Three quarters at 10 s and a quarter at 20 s: 80/7 s on average instead of 12.5.
    assert found["forward"] + found["backward"] == pytest.approx(80 / 7)
    assert "waiting" not in found


def test_input_is_exposed_beyond_the_rest_of_the_step() -> None:
    reading = replace(RANKS, input_s=(12.0, 6.0))
    found = terms(reading)
    assert (found["io"], found["h2d"]) == (12.0, 6.0)
    found = terms(reading, input_overlap=True)
    assert (found["io"], found["h2d"]) == (pytest.approx(4.1 * 2 / 3), pytest.approx(4.1 / 3))
    assert "io" not in terms(replace(RANKS, input_s=(2.0, 1.0)), input_overlap=True)


def test_one_device_exchanges_nothing_and_several_need_a_policy_that_does() -> None:
    single = replace(RANKS, fabric=replace(LINK, ranks=1, hosts=1), counts=(1,))
    assert terms(single, aggregation="none") == {"forward": 3.0, "backward": 7.0, "update": 0.5}
    with pytest.raises(Unsupported, match="aggregates nothing"):
        terms(aggregation="none")


def test_choices_of_fusion() -> None:
    choices = fusion_choices(RANKS, policy(overlap=True), AS_STATED)
    assert choices["policy"] == (2, pytest.approx(2.2))
    assert choices["optimal"] == (2, pytest.approx(2.2))
    assert fusion_choices(RANKS, policy(overlap=True, fusion="all"), AS_STATED)["policy"] == (1, pytest.approx(3.2))
    for changes in ({"overlap": False}, {"overlap": True, "order": "priority"}, {"aggregation": "parameter_server"}):
        assert fusion_choices(RANKS, policy(**changes), AS_STATED) == {}
    slow = fusion_choices(RANKS, policy(overlap=True), replace(AS_STATED, overlap_rate=0.5))
    assert slow["policy"] == (2, pytest.approx(2.2)), "what is left after backward goes at full speed"


def test_buckets_are_ready_when_the_slowest_device_has_them() -> None:
    sizes = np.array([8e6, 1e6])
    mixed = replace(MIXED, works=tuple(replace(work, gradients=sizes) for work in MIXED.works))
    # Ready at 6 and 14 after the slowest forward: of 12.6 s of the first 4.6 are left, sent after 2.1 of the second.
    assert terms(mixed, overlap=True, order="priority")["aggregate"] == pytest.approx(2.1 + 4.6 - 4.0)


def by_hand(ranks: Ranks, calibration: Calibration, draw: dict[str, float], *, overlap: bool) -> dict[str, float]:
    """A synchronous step that exchanges every tensor alone, in plain loops."""
    works, cores, count = ranks.works, ranks.cores, ranks.fabric.ranks
    lead = max(works, key=lambda one: one.before + one.forward.sum() + one.backward.sum())
    whole = lead.before + lead.forward.sum() + lead.backward.sum()
    pace = calibration.overlap_rate if overlap else 1.0
    turns = 1.0 if cores is None else max(1.0, count / cores)

    def beside(number: int) -> float:
        busy = number if cores is None else max(1.0, min(number, cores / ranks.threads))
        return 1 + calibration.crowding * (busy - 1)

    crowding = beside(ranks.fabric.local) / beside(max(one.crowd for one in works))
    compute = draw["compute"] * draw["sharing"] ** ranks.shared_spread
    scale = compute * min(1.0, crowding)
    mean = sum(n * one.start for n, one in zip(ranks.counts, works, strict=True)) / sum(ranks.counts)
    back = sum(n * one.backward.sum() for n, one in zip(ranks.counts, works, strict=True)) / sum(ranks.counts)
    links = ranks.fabric.slowed(
        calibration.latency.value * draw["latency"], draw["bandwidth"] / calibration.reach.value
    )
    comm = [turns * float(allreduce(links, size * ranks.element_share)) for size in lead.gradients]

    def exposed(slower: float) -> float:
        if not overlap:
            return sum(comm)
        sent = ready = 0.0
        for place, seconds in enumerate(comm):
            ready = compute * max((ranks.accumulate - 1) * (one.start + one.backward.sum()) + one.start
                                  + slower * one.backward[: place + 1].sum() for one in works)  # fmt: skip
            sent = max(sent, ready) + seconds / pace
        return pace * (sent - ready)

    full = cores is not None and count * ranks.threads >= cores
    guessed = calibration.slowdown == CATALOG_ONLY.slowdown and full
    share = min(0.97, 0.97 if guessed else calibration.slowdown.value * draw["slowdown"])
    lost = share * max(0.0, sum(comm) - exposed(1.0))
    crowded = max(0.0, crowding - 1)
    jitter = max(one.jitter for one in works) if calibration.jitter is None else calibration.jitter
    late = draw["waiting"] * jitter * {2: 0.589456, 6: 1.281552}[count] + ranks.straggle[0] * (ranks.straggle[1] - 1)
    slowest = scale * ranks.accumulate * whole
    copies = ranks.memory_per_byte if calibration.copy_per_byte is None else calibration.copy_per_byte
    found = {
        "forward": scale * ranks.accumulate * mean,
        "backward": scale * ranks.accumulate * back,
        "update": scale * max(one.update for one in works),
        "aggregate": exposed(1 + crowded + lost / (compute * lead.backward.sum())),
        "slowdown": lost + crowded * compute * (ranks.accumulate * whole + lead.update),
        "fixed": turns * draw["fixed"] * (
            calibration.fixed_per_gradient.value * len(lead.gradients)
            + calibration.fixed_copies.value * lead.gradients.sum() * copies
        ),
    }  # fmt: skip
    found["waiting"] = max(0.0, slowest - found["forward"] - found["backward"]) + slowest * late
    return found


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_every_term_of_any_step_is_what_plain_loops_say(seed: int, overlap: bool) -> None:
    rng = np.random.default_rng(seed)
    sizes, layer = rng.uniform(1e4, 3e6, 4), np.arange(4)
    works = tuple(
        StepWork(rng.uniform(0.1, 1, 4), rng.uniform(0.1, 2, 4), sizes, layer, update=rng.uniform(0.1, 1), io=0, h2d=0,
                 jitter=rng.uniform(0, 0.1), spread=0.1, basis="", crowd=int(rng.integers(1, 4)),
                 before=rng.uniform(0, 2) * (seed % 2))
        for _ in range(2)
    )  # fmt: skip
    count, local = ((2, 1), (6, 3), (6, 1))[seed % 3]
    ranks = Ranks(
        works, (1, count - 1), Fabric(count, count // local, local, *rng.uniform(0, [1e-2, 1e-6, 1e-1, 1e-6]), 1e-7),
        batch=8, memory_per_byte=1e-9, accumulate=1 + seed % 3, element_share=rng.uniform(0.2, 1),
        straggle=(rng.uniform(0, 0.2), rng.uniform(1, 5)), cores=(None, 2, 8, 64)[seed % 4], threads=1 + seed % 2,
        shared_spread=rng.uniform(0, 1),
    )  # fmt: skip
    calibration = replace(
        CATALOG_ONLY, overlap_rate=rng.uniform(0.3, 1), crowding=rng.uniform(0, 0.4), jitter=(None, 0.07)[seed % 2],
        copy_per_byte=(None, 3e-9)[seed % 2],
        slowdown=CATALOG_ONLY.slowdown if seed % 3 else Uncertain(rng.uniform(0, 1.2), 0.1),
    )  # fmt: skip
    draws = {name: rng.uniform(0.5, 2, 2) for name in vars(NOMINAL)}
    found = step_terms(ranks, policy(overlap=overlap), calibration, Factors(**draws))
    for place in range(2):
        draw = {name: float(values[place]) for name, values in draws.items()}
        wanted = by_hand(ranks, calibration, draw, overlap=overlap)
        assert {name: float(found[name][place]) for name in wanted} == pytest.approx(wanted, rel=1e-5)
        assert found["io"][place] == found["h2d"][place] == 0.0


@pytest.mark.parametrize(("name", "share"), [("none", 1.0), ("float16", 0.5), ("1bit", 1 / 32), ("powersgd", 1 / 16)])
def test_what_compression_leaves_on_the_wire(name: str, share: float) -> None:
    assert terms(compression=name)["aggregate"] == pytest.approx(0.4 + 3 * share)
    assert terms(replace(RANKS, element_share=0.5), compression=name)["aggregate"] == pytest.approx(0.4 + 1.5 * share)


def swept(operation: str) -> Calibration:
    fit = CollectiveFit(operation, 2, "additive", 0.01, 1e-7, 0.0, 0.0, 1e3, 1e9)
    return replace(AS_STATED, collectives=(fit,), latency=Uncertain(9.0, 0.0))


def test_a_sweep_replaces_the_formula_of_its_own_operation() -> None:
    sharded = {"aggregation": "sharded", "shard_stage": 3}
    assert terms(calibration=swept("all_reduce"))["aggregate"] == pytest.approx(0.02 + 0.3)
    assert terms(calibration=swept("reduce_scatter"), **sharded)["aggregate"] == pytest.approx(3 * 0.32)
    drawn = replace(NOMINAL, bandwidth=np.array([2.0]), latency=np.array([5.0]))
    assert terms(calibration=swept("all_reduce"), factors=drawn)["aggregate"] == pytest.approx(0.64)
    for operation, changes in (("all_reduce", sharded), ("reduce_scatter", {}),
                               ("all_reduce", {"aggregation": "parameter_server"})):  # fmt: skip
        plain = replace(swept(operation), collectives=())
        assert terms(calibration=swept(operation), **changes) == terms(calibration=plain, **changes)


@pytest.mark.parametrize(("threads", "full"), [(1, False), (2, True), (4, True)])
def test_cores_are_full_when_the_threads_of_all_ranks_fill_them(threads: int, full: bool) -> None:
    assert replace(RANKS, cores=4, threads=threads).full is full


def test_a_calibrated_latency_does_not_count_twice_where_nccls_own_hops_hold() -> None:
    slow = replace(AS_STATED, latency=Uncertain(3.0, 0.0))
    over_nccl = replace(RANKS, fabric=replace(LINK, nccl="nvlink4"))
    assert terms(over_nccl, slow) == terms(over_nccl)
    assert terms(calibration=slow)["aggregate"] == pytest.approx(3.4 + 2 * 2 * 0.2)


def test_asynchronous_devices_read_their_input_too() -> None:
    reading = replace(MIXED, input_s=(2.0, 1.0))
    found = terms(reading, synchrony="asynchronous")
    assert (found["io"], found["h2d"]) == (2.0, 1.0)


def test_choices_of_fusion_on_unequal_devices() -> None:
    # Ready when the slower device is, at 6 and 14 of backward: the first exchange is hidden.
    choices = fusion_choices(MIXED, policy(overlap=True), AS_STATED)
    each = [0.6 + 1.5 * size for size in (1, 2)]  # four ranks in a ring: 6 latencies, 3/2 of the bytes
    assert choices["policy"] == (2, pytest.approx(each[1]))
    slow = replace(AS_STATED, latency=Uncertain(30.0, 0.0))
    assert fusion_choices(MIXED, policy(overlap=True), slow)["mgwfbp"] == (1, pytest.approx(18 + 4.5))
    assert fusion_choices(MIXED, policy(overlap=True), slow)["optimal"] == (1, pytest.approx(18 + 4.5))
