import pytest
from pydantic import ValidationError

from paceline.spec.cluster import Cluster, Device, Emulation, Host, Link, place
from paceline.spec.fields import SpecModel
from paceline.spec.strategy import Strategy

LINK = Link(name="l", bandwidth="10 Gb/s", latency="5 us")


def host(name, *devices):
    return Host(name=name, devices=tuple(Device(name=item) for item in devices), inside=LINK, link=LINK)


UNEQUAL = Cluster(name="c", hosts=(host("a", "fast", "fast"), host("b", "slow"), host("c", "fast", "slow", "slow")))


def test_ranks_fill_host_after_host():
    placed = place(UNEQUAL, 4)
    assert [(item.rank, item.host, item.local_rank, item.device.name) for item in placed] == [
        (0, 0, 0, "fast"),
        (1, 0, 1, "fast"),
        (2, 1, 0, "slow"),
        (3, 2, 0, "fast"),
    ]


def test_spread_takes_one_device_of_each_host_in_turn():
    assert [(item.host, item.local_rank) for item in place(UNEQUAL, 5, spread=True)] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (0, 1),
        (2, 1),
    ]


def test_more_ranks_than_devices_are_refused():
    with pytest.raises(ValueError, match="7 ranks on 6 devices"):
        place(UNEQUAL, 7)


def test_hosts_have_different_names():
    with pytest.raises(ValidationError, match="two hosts are called 'a'"):
        Cluster(name="c", hosts=(host("a", "x"), host("b", "x"), host("a", "x")))


def test_quantities_are_read_with_their_units():
    assert LINK.bandwidth == 1.25e9
    assert LINK.latency == 5e-6


@pytest.mark.parametrize("fields", [{"bandwidth": "5 s"}, {"bandwidth": 0}, {"loss": 1.5}, {"latency": "-1 s"}])
def test_impossible_links_are_refused(fields):
    with pytest.raises(ValidationError):
        Link(**{"name": "l", "bandwidth": 1.0, **fields})


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Link, {"bandwidth": 0.0}),
        (Link, {"bandwidth": 1e9, "loss": 1.01}),
        (Link, {"bandwidth": 1e9, "loss": -0.01}),
        (Link, {"bandwidth": 1e9, "latency": -1e-6}),
        (Emulation, {"straggle": 1.5}),
        (Emulation, {"jitter": 1.01}),
        (Emulation, {"straggle_factor": 0.9}),
        (Emulation, {"speed": 0.0}),
        (Device, {"quota": 1.1}),
        (Device, {"quota": 0.0}),
        (Device, {"power": 0.0}),
        (Device, {"memory": -1.0}),
    ],
)
def test_quantities_have_bounds(kind: type[SpecModel], fields: dict[str, float]) -> None:
    name = {} if kind is Emulation else {"name": "a"}
    kind.model_validate({**name, **({"bandwidth": 1e9} if kind is Link else {})})
    with pytest.raises(ValidationError):
        kind.model_validate({**name, **fields})
    if kind is Device:
        assert Device.model_validate({"name": "a", "memory": 0.0}).memory == 0.0, "unknown is None, and nothing is 0"


def test_what_a_cluster_does_not_state() -> None:
    link = Link(name="a", bandwidth=1e9)
    assert (link.latency, link.jitter, link.loss) == (0.0, 0.0, 0.0)
    host = Host(name="h", devices=(Device(name="d"),), inside=link, link=link)
    assert (host.nics, host.cores, host.disk) == (1, None, None)
    device = Emulation()
    assert (device.speed, device.jitter, device.straggle, device.straggle_factor) == (1.0, 0.0, 0.0, 10.0)


def test_cores_that_a_host_states_stay():
    named, other = host("a", "cpu"), host("b", "gpu")
    stated = named.model_copy(update={"name": "c", "cores": 4})
    all_of = Cluster(name="c", hosts=(named, other, stated))
    assert [one.cores for one in all_of.with_cores(16).hosts] == [16, 16, 4]
    assert [one.cores for one in all_of.with_cores(16, device="cpu").hosts] == [16, None, 4]


def test_a_host_has_no_more_ranks_than_cores():
    many = host("a", *["cpu"] * 8).model_copy(update={"cores": 3})
    assert len(Cluster(name="c", hosts=(many,)).with_a_rank_per_core().hosts[0].devices) == 3
    assert len(Cluster(name="c", hosts=(host("a", "x", "y"),)).with_a_rank_per_core().hosts[0].devices) == 2


def test_each_gradient_may_be_sent_by_itself():
    assert Strategy(bucket=0).bucket == 0.0
    with pytest.raises(ValidationError):
        Strategy(bucket=-1)
