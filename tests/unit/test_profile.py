"""Profiles: what a step sums to, the order of gradients, and files."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from paceline.errors import Unsupported
from paceline.measurements.profile import Profile, ProfiledLayer, read_profile, write_profile
from paceline.measurements.results import load_launches
from paceline.model.profiles import profile_from
from tests.made import Made, write

LAYERS = (
    ProfiledLayer(name="a", forward=0.1, backward=0.3, gradients=(40, 4)),
    ProfiledLayer(name="b", forward=0.2, backward=0.5),
)


def test_a_step_is_forward_backward_and_update() -> None:
    profile = Profile(network="n", batch=4, layers=LAYERS, update=0.05, io=9.0, h2d=9.0)
    assert profile.step == pytest.approx(1.15)
    assert profile.rows == [("a", 0.1, 0.3, (40, 4)), ("b", 0.2, 0.5, ())]


def test_gradients_become_ready_in_an_order_that_names_each_layer_once(tmp_path: Path) -> None:
    profile = Profile(network="n", batch=4, layers=LAYERS, ready=("b", "a"), crowd=2)
    write_profile(profile, tmp_path / "p.json")
    assert read_profile(tmp_path / "p.json") == profile
    for wrong in (("a",), ("a", "a"), ("a", "b", "c"), ("a", "c")):
        with pytest.raises(ValidationError, match="ready must name every layer exactly once"):
            Profile(network="n", batch=4, layers=LAYERS, ready=wrong)
    with pytest.raises(ValidationError, match="two layers have the same name"):
        Profile(network="n", batch=4, layers=(LAYERS[0], LAYERS[0]))


@pytest.mark.parametrize(("name", "seconds"), [("", 0.1), ("n" * 300, 0.1), ("conv", 0.0)])
def test_spans_that_make_no_profile_are_refused_with_the_run(tmp_path: Path, name: str, seconds: float) -> None:
    (launches,) = load_launches(write(tmp_path, [Made(ranks=1)]), "made-1")
    rows = [("forward", name, seconds, 0.0, None), ("backward", f"{name}.weight", seconds, 0.1, 4)]
    with pytest.raises(Unsupported, match="the layers of made-1-0000-000 make no profile"):
        profile_from(launches, rows, jitter=0.0)
