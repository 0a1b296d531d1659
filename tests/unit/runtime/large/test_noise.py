"""The gradient noise scale from known noise."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import InputError
from paceline.runtime.large.noise import NoiseScale


def test_noise_scale_is_found_from_known_noise() -> None:
    generator = np.random.default_rng(1)
    signal, sigma, small, large = np.full(200, 0.1), 2.0, 8, 64
    scale = NoiseScale(smoothing=0.999)
    for _ in range(600):
        samples = signal + sigma * generator.standard_normal((large, 200))
        norms = [float((samples[:count].mean(0) ** 2).sum()) for count in (small, large)]
        scale.observe((small, norms[0]), (large, norms[1]))
    expected = sigma**2 * 200 / float((signal**2).sum())
    assert scale.samples == pytest.approx(expected, rel=0.15)


def test_noise_scale_refuses_equal_batches() -> None:
    with pytest.raises(InputError):
        NoiseScale().observe((8, 1.0), (8, 1.0))


def test_old_steps_fade_by_a_twentieth_each_once_there_are_twenty() -> None:
    """|G|^2 = 2 and tr(S) = 24 for 30 steps, then one with 4 and 6: batches of 4 and 16 samples have these norms."""
    scale = NoiseScale()
    for _ in range(30):
        scale.observe((4, 2 + 24 / 4), (16, 2 + 24 / 16))
    scale.observe((4, 4 + 6 / 4), (16, 4 + 6 / 16))
    assert scale.samples == pytest.approx((0.95 * 24 + 0.05 * 6) / (0.95 * 2 + 0.05 * 4))
    young = NoiseScale()
    young.observe((4, 2 + 24 / 4), (16, 2 + 24 / 16))
    young.observe((4, 4 + 6 / 4), (16, 4 + 6 / 16))
    assert young.samples == pytest.approx((24 + 6) / (2 + 4)), "the first ones count alike"


@pytest.mark.parametrize(("small", "large"), [(3.0, 5.0), (8.0, 1.0)], ids=["no noise", "no signal"])
def test_without_noise_or_signal_there_is_no_scale(small: float, large: float) -> None:
    scale = NoiseScale()
    scale.observe((4, small), (16, large))
    assert scale.samples is None
