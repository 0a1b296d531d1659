"""What NCCL takes for each message: rings, double binary trees, sums in the switch."""

import numpy as np
import pytest

from paceline import catalog
from paceline.cost.collective import allreduce, allreduce_parts, chosen_algorithms, fabric_of, gather_or_scatter
from paceline.spec.cluster import Cluster, place

SIZES = np.array([1e3, 1e6, 25e6, 1e9])


def fabric(name, count=None, *, nccl=True):
    cluster = catalog.cluster(name)
    return fabric_of(cluster, place(cluster, count or cluster.num_devices), nccl=nccl)


def test_a_message_takes_what_the_constants_say():
    over = fabric("8x v100-sxm2 over infiniband-edr x 4")
    ring = 1.4e-6 * (8.4 + 2 * 28 * 3.4 + 2 * 3 * 14) + 2 * 31 / 32 * 1e9 / 12.5e9
    assert allreduce(over, 1e9, "ring") == pytest.approx(ring, rel=1e-9)
    tree = 1e-6 * (6.8 + 2 * 7 * 0.6 + 2 * 2 * 5.0) + 2 * 1e3 * 3.8 / 12.5e9
    assert allreduce(over, 1e3, "double_tree") == pytest.approx(tree, rel=1e-9)
    gather = 1e-6 * (8.4 + 28 * 3.4 + 3 * 14) + 31 / 32 * 1e9 / 12.5e9
    assert gather_or_scatter(over, np.array([1e9]))[0] == pytest.approx(gather, rel=1e-9)


def test_trees_win_over_many_hosts_and_rings_on_large_messages_of_few():
    assert chosen_algorithms(fabric("dgx-h100 x 64"), SIZES[:3]) == ["double_tree"] * 3
    assert chosen_algorithms(fabric("8x v100-sxm2 over infiniband-edr x 2"), SIZES)[-1] == "ring"
    assert chosen_algorithms(fabric("dgx-a100"), SIZES)[-1] == "ring"


def test_the_choice_is_never_slower_than_a_named_algorithm():
    for name in ("dgx-h100 x 64", "dgx-1 x 2", "4x rtx-3090", "dgx-a100"):
        over = fabric(name)
        best = allreduce(over, SIZES)
        assert (best <= np.minimum(allreduce(over, SIZES, "ring"), allreduce(over, SIZES, "double_tree"))).all()
        late, wide = allreduce_parts(over, SIZES)
        assert late + wide == pytest.approx(best, rel=1e-12)


def test_switches_that_add_up_are_used_inside_a_host_alone():
    assert chosen_algorithms(fabric("dgx-h100"), SIZES)[-1] == "nvls"
    assert "nvls" not in chosen_algorithms(fabric("dgx-h100", 2), SIZES)
    assert "nvls" not in chosen_algorithms(fabric("dgx-h100 x 2"), SIZES)
    assert "nvls" not in chosen_algorithms(fabric("dgx-a100"), SIZES)


def test_a_link_that_states_a_longer_latency_adds_it_to_every_hop():
    slow, fast = (fabric(f"4x rtx-3090 over {link} x 8") for link in ("10gbe", "100gbe"))
    late = [float(allreduce_parts(over, 1e9, "ring")[0]) for over in (slow, fast)]
    assert late[0] - late[1] == pytest.approx(1.4 * 2 * 7 * (32e-6 - 2.7e-6), rel=1e-9)


@pytest.mark.parametrize("name", ["local", "m2-ultra over 10gbe x 4", "xeon-gold-6148 over 10gbe x 4"])
def test_where_nccl_cannot_run_the_exchange_is_a_ring(name):
    over = fabric(name)
    assert over.nccl is None
    assert (allreduce(over, SIZES) == allreduce(over, SIZES, "ring")).all()
    assert fabric("dgx-1", nccl=False).nccl is None


def test_the_hops_of_the_slower_wire_count_where_hosts_have_different_ones():
    nvlink, pcie = (catalog.cluster(name).hosts[0] for name in ("dgx-a100", "4x rtx-3090"))
    mixed = Cluster(name="mixed", hosts=(nvlink, pcie))
    assert nvlink.inside.name.startswith("nvlink")
    assert fabric_of(mixed, place(mixed, 12), nccl=True).nccl == pcie.inside.name
    assert fabric_of(mixed, place(mixed, 8), nccl=True).nccl == nvlink.inside.name


def test_other_algorithms_have_nccls_hops():
    over = fabric("dgx-h100 x 2")
    assert allreduce(over, 0.0, "recursive_doubling") == pytest.approx(4 * (14e-6 / 8 + 7 / 8 * 3.4e-6), rel=1e-9)
