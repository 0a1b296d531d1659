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
