import pytest

from paceline import errors
from paceline.errors import InputError, PacelineError, Problem, SpecError, UnitError, UnknownName, nearest


def test_every_error_is_in_the_tree_and_in_its_drawing():
    drawn = errors.__doc__ or ""
    classes = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, PacelineError)]
    assert len(classes) >= 9
    assert [item.__name__ for item in classes if item.__name__ not in drawn] == []
    assert [item.__name__ for item in classes if item.__name__ not in errors.__all__] == []


def test_input_errors_exit_with_2_and_others_with_1():
    for item in (InputError, SpecError, UnitError, UnknownName, errors.Unsupported):
        assert item.exit_code == 2
    for item in (errors.EnvironmentFailed, errors.LaunchFailed, errors.StoreError):
        assert item.exit_code == 1


def test_unknown_name_suggests_the_nearest():
    assert UnknownName("network", "resnet5O", ["resnet50", "vgg16"]).hint == "did you mean 'resnet50'?"


def test_unknown_name_lists_what_is_known_if_nothing_is_near():
    assert UnknownName("network", "zzz", ["b", "a"]).hint == "known: a, b"
    assert UnknownName("network", "zzz", []).hint == "known: none yet"


def test_a_long_list_of_known_names_is_cut():
    hint = UnknownName("link", "zzz", [f"name{number}" for number in range(100)]).hint
    assert hint is not None
    assert hint.endswith("... (100 in all)")
    assert len(hint) < 300


def test_spec_error_names_every_problem_with_its_place():
    error = SpecError(
        "a.toml", [Problem("a.toml", 3, "batch", "0", "at least 1"), Problem("a.toml", None, "x", "y", "z")]
    )
    assert str(error) == (
        "a.toml has 2 problems\n  a.toml:3: batch: got 0, expected at least 1\n  a.toml: x: got y, expected z"
    )


@pytest.mark.parametrize(("name", "found"), [("RESNET50", "resnet50"), ("", None), ("qqqq", None)])
def test_nearest(name, found):
    assert nearest(name, ["resnet50", "alexnet"]) == found
