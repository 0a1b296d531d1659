"""Ranks that share the cores of a host: threads, turns, and what a probe says instead."""

from __future__ import annotations

import pytest

from paceline.cost.host import (
    SharingProbe,
    alone_ratio,
    at_once,
    fair_threads,
    meeting_seconds,
    meets,
    parallel_share,
    shared_words,
    threads_gain,
    together,
    turns,
    unknown_parallel,
)


def test_cores_are_shared_evenly_and_nobody_has_none() -> None:
    assert [fair_threads(8, ranks) for ranks in (1, 2, 3, 8, 16)] == [8, 4, 2, 1, 1]


def test_threads_gain_what_was_measured_and_amdahl_says_the_rest() -> None:
    share = parallel_share(1.6, 2)
    assert share == pytest.approx(0.75)
    assert alone_ratio(share, 2, 1) == pytest.approx(1.6), "back to one thread"
    assert alone_ratio(share, 1, 4) == pytest.approx(0.25 + 0.75 / 4)
    assert alone_ratio(share, 2, 2) == 1.0
    slowed = parallel_share(0.9, 2)
    assert slowed == pytest.approx(-2 / 9)
    assert alone_ratio(slowed, 2, 1) == pytest.approx(0.9), "one thread is faster"
    assert together(4, 2, 2, parallel=slowed)[0] == pytest.approx(1.8), "waiting threads leave their cores to others"
    assert together(2, 2, 2, parallel=slowed)[0] == pytest.approx(0.9), "as long as on one thread"
    assert together(1, 2, 2, parallel=slowed)[0] == together(2, 2, 4, parallel=slowed)[0] == 1.0, "cores are free"
    assert parallel_share(0.1, 2) == -1.0, "no more than half as long again: the rest was another load"
    assert parallel_share(3.0, 2) == 1.0


def test_an_unknown_gain_costs_certainty_only_where_threads_change() -> None:
    assert unknown_parallel(2, 2) == (0.9, 0.0)
    assert unknown_parallel(2, 1) == unknown_parallel(1, 2) == (0.9, 0.2)
    assert parallel_share(1.6, 1) == 0.9, "one thread says nothing about several"


@pytest.mark.parametrize(
    ("ranks", "threads", "cores", "expected"),
    [(1, 2, 2, 1.0), (2, 1, 2, 1.0), (4, 1, 2, 2.0), (3, 1, 2, 1.5), (8, 4, 64, 1.0), (16, 1, 4, 4.0)],
)
def test_ranks_take_turns_on_too_few_cores(ranks: int, threads: int, cores: int, expected: float) -> None:
    assert together(ranks, threads, cores)[0] == pytest.approx(expected)
    assert turns(ranks, cores) == max(1.0, ranks / cores)


def test_threads_that_take_turns_keep_as_many_cores_busy_as_they_gain() -> None:
    stretch, spread = together(2, 2, 2, parallel=0.5)
    assert threads_gain(0.5, 2) == pytest.approx(4 / 3)
    assert stretch == pytest.approx(4 / 3)
    assert together(4, 2, 2, parallel=0.5)[0] == pytest.approx(8 / 3)
    assert together(4, 2, 2, parallel=0.0)[0] == pytest.approx(2.0), "threads that do nothing take no core"
    assert spread > together(4, 1, 2)[1] > 0
    assert turns(64, None) == 1.0, "unknown cores are not shared"


def test_a_probe_of_the_same_ranks_replaces_the_formula_and_a_like_one_corrects_it() -> None:
    probes = (SharingProbe(2, 4, 1, 1.1), SharingProbe(2, 2, 2, 1.5, wait=0.0))
    assert together(4, 1, 2, probes=probes)[0] == pytest.approx(2.2)
    assert together(8, 1, 2, probes=probes)[0] == pytest.approx(4.4)
    assert together(2, 2, 2, parallel=1.0, probes=probes)[0] == pytest.approx(3.0)
    assert together(4, 1, 8, probes=probes)[0] == 1.0, "a probe of another host"
    assert together(2, 1, 2, probes=(SharingProbe(2, 2, 1, 0.9),))[0] == 1.0, "company makes nobody faster"
    assert together(8, 1, 2, probes=probes)[1] > together(4, 1, 2, probes=probes)[1] > 0


def test_a_probe_whose_turns_differ_counts_less_than_one_whose_turns_agree() -> None:
    sure, unsure = (together(4, 1, 2, probes=(SharingProbe(2, 4, 1, 1.5, spread),)) for spread in (0.0, 0.08))
    assert sure == (pytest.approx(3.0), pytest.approx(0.04))
    # As uncertain as the formula: half of the logarithm, and the formula's spread over the root of two.
    assert unsure[0] == pytest.approx(2 * 1.5**0.5)
    assert unsure[1] == pytest.approx((0.04**2 + 0.08**2 / 2) ** 0.5)
    wild = together(2, 2, 2, parallel=1.0, probes=(SharingProbe(2, 2, 2, 1.72, 3.0, 0.0),))
    assert wild == (pytest.approx(2.0, rel=0.01), pytest.approx((0.04**2 + 0.15**2) ** 0.5, rel=0.01))


