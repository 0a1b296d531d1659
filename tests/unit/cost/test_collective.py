from dataclasses import astuple, replace
from math import log2

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


def fabrics():
    """Ranks on hosts that need not be full, with links inside that may be slower than those between."""
    rng = np.random.default_rng(17)
    for hosts in (1, 2, 3, 8):
        for local in (1, 2, 5):
            for ranks in {hosts + local - 1, hosts * local}:
                yield Fabric(ranks, hosts, local, *rng.uniform(1e-7, 1e-3, 4), reduce_per_byte=rng.uniform(0, 1e-3))


def seconds_by_hand(fabric, n, algorithm):
    """Every algorithm as its paper writes it: start-ups, bytes of the slowest link, bytes reduced."""
    p, h, m, g = fabric.ranks, fabric.hosts, fabric.local, fabric.reduce_per_byte
    lan, bus = (fabric.between_latency, fabric.between_per_byte), (fabric.inside_latency, fabric.inside_per_byte)
    links = [link for link, used in ((lan, h > 1), (bus, m > 1)) if used]
    if p == 1:
        return 0.0
    a = (h * lan[0] + (p - h) * bus[0]) / p if h > 1 else bus[0]
    b = max(link[1] for link in links)

    def ring(ranks, start, per_byte, reduced):
        return 2 * (ranks - 1) * start + (ranks - 1) / ranks * n * (per_byte + per_byte + reduced)

    return {
        "ring": ring(p, a, b, g),
        "halving_doubling": 2 * log2(p) * a + (n - n / p) * (2 * b + g),
        "recursive_doubling": log2(p) * a + log2(p) * n * b + log2(p) * n * g,
        "tree": 2 * log2(p) * a + 2 * log2(p) * n * b + log2(p) * n * g,
        "hierarchical": ring(m, *bus, g) + ring(h, *lan, g / m),
        "double_tree": 2 * log2(h) * lan[0] + 2 * (m - 1) * bus[0] + 2 * n * b + n * g,
        "gather": (p - 1) * a + (n - n / p) * b,
    }[algorithm]


@pytest.mark.parametrize("algorithm", [None, "ring", "halving_doubling", "recursive_doubling", "tree", "hierarchical",
                                       "double_tree"])  # fmt: skip
def test_every_fabric_costs_what_the_papers_say(algorithm):
    sizes = np.array([0.0, 1e3, 7e8])
    for fabric in fabrics():
        wanted = [seconds_by_hand(fabric, n, algorithm or "ring") for n in sizes]
        assert allreduce(fabric, sizes, algorithm) == pytest.approx(wanted, rel=1e-9), fabric


def test_a_gather_on_every_fabric_is_half_a_ring_without_reduction():
    sizes = np.array([0.0, 1e3, 7e8])
    for fabric in fabrics():
        wanted = [seconds_by_hand(fabric, n, "gather") for n in sizes]
        assert gather_or_scatter(fabric, sizes) == pytest.approx(wanted, rel=1e-9), fabric


@pytest.mark.parametrize("servers", [0, 1, 2, 3, 7])
def test_every_server_carries_its_share_of_every_worker(servers):
    for fabric in fabrics():
        p, h, m, lan = fabric.ranks, fabric.hosts, fabric.local, fabric.between_per_byte
        if h == 1:
            wanted = 0.0 if p == 1 else 2 * fabric.inside_latency + 2 * (m - 1) * 1e6 * fabric.inside_per_byte
        else:
            port = m * (h - 1) / h if servers == 0 else max(m, p / servers)
            wanted = 2 * fabric.between_latency + 2e6 * lan * port
        assert parameter_server(fabric, N, servers=servers)[0] == pytest.approx(wanted), fabric
