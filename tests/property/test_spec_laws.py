"""Laws of the spec: TOML round trips preserve models, and two cases have equal ids only if they are equal."""

import json
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.catalog import (
    cluster,
    cluster_names,
    device,
    device_names,
    framework_names,
    link,
    link_names,
    network,
    network_names,
    shipped_catalog,
)
from paceline.spec.cluster import Cluster, Device, Emulation, Host, Link, place
from paceline.spec.load import dump, parse_spec
from paceline.spec.network import layer_costs
from paceline.spec.strategy import Strategy
from paceline.spec.study import Case, Protocol, Study, expand

positive = st.floats(min_value=1e-3, max_value=1e9)
shares = st.floats(min_value=0, max_value=1)
printable = st.characters(exclude_categories=("C", "Z"), include_characters=" ")


def num_devices(name):
    return sum(len(host.devices) for host in cluster(name).hosts)


names = st.text(printable, min_size=1, max_size=20)

links = st.one_of(
    st.sampled_from(link_names()).map(link),
    st.builds(Link, name=names, bandwidth=positive, latency=positive, jitter=positive, loss=shares),
)
emulations = st.none() | st.builds(Emulation, forward=st.none() | positive, speed=positive, jitter=shares)
devices = st.one_of(
    st.sampled_from(device_names()).map(device),
    st.builds(Device, name=names, memory=st.none() | positive, emulation=emulations, peak=st.just({"float32": 1e12})),
)
hosts = st.builds(
    Host, name=names, devices=st.lists(devices, min_size=1, max_size=4).map(tuple), inside=links, link=links
)
clusters = st.builds(
    Cluster, name=names, hosts=st.lists(hosts, min_size=1, max_size=4, unique_by=lambda host: host.name).map(tuple)
)
strategies = st.builds(
    Strategy,
    name=names,
    aggregation=st.none() | st.sampled_from(["allreduce", "parameter_server", "sharded"]),
    overlap=st.none() | st.booleans(),
    bucket=st.none() | st.floats(min_value=0, max_value=2**40),
    accumulate=st.integers(1, 8),
)
protocols = st.builds(
    Protocol,
    launches=st.integers(1, 5),
    max_launches=st.integers(5, 50),
    width=st.floats(min_value=0.001, max_value=0.9),
    launch_budget=positive,
    threads=st.none() | st.integers(1, 64),
)


def some(values, **sizes):
    return st.lists(st.sampled_from(values), min_size=1, max_size=3, **sizes).map(tuple)


studies = st.builds(
    Study,
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    title=st.text(max_size=30),
    networks=some(network_names()),
    frameworks=some(framework_names()),
    clusters=some([name for name in cluster_names() if name != "mixed-lab" and num_devices(name) >= 8]),
    devices=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3).map(tuple),
    batch=st.lists(st.sampled_from([8, 64, 256]), min_size=1, max_size=2).map(tuple),
    scaling=st.sampled_from(["weak", "strong"]),
    strategy=st.lists(strategies, min_size=1, max_size=2).map(tuple),
    protocol=protocols,
)


@given(st.one_of(clusters, studies, strategies, protocols))
def test_toml_round_trip_preserves_models(model):
    assert parse_spec(dump(model), type(model), "model.toml") == model


@settings(max_examples=15)
@given(studies)
def test_a_study_and_its_toml_copy_expand_to_equal_cases(study):
    copy = parse_spec(dump(study), Study, "study.toml")
    cases = expand(study, shipped_catalog())
    assert [case.id for case in cases] == [case.id for case in expand(copy, shipped_catalog())]
    assert len({case.id for case in cases}) == len(cases)


def shuffled(data, draw):
    """The same data with the fields of every table in a different order."""
    if isinstance(data, dict):
        keys = list(data)
        draw.shuffle(keys)
        return {key: shuffled(data[key], draw) for key in keys}
    return [shuffled(item, draw) for item in data] if isinstance(data, list) else data


@settings(max_examples=40)
@given(studies, st.integers())
def test_case_ids_do_not_depend_on_the_order_of_fields(study, seed):
    case = expand(study, shipped_catalog())[0]
    data = shuffled(json.loads(case.model_dump_json()), random.Random(seed))
    assert Case.model_validate_json(json.dumps(data)).id == case.id


@settings(max_examples=60)
@given(clusters, st.data())
def test_no_two_ranks_share_a_device(cluster, data):
    ranks = data.draw(st.integers(1, cluster.num_devices))
    placed = place(cluster, ranks, spread=data.draw(st.booleans()))
    assert len({(item.host, item.local_rank) for item in placed}) == ranks
    assert all(cluster.hosts[item.host].devices[item.local_rank] == item.device for item in placed)


@given(st.sampled_from(network_names()), st.integers(1, 512))
def test_activations_are_linear_in_the_batch_and_gradients_do_not_depend_on_it(name, batch):
    for cost in layer_costs(network(name)):
        assert cost.activation_bytes(batch) == batch * cost.activation_bytes(1)
        assert cost.gradient_bytes() == 4 * sum(tensor.elements for tensor in cost.tensors)
