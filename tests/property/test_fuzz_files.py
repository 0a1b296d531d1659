"""Every mutated study, cluster or network file loads, or raises an error that names file and field."""

import collections
from pathlib import Path

import pytest

from paceline.catalog import cluster, network, shipped_catalog
from paceline.errors import InputError, SpecError
from paceline.spec.load import dump, load_cases
from tests.property.mutations import mutants

EXAMPLES = Path(__file__).parents[2] / "examples"
STUDIES = [path.read_bytes() for path in sorted((EXAMPLES / "studies").glob("*.toml"))]
CLUSTERS = [path.read_bytes() for path in sorted((EXAMPLES / "clusters").glob("*.toml"))]


def refusal(load, path):
    """The InputError of an invalid file, None for a valid file; any other exception fails the test."""
    try:
        load(path)
    except InputError as error:
        return error
    return None


def check(error, path):
    """Check that the error names the file, and that each of its problems names a field."""
    assert error.exit_code == 2
    assert str(path) in str(error)
    if isinstance(error, SpecError):
        assert error.problems
        assert all(problem.file and problem.field and problem.given and problem.expected for problem in error.problems)


def fuzz(load, texts, *, count, folder, seed):
    path = folder / "given.toml"
    outcomes = collections.Counter()
    for data in mutants(texts, count, seed=seed):
        path.write_bytes(data)
        error = refusal(load, path)
        outcomes["valid" if error is None else "refused"] += 1
        if error is not None:
            check(error, path)
    assert [item.name for item in folder.iterdir()] == ["given.toml"], "loading wrote something"
    return outcomes


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.full)])
def test_thousands_of_mutated_studies_load_or_are_refused(tmp_path, count):
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "unequal.toml").write_bytes(CLUSTERS[0])
    folder = tmp_path / "studies"
    folder.mkdir()
    outcomes = fuzz(lambda path: load_cases(path, shipped_catalog()), STUDIES, count=count, folder=folder, seed=1)
    assert outcomes.total() == count
    assert outcomes["refused"] > count / 2, "too few mutations are invalid"
    assert outcomes["valid"] > count / 100, "too few mutations are valid"


@pytest.mark.parametrize("count", [150, pytest.param(4_000, marks=pytest.mark.full)])
def test_mutated_clusters_load_or_are_refused(tmp_path, count):
    outcomes = fuzz(lambda path: cluster(str(path)), CLUSTERS, count=count, folder=tmp_path, seed=2)
    assert outcomes["refused"] > count / 2
    assert outcomes["valid"] > count / 100


@pytest.mark.parametrize("count", [150, pytest.param(4_000, marks=pytest.mark.full)])
def test_mutated_networks_load_or_are_refused(tmp_path, count):
    texts = [dump(network("lenet")).encode(), dump(network("gpt2-tiny")).encode()]
    outcomes = fuzz(lambda path: network(str(path)), texts, count=count, folder=tmp_path, seed=3)
    assert outcomes["refused"] > count / 2
    assert outcomes["valid"] > count / 100
