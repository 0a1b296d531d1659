"""What series have in common: features by hand, the prior of a series, and what is learnt from planted series."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.model.measured import curve, prior
from paceline.model.measured.names import parameters_of
from paceline.model.measured.points import series_of_rows
from paceline.model.measured.prior import (
    Population,
    _features,
    _improved,
    _ridge,
    adapted,
    group_of,
    learn,
    overlap_of,
    prior_of,
    shipped_population,
    write_population,
)

COUNTS = (1, 2, 4, 8, 16, 32)


def series(rates, network="ResNet-50", how="DDP", link="10GbE", batch=64.0, spread=None):
    rows = [
        {"network": network, "framework": how, "strategy": "", "device": "D", "link": link, "devices": float(count),
         "samples_per_s": rate, "devices_per_host": 4.0, "spread": spread, "batch_per_device": batch}
        for count, rate in rates.items()
    ]  # fmt: skip
    (found,) = series_of_rows(rows, "points")
    return found


def planted(network=0.5, link="10GbE", jitter=0.0, name="ResNet-50"):
    """Points on a curve that does not overlap; `network` is the cost of an exchange between two hosts over compute."""
    u = np.array([math.log(1 / 250), -4.5, -3.5, 0.0, math.log(network), 0.15, -5.5, -4.5])
    rates = {}
    for place, count in enumerate(COUNTS):
        seconds = curve.seconds(u, np.array([float(count)]), np.array([max(1.0, count / 4)]), np.zeros(1))[0]
        rates[count] = count / seconds * (1 + jitter * (-1) ** place)
    return series(rates, name, how="BSP", link=link)


def test_features_are_facts_in_logarithms():
    parameters, compute = parameters_of("ResNet-50"), 64 / 250
    inside = math.log(parameters * 4 / 10e9 / compute) + 3.5
    between = math.log(2 * parameters * 4 / 1.25e9 / compute) + 2.0
    short, speed = -math.log(compute / 0.3), math.log(250 / 300)
    found = _features(series({2: 500.0}, how="PS DDP", link="10GbE with TCP"), 1.0)
    assert found[0].tolist() == found[6].tolist() == [1, 0, 0, 0, 0, 0, 0]
    assert found[3].tolist() == [1, 0, 0, 0, 0.5, 0, 0], "nobody says how the devices of a host are linked"
    assert found[1] == pytest.approx([1, 1, inside, 0, 0, 0, 0])
    assert found[2] == pytest.approx([1, 1, inside, 1, 0, 0, 0])
    assert found[4] == pytest.approx([1, 1, between, 1, 1, 1, speed])
    assert found[5] == pytest.approx([1, 1, 0, 1, 1, 1, 0])
    assert found[7] == pytest.approx([1, 1, short, 1, 1, 0, speed])
    plain = _features(series({1: 250.0}, link="100Gb IB with RDMA"), 0.0)
    assert plain[4] == pytest.approx([1, 0, math.log(2 * parameters * 4 / 12.5e9 / compute) + 2.0, 0, 0, 0, speed])
    unknown = _features(series({1: 250.0}, link="carrier pigeon"), 0.0)
    assert unknown[4][2] == pytest.approx(math.log(2 * parameters * 4 / 3e9 / compute) + 2.0)


def test_what_is_not_known_is_no_feature():
    for one in (series({1: 250.0}, network="MyNet"), series({1: 250.0}, batch=None), series({1: 1e9})):
        found = _features(one, 0.0)
        assert (found[1][2], found[4][2], found[7][2]) == (0, 0, 0)
    assert _features(series({1: 1e6}), 0.0)[4][6] == 5.0, "no published device is faster"
    assert _features(series({1: 1e9}), 0.0)[4][6] == 0.0, "no device is as fast: another unit"
    assert _features(series({1: 2500.0}, network=""), 0.0)[4][6] == 0.0, "samples of nobody knows what"
    assert _features(series({1: 250.0}, network="BERT-Base"), 0.0)[4][6] == 0.0, "texts have no speed in images"


def test_series_of_one_link_and_kind_share_an_offset():
    one, served = series({1: 250.0}), series({1: 250.0}, how="PS DDP")
    assert (group_of(one, 1.0), group_of(served, 0.0)) == ("10gbe|ranks|1", "10gbe|servers|0")
    assert (overlap_of(one), overlap_of(series({1: 250.0}, how="BSP")), overlap_of(series({1: 1.0}, how="F"))) == (
        1,
        0,
        0,
    )


def test_the_prior_of_a_series_is_its_features_and_the_offset_of_its_link():
    one = series({1: 250.0})
    offset = np.arange(8.0)
    mean, precision = prior_of(Population(offsets={"10gbe|ranks|1": offset}), [one, one], [0.0, 1.0])
    between = _features(one, 0.0)[4][2]
    assert mean[0][4] == pytest.approx(-2.0 + 0.8 * between)
    assert mean[1] == pytest.approx(mean[0] + offset), "weights of overlap are zero before anything is learnt"
    assert precision[0][0].tolist() == [1e-4, *[0.0] * 7]
    assert np.diag(precision[1])[1:] == pytest.approx([1 / v for v in (1.0, 1.2, 0.3, 1.2, 0.15, 0.5, 1.0)])


def test_weights_are_drawn_to_where_they_began():
    features = np.zeros((3, 7))
    features[:, 0] = 1.0
    toward = np.array([2.0, 7.0, 0, 0, 0, 0, 0])
    found = _ridge(features, np.array([1.0, 4.0, 9.0]), np.array([1.0, 0.5, 0.0]), toward)
    assert found[:2] == pytest.approx([(1.0 + 2.0 + 0.5 * 2.0) / (1.5 + 0.5), 7.0])


def test_one_round_of_learning_by_hand():
    """One series whose points tell everything about one parameter, and nothing about the others."""
    population, one = Population(), planted()
    features = _features(one, 0.0)[None]
    prior, _ = prior_of(population, [one], [0.0])
    spread = np.diag(np.diag(population.covariance)).copy()[None]
    spread[0, 4, 4] = 0.0
    best = prior.copy()
    best[0, 4] += 1.0
    found = _improved(population, [one], (features, best, spread))
    assert found.weights[1] == pytest.approx(population.weights[1])
    x = features[0, 4]
    # Ridge with one row: the weights move along the features by 1 / (1 + x' R^-1 x) of what was missed.
    ridge = np.array([0.5, *[3.0] * 6])
    told = (x**2 / ridge).sum()
    assert features[0, 4] @ found.weights[4] == pytest.approx(prior[0, 4] + told / (1 + told))
    left = 1 / (1 + told)
    (name,) = found.offsets
    assert found.offsets[name][4] == pytest.approx(left / (1 + 3.0)), "an offset counts half from three series on"
    assert found.counts[name] == pytest.approx([0, 0, 0, 0, 1, 0, 0, 0])
    rest = left - left / 4
    start = np.diag(population.covariance)
    assert found.covariance[4, 4] == pytest.approx((rest**2 + 0.0 + 10 * start[4]) / 11)
    assert found.covariance[1, 1] == pytest.approx((start[1] + 10 * start[1]) / 11)
    assert (found.covariance[0, 0], found.covariance[0, 4]) == (9.0, 0.0)


@pytest.fixture(scope="module")
def learnt():
    return learn([planted(4.0), planted(4.0), planted(0.5, link="1GbE"), planted(0.5, link="1GbE")])


def test_a_learnt_prior_tells_links_apart(learnt):
    assert set(learnt.offsets) == {"10gbe|ranks|0", "1gbe|ranks|0"}
    both = [planted(4.0), planted(0.5, link="1GbE")]
    (before, _), (after, _) = (prior_of(one, both, [0.0, 0.0]) for one in (Population(), learnt))
    truth = [math.log(4.0), math.log(0.5)]
    for place in (0, 1):
        assert abs(after[place][4] - truth[place]) < 0.7 * abs(before[place][4] - truth[place])
    assert np.allclose(learnt.covariance, learnt.covariance.T)
    assert np.linalg.eigvalsh(learnt.covariance).min() > 0


def test_points_on_a_curve_speak_for_little_noise(learnt):
    assert learnt.noise.sum() == pytest.approx(1.0)
    assert learnt.noise[0] > 0.9
    noisy = learn([planted(link="NVLink", jitter=0.2), planted(link="NVLink", jitter=-0.2)])
    assert noisy.noise[2] > 0.9


def test_a_file_shifts_the_links_that_it_names():
    series_of_file = [planted(3.0), planted(3.0, name="VGG16")]
    base = Population(offsets={"1gbe|ranks|0": np.ones(8)}, counts={"1gbe|ranks|0": np.ones(8)})
    found = adapted(base, series_of_file)
    assert found.offsets["1gbe|ranks|0"].tolist() == [1.0] * 8
    own = found.offsets["10gbe|ranks|0"]
    assert [own[place] for place in (0, 3, 6)] == [0, 0, 0], "what a link does not shift"
    before, _ = prior_of(base, series_of_file, [0.0, 0.0])
    after, _ = prior_of(found, series_of_file, [0.0, 0.0])
    missed = np.log(3.0) - before[:, 4]
    moved = (after - before)[:, 4]
    # Two series that tell nearly all: 2 / (2 + 3) of what both missed.
    assert moved == pytest.approx(np.full(2, 0.4 * missed.mean()), rel=0.1)
    held = Population(offsets={"10gbe|ranks|0": own}, counts={"10gbe|ranks|0": np.full(8, 1000.0)})
    assert adapted(held, series_of_file).offsets["10gbe|ranks|0"][4] == pytest.approx(own[4], abs=0.01)


def test_before_anything_is_learnt_every_noise_is_as_likely():
    population = Population()
    assert population.noise.sum() == pytest.approx(1.0)
    assert set(population.noise) == {population.noise[0]}
    assert population.supported.tolist() == [4.0] * len(population.supported)


def test_what_ships_is_written_as_it_was_read(tmp_path):
    write_population(shipped_population(), tmp_path / "again.toml")
    assert (tmp_path / "again.toml").read_text(encoding="utf-8") == prior.FILE.read_text(encoding="utf-8")


def test_a_population_is_written_with_few_digits(tmp_path, monkeypatch):
    long = Population(
        weights=np.full((8, 7), 0.123456789),
        covariance=np.full((8, 8), 0.123456789),
        offsets={"b": np.full(8, 0.123456789), "a": np.full(8, -0.5)},
        counts={"b": np.full(8, 1.23456789), "a": np.full(8, 2.0)},
        discrepancy=np.full((6, 10), 0.123456789),
        supported=np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        noise=np.array([0.123456789, 0.876543211]),
    )
    write_population(long, tmp_path / "population.toml")
    monkeypatch.setattr(prior, "FILE", tmp_path / "population.toml")
    found = shipped_population.__wrapped__()
    assert (found.weights[1, 1], found.covariance[1, 1], found.discrepancy[1, 1]) == (0.12346, 0.123457, 0.12346)
    assert (found.offsets["b"][0], found.offsets["a"][0]) == (0.12346, -0.5)
    assert (found.counts["b"][0], found.counts["a"][0]) == (1.235, 2.0)
    assert found.supported.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert found.noise.tolist() == [0.1235, 0.8765]