def test_a_probe_of_several_threads_that_does_not_know_their_meetings_is_not_used() -> None:
    assert together(2, 2, 2, parallel=1.0, probes=(SharingProbe(2, 2, 2, 3.2),)) == together(2, 2, 2, parallel=1.0)


def test_threads_meet_where_a_convolution_moves_much_more_than_its_weights() -> None:
    # ResNet-20 at batch 16: the first stage splits the batch between threads, the last its channels.
    assert meets(4 * 16 * 2 * 16 * 32 * 32, 4 * 16 * 16 * 9)
    assert not meets(4 * 16 * 2 * 64 * 8 * 8, 4 * 64 * 64 * 9)
    assert not meets(1.0, 0.0), "nothing is summed"


def test_a_meeting_wastes_a_turn_of_one_core_where_threads_outnumber_cores() -> None:
    assert meeting_seconds(4, 1, 2) == meeting_seconds(1, 2, 2) == meeting_seconds(2, 2, 4) == (0.0, 0.0)
    assert meeting_seconds(2, 2, 2) == (pytest.approx(3e-3), 0.6)
    assert meeting_seconds(4, 2, 2)[0] == pytest.approx(6e-3), "every rank waits for the turns of all"
    probes = (SharingProbe(2, 2, 1, 1.0), SharingProbe(2, 2, 2, 1.0, wait=4e-3), SharingProbe(2, 4, 2, 1.0, wait=5e-3))
    assert meeting_seconds(2, 2, 2, probes=probes) == (pytest.approx(4e-3), 0.3)
    assert meeting_seconds(4, 2, 2, probes=probes)[0] == pytest.approx(10e-3)
    assert meeting_seconds(2, 2, 2, probes=(SharingProbe(2, 2, 2, 1.0, wait=0.03),))[0] == pytest.approx(10e-3)
    assert meeting_seconds(4, 2, 4, probes=probes) == (pytest.approx(3e-3), 0.6), "a probe of another host"


def test_as_many_ranks_compute_at_once_as_there_are_cores_for() -> None:
    assert at_once(4, 1, 2) == 2.0
    assert at_once(2, 2, 2) == 1.0
    assert at_once(4, 1, None) == 4.0


def test_the_words_name_ranks_cores_and_threads() -> None:
    assert shared_words(4, 1, 2) == "4 ranks share 2 cores, 1 thread each"
    assert shared_words(2, 1, 2) == "2 ranks on 2 cores, 1 thread each"
    assert shared_words(2, 2, 2) == "2 ranks share 2 cores, 2 threads each"
    assert shared_words(1, 1, 1) == "1 rank of 1 thread on 1 core"


@pytest.mark.parametrize(
    ("ranks", "threads", "cores", "spread"),
    [(1, 2, 2, 0.0), (1, 4, 2, 0.15), (2, 1, 2, 0.08), (4, 1, 2, 0.08), (2, 2, 4, 0.08), (3, 2, 4, 0.15)],
)
def test_turns_of_several_threads_are_least_certain(ranks: int, threads: int, cores: int, spread: float) -> None:
    assert together(ranks, threads, cores)[1] == spread


@pytest.mark.parametrize("parallel", [-0.5, 0.0, 0.5, 0.9, 1.0])
def test_a_stretch_is_the_cores_that_all_ranks_keep_busy_over_those_there_are(parallel: float) -> None:
    for ranks in range(1, 9):
        for threads in range(1, 5):
            for cores in (1, 2, 4, 6):
                busy = 1 / (1 - parallel + parallel / threads)
                alone = ranks * threads <= cores
                wanted = 1.0 if alone else max(min(1.0, busy) if ranks > 1 else 1.0, ranks * busy / cores)
                assert together(ranks, threads, cores, parallel=parallel)[0] == pytest.approx(wanted)
                assert at_once(ranks, threads, cores) == max(1.0, min(ranks, cores / threads))


def test_the_usual_parallel_share_is_nine_tenths() -> None:
    assert together(2, 4, 4)[0] == pytest.approx(2 / (0.1 + 0.9 / 4) / 4)


def test_the_nearest_probe_counts_by_ranks_before_threads_and_costs_certainty_where_it_is_far() -> None:
    probes = (SharingProbe(2, 4, 1, 1.1), SharingProbe(2, 4, 3, 1.3, wait=0.0), SharingProbe(2, 8, 2, 1.7, wait=0.0))
    assert together(4, 1, 2, probes=probes) == (pytest.approx(2.2), pytest.approx(0.04))
    assert together(5, 1, 2, probes=probes) == (pytest.approx(2.5 * 1.1), pytest.approx(0.06))
    assert together(7, 1, 2, probes=probes)[0] == pytest.approx(3.5 * 1.7)
    stretch = 4 * threads_gain(0.5, 4) / 2
    assert together(4, 4, 2, parallel=0.5, probes=probes) == (pytest.approx(stretch * 1.3), pytest.approx(0.06))
    assert together(1, 2, 2, probes=probes) == (1.0, 0.0)


def test_no_ranks_have_all_cores() -> None:
    assert fair_threads(8, 0) == 8


def test_the_words_of_one_rank_and_of_several_cores() -> None:
    assert shared_words(1, 2, 4) == "1 rank of 2 threads on 4 cores"
    assert shared_words(4, 2, 1) == "4 ranks share 1 core, 2 threads each"
