"""A device's step at any batch, by hand: two layers with gradients and one without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.cost.roofline import LayerTimes
from paceline.errors import Unsupported
from paceline.model.compute import BATCH_SPREAD, DeviceWork

NOTHING = np.zeros((2, 3))
TIMES = LayerTimes(
    names=("a", "b", "c"),
    gradients=((10.0, 20.0), (), (30.0,)),
    compute=np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]),
    memory=NOTHING,
    fixed=NOTHING,
    launch=NOTHING + 0.5,
)
WORK = DeviceWork(TIMES, (2, 1, 0), 0.25, 0.01, 0.02, "made", measured=4, inputs=(0.1, 0.2), crowd=2, threads=3)


def test_layers_in_order_of_readiness_with_those_without_gradients_before_the_next() -> None:
    step = WORK.at(2)
    assert step.gradients.tolist() == [30.0, 10.0, 20.0]
    assert step.layer.tolist() == [0, 2, 2]
    # Forward of c, then of b and a together, whose second gradient takes no time of its own.
    assert step.forward == pytest.approx([6.5, 4.5 + 2.5, 0.0])
    assert step.backward == pytest.approx([12.5, 8.5 + 4.5, 0.0])
    assert (step.update, step.io, step.h2d) == (0.25, 0.2, 0.4)
    assert (step.crowd, step.threads, step.jitter) == (2, 3, 0.01)


def test_what_follows_the_last_gradient_counts_with_it() -> None:
    step = replace(WORK, order=(0, 2, 1)).at(2)
    assert step.forward == pytest.approx([2.5, 0.0, 6.5 + 4.5])


def test_another_batch_than_the_measured_one_is_less_sure_and_says_so() -> None:
    assert (WORK.at(4).spread, WORK.at(4).basis) == (0.02, "made")
    for batch in (1, 16):
        step = WORK.at(batch)
        assert step.spread == pytest.approx((0.02**2 + (2 * BATCH_SPREAD) ** 2) ** 0.5)
        assert step.basis == f"made, scaled from batch 4 to {batch}"
    assert replace(WORK, measured=None).at(16).spread == 0.02


def test_no_samples_take_no_time() -> None:
    step = WORK.at(0)
    assert step.forward.sum() == step.backward.sum() == step.io == 0.0
    assert step.spread == 0.02


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(Unsupported, match="no parameters"):
        replace(WORK, times=replace(TIMES, gradients=((), (), ()))).at(1)
