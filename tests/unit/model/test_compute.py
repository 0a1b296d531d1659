"""A device's step at any batch, by hand: two layers with gradients and one without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline import catalog
from paceline.cost.roofline import LayerTimes
from paceline.errors import Unsupported
from paceline.measurements.profile import Profile, ProfiledLayer
from paceline.model.compute import (
    BATCH_SPREAD,
    MOVED_SPREAD,
    DeviceWork,
    _input_bytes,
    in_chunks,
    moved_by_rooflines,
    work_of_profile,
)

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


def test_a_move_takes_the_ratio_of_rooflines_of_each_gradient_and_of_all_where_one_takes_no_time() -> None:
    work = replace(WORK.at(2), spread=0.3)
    wanted = replace(work, forward=np.array([13.0, 1.4, 5.0]), backward=3 * work.backward, update=1.0, jitter=0.05)
    moved = moved_by_rooflines(work, measured=work, wanted=wanted)
    # Of the third gradient nothing was measured: it keeps its zero.
    assert moved.forward == pytest.approx([13.0, 1.4, 0.0])
    assert moved.backward == pytest.approx(3 * work.backward)
    assert (moved.update, moved.jitter, moved.threads, moved.parallel) == (1.0, 0.05, None, None)
    assert moved.spread == pytest.approx(np.hypot(0.3, MOVED_SPREAD))
    # Other gradients than the roofline's: all by the ratio of sums, (13 + 1.4 + 5) / 13.5.
    fewer = replace(work, forward=np.array([2.0]), backward=np.array([4.0]), gradients=np.array([60.0]))
    other = moved_by_rooflines(fewer, measured=work, wanted=wanted)
    assert (other.forward, other.backward) == (pytest.approx([2.0 * 19.4 / 13.5]), pytest.approx([12.0]))


@pytest.mark.parametrize(
    ("samples", "largest", "last", "before"), [(4, None, 4, 0), (4, 4, 4, 0), (5, 4, 1, 1), (12, 4, 4, 2), (9, 4, 1, 2)]
)
def test_a_batch_beyond_the_memory_takes_chunk_after_chunk(
    samples: int, largest: int | None, last: int, before: int
) -> None:
    step = in_chunks(WORK.at, samples, largest)
    # A chunk of n samples takes 6 n forward, 12 n backward, and half a second for each layer and pass.
    assert step.forward.sum() == pytest.approx(6 * last + 1.5)
    assert step.before == pytest.approx(before * (18 * 4 + 3.0))
    assert step.start == pytest.approx(step.before + 6 * last + 1.5)
    assert step.compute == pytest.approx(step.before + 18 * last + 3.0)
    assert (step.total_bytes, step.num_gradients) == (60.0, 3)


def test_a_profile_s_input_grows_with_the_batch_reading_and_copying_apart() -> None:
    layers = (ProfiledLayer(name="a", forward=0.1, backward=0.2, gradients=(4.0,)),)
    step = work_of_profile(Profile(network="mine", batch=4, layers=layers, update=0.1, io=0.4, h2d=0.8)).at(8)
    assert (step.io, step.h2d) == pytest.approx((0.8, 1.6))


def test_a_batch_of_texts_has_tokens_of_eight_bytes_and_one_of_images_floats() -> None:
    text, image = catalog.network("gpt2"), catalog.network("lenet")
    assert _input_bytes(text, 2) == 2 * text.input.shape[0] * 8
    assert _input_bytes(image, 3) == 3 * float(np.prod(image.input.shape)) * 4
