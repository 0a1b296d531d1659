from dataclasses import astuple, replace

import numpy as np
import pytest

from paceline.cost.collective import (
    Endpoint,
    Fabric,
    allreduce,
    endpoint_of,
    fabric_between,
    fabric_of,
    gather_or_scatter,
    parameter_server,
    syncer_round,
)
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
    assert one == pytest.approx(2e-5 + 16e-3)
    assert four == pytest.approx(2e-5 + 4e-3)
    assert parameter_server(FLAT, N, servers=0)[0] == pytest.approx(2e-5 + 2 * 7 / 8 * 1e-3)


NODES = Fabric(8, 2, 4, 1e-6, 1e-10, 1e-5, 1e-9, reduce_per_byte=4e-11)
"""Two hosts of four devices, a bus ten times as fast as the network, and a cost of reducing."""
NODE = Fabric(4, 1, 4, 1e-6, 1e-10, 1e-5, 1e-9, reduce_per_byte=4e-11)


@pytest.mark.parametrize(
    ("algorithm", "seconds"),
    [
        (None, 45.5e-6 + 1.785e-3),  # 14 hops, two of eight between hosts: 3.25 us each
        ("ring", 45.5e-6 + 1.785e-3),
        ("halving_doubling", 19.5e-6 + 1.785e-3),
        ("recursive_doubling", 3 * (3.25e-6 + 1.04e-3)),
        ("tree", 3 * (6.5e-6 + 2e-3 + 40e-6)),
        ("hierarchical", (6e-6 + 180e-6) + (20e-6 + 1e-3 + 5e-6)),  # each port reduces a quarter
        ("double_tree", 20e-6 + 6e-6 + 2.04e-3),
    ],
)
def test_hosts_with_several_devices_add_the_bus_and_the_reduction(algorithm, seconds):
    assert allreduce(NODES, N, algorithm)[0] == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize(
    ("algorithm", "seconds"), [("ring", 186e-6), ("hierarchical", 186e-6), ("double_tree", 6e-6 + 240e-6)]
)
def test_one_host_uses_its_bus_alone(algorithm, seconds):
    assert allreduce(NODE, N, algorithm)[0] == pytest.approx(seconds, rel=1e-9)


def test_a_bus_slower_than_the_network_counts_where_a_host_has_several_devices():
    slow = replace(NODES, inside_per_byte=3e-9)
    assert allreduce(slow, N)[0] == pytest.approx(45.5e-6 + 0.875 * 6.04e-3)
    assert allreduce(slow, N, "double_tree")[0] == pytest.approx(26e-6 + 6.04e-3)
    single = Fabric(2, 2, 1, 1e-6, 3e-9, 1e-5, 1e-9)
    assert allreduce(single, N)[0] == pytest.approx(20e-6 + 1e-3)
    assert allreduce(single, N, "double_tree")[0] == pytest.approx(20e-6 + 2e-3)


def test_a_gather_passes_every_hop_once():
    assert gather_or_scatter(NODES, N)[0] == pytest.approx(7 * 3.25e-6 + 0.875e-3)


@pytest.mark.parametrize(("servers", "seconds"), [(0, 4e-3), (1, 16e-3), (2, 8e-3), (4, 8e-3)])
def test_workers_of_a_host_share_its_port_to_the_servers(servers, seconds):
    assert parameter_server(NODES, N, servers=servers)[0] == pytest.approx(20e-6 + seconds)


def test_a_server_on_the_only_host_serves_the_other_devices_over_the_bus():
    assert parameter_server(NODE, N, servers=1)[0] == pytest.approx(2e-6 + 3 * 0.2e-3)


def test_a_round_of_the_syncer_goes_both_ways_over_a_shared_link():
    assert syncer_round(1e6, bandwidth=1e8, latency=1e-3) == pytest.approx(0.024)
    assert syncer_round(1e6, bandwidth=1e8, latency=1e-3, sharing=3) == pytest.approx(0.064)


def test_a_slowed_fabric_multiplies_latencies_and_seconds_per_byte():
    wanted = Fabric(8, 2, 4, 2e-6, 3e-10, 2e-5, 3e-9, reduce_per_byte=12e-11)
    assert astuple(NODES.slowed(2, 3)) == pytest.approx(astuple(wanted))


def test_the_slowest_link_of_any_rank_counts():
    ranks = [
        Endpoint("a", (1e10, 1e-6), (1e9, 1e-5)),
        Endpoint("a", (2e10, 3e-6), (1e9, 1e-5)),
        Endpoint("b", (5e9, 2e-6), (2e9, 4e-5)),
    ]
    assert fabric_between(ranks) == Fabric(3, 2, 2, 3e-6, 2e-10, 4e-5, 1e-9)


def test_ports_of_a_host_add_up():
    host = cluster(1, 2).hosts[0].model_copy(update={"nics": 4})
    assert endpoint_of(host, 0) == Endpoint(0, (12e9, 5e-6), (5e9, 2e-5))
