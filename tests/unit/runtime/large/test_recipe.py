"""The factor on the rate that a large batch gets."""

from __future__ import annotations

import pytest

from paceline.errors import InputError
from paceline.runtime.large.noise import NoiseScale
from paceline.runtime.large.recipe import LargeBatch


def test_without_noise_the_factor_grows_linearly_to_the_ratio_of_batches() -> None:
    recipe = LargeBatch(64, warmup=5)
    found = [recipe.factor(step, batch=256, noise=None) for step in range(7)]
    assert found == pytest.approx([1, 1.6, 2.2, 2.8, 3.4, 4, 4])


def test_noise_limits_the_factor() -> None:
    """With a noise scale of 192: (1 + 192 / 64) / (1 + 192 / 256)."""
    recipe = LargeBatch(64, warmup=0)
    assert recipe.factor(0, batch=256, noise=192.0) == pytest.approx(4 / 1.75)
    assert recipe.factor(0, batch=10**9, noise=192.0) == pytest.approx(4)
    assert recipe.factor(0, batch=256, noise=1e9) == pytest.approx(4, rel=1e-5)


def test_a_smaller_batch_gets_a_smaller_rate_whatever_the_noise() -> None:
    assert LargeBatch(64, warmup=0).factor(0, batch=16, noise=10.0) == 0.25


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"reference_batch": 0}, "at least 1 sample"),
        ({"reference_batch": 8, "warmup": -1}, "0 steps or more"),
        ({"reference_batch": 8, "layerwise": "larz"}, "none, lars, lamb"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        LargeBatch(**wrong)  # type: ignore[arg-type]


def test_ranks_with_unequal_shares_are_one_small_batch() -> None:
    """|G|^2 = 2 and tr(S) = 24 give these norms for 4, 12 and all 16 samples; one rank alone tells nothing."""
    noise = NoiseScale()
    noise.observe_ranks((16, 0), (3.5, 0.0), 3.5)
    assert noise.samples is None
    for _ in range(3):
        noise.observe_ranks((4, 0, 12), (2 + 24 / 4, 0.0, 2 + 24 / 12), 2 + 24 / 16)
    assert noise.samples == pytest.approx(12)
    late = NoiseScale()
    late.load_state_dict(noise.state_dict())
    assert late.samples == noise.samples
