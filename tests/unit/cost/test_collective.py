import numpy as np
import pytest

from paceline.cost.collective import Fabric, allreduce, fabric_of, gather_or_scatter, parameter_server
from paceline.spec.cluster import place
from tests.unit.model.clusters import cluster

FLAT = Fabric(8, 8, 1, 0.0, 0.0, 1e-5, 1e-9)
N = np.array([1e6])


@pytest.mark.parametrize(
    ("algorithm", "seconds"),
    [
        ("ring", 14e-5 + 1.75e-3),
        ("halving_doubling", 6e-5 + 1.75e-3),
        ("recursive_doubling", 3e-5 + 3e-3),
        ("tree", 6e-5 + 6e-3),
        ("double_tree", 6e-5 + 2e-3),
        ("hierarchical", 14e-5 + 1.75e-3),
    ],
)
def test_algorithms_cost_what_the_equations_say(algorithm, seconds):
    assert allreduce(FLAT, N, algorithm)[0] == pytest.approx(seconds)


def test_one_rank_communicates_nothing():
    one = Fabric(1, 1, 1, 1.0, 1.0, 1.0, 1.0)
    assert allreduce(one, N)[0] == gather_or_scatter(one, N)[0] == parameter_server(one, N, servers=1)[0] == 0.0


def test_a_ring_over_hosts_is_as_slow_as_its_ports():
    found = fabric_of(cluster(2, 4), place(cluster(2, 4), 8))
    assert (found.ranks, found.hosts, found.local) == (8, 2, 4)
    seconds = allreduce(found, np.array([1e9]))[0]
    assert seconds == pytest.approx(1.75 * 1e9 / 1.25e9, rel=0.01)
    inside = fabric_of(cluster(2, 4), place(cluster(2, 4), 4))
    assert allreduce(inside, np.array([1e9]))[0] == pytest.approx(1.5 * 1e9 / 12e9, rel=0.01)


def test_servers_are_shared_by_all_workers():
    one, four = (parameter_server(FLAT, N, servers=count)[0] for count in (1, 4))
    assert one > 3 * four
    assert parameter_server(FLAT, N, servers=0)[0] == pytest.approx(2e-5 + 2 * 7 / 8 * 1e-3)
