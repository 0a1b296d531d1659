"""The catalog: totals equal the published ones, every figure has a unit and a source, every name means something."""

import tomllib
from pathlib import Path

import pytest

from paceline import catalog
from paceline.catalog import (
    cluster,
    cluster_names,
    device,
    device_names,
    framework,
    framework_names,
    link,
    link_names,
    network,
    network_names,
    policy,
    resolve,
    shipped_catalog,
)
from paceline.catalog.describe import SECTIONS, describe, describe_network, section
from paceline.catalog.devices import DeviceRecord, device_by_alias
from paceline.catalog.links import link_by_alias
from paceline.catalog.published import published_networks
from paceline.errors import InputError, SpecError, UnknownName
from paceline.spec.load import parse_spec
from paceline.spec.strategy import Strategy

FOLDER = Path(catalog.__file__).parent
EXACT = {
    "alexnet": (61_100_840, None),
    "alexnet-bvlc": (60_965_224, None),
    "googlenet": (6_624_904, None),
    "googlenet-bvlc": (6_998_552, None),
    "resnet50": (25_557_032, 4_089_184_256),
    "vgg16": (138_357_544, 15_470_264_320),
    "inception-v3": (23_834_568, None),
    "gpt2": (124_439_808, None),
    "gpt2-medium": (354_823_168, None),
    "gpt2-large": (774_030_080, None),
    "gpt2-xl": (1_557_611_200, None),
    "bert-base": (109_482_240, None),
    "bert-large": (335_141_888, None),
    "resnet18": (11_689_512, None),
    "resnet34": (21_797_672, None),
    "resnet101": (44_549_160, None),
    "resnet152": (60_192_808, None),
}


@pytest.mark.parametrize("name", published_networks())
def test_totals_equal_the_published_ones(name):
    said, found = published_networks()[name], network(name)
    assert found.parameters == pytest.approx(said.parameters, rel=said.parameters_within, abs=0)
    if said.multiply_adds is not None:
        assert found.macs == pytest.approx(said.multiply_adds, rel=said.multiply_adds_within, abs=0)


@pytest.mark.parametrize("name", EXACT)
def test_totals_that_are_known_to_the_last_digit(name):
    parameters, macs = EXACT[name]
    assert network(name).parameters == published_networks()[name].parameters == parameters
    assert macs is None or network(name).macs == published_networks()[name].multiply_adds == macs


def test_every_full_network_has_published_totals():
    derived = {"alexnet-64px", "googlenet-64px", "resnet50-64px", "gpt2-tiny", "bert-base-512", "bert-large-512"}
    assert set(network_names()) - derived == set(published_networks())


def test_smaller_relatives_keep_the_parameters():
    assert network("resnet50-64px").parameters == network("resnet50").parameters
    assert network("googlenet-64px").parameters == network("googlenet").parameters
    assert network("bert-base-512").parameters == network("bert-base").parameters


def test_versions_of_resnet50_differ_in_strides_alone():
    first, second = network("resnet50-v1"), network("resnet50")
    changed = [a.name for a, b in zip(first.layers, second.layers, strict=True) if a != b]
    assert changed == [f"res{stage}_1_{part}" for stage in (3, 4, 5) for part in "ab"]


def figures(value, path=()):
    if isinstance(value, dict):
        if "value" in value or "source" in value:
            yield path, value
            return
        for key, item in value.items():
            yield from figures(item, (*path, key))


@pytest.mark.parametrize(
    "path", sorted([*FOLDER.glob("devices/*.toml"), *FOLDER.glob("links/*.toml")]), ids=lambda p: p.stem
)
def test_every_figure_has_unit_and_source(path):
    data = tomllib.loads(path.read_text())
    assert data["name"] == path.stem
    for place, figure in figures(data.get("figure", {})):
        if place[0] == "reach":
            assert figure["source"], place
            continue
        value, unit = figure["value"].split(" ", 1)
        assert float(value) > 0, place
        assert unit.strip(), place
        assert any(year in figure["source"] for year in map(str, range(1990, 2030))), place


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        ('value = "16 GB"', "figure.memory.source: got nothing"),
        ('value = 16\nsource = "x, 2020"', "expected a quantity with its unit"),
        ('value = "16 GB/s"\nsource = "x, 2020"', "expected a size such as"),
        ('value = "16 GB"\nsource = ""', 'figure.memory.source: got "", expected at least 1 character'),
        ('source = "x, 2020"', "figure.memory.value: got nothing"),
    ],
)
def test_a_figure_without_unit_or_source_is_refused(figure, words):
    text = f'name = "x"\ntitle = "x"\nkind = "gpu"\n[figure.memory]\n{figure}\n'
    with pytest.raises(SpecError) as caught:
        parse_spec(text, DeviceRecord, "x.toml")
    assert words in str(caught.value)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("clusters/*.toml")), ids=lambda path: path.stem)
def test_every_cluster_resolves_and_has_a_source(path):
    data = tomllib.loads(path.read_text())
    assert data["name"] == path.stem == cluster(path.stem).name
    assert data["source"]
    assert data["title"]


def test_the_clusters_that_were_promised():
    sizes = {name: cluster(name).num_devices for name in cluster_names()}
    assert (
        sizes.items()
        >= {
            "dgx-1": 8,
            "dgx-2": 16,
            "dgx-a100": 8,
            "dgx-h100": 8,
            "lab-10gbe": 16,
            "local": 64,
            "mixed-lab": 6,
            "v100-10gbe-8x4": 32,
            "p3.16xlarge": 8,
            "p4d.24xlarge": 8,
            "p5.48xlarge": 8,
            "g5.12xlarge": 4,
            "a2-highgpu-8g": 8,
            "a3-highgpu-8g": 8,
            "nd96isr-h100-v5": 8,
        }.items()
    )
    assert len({item.name for host in cluster("mixed-lab").hosts for item in host.devices}) > 2
    assert all(item.memory == 32 * 2**30 for item in cluster("dgx-2").hosts[0].devices)


@pytest.mark.parametrize("name", ["k80", "p40", "v100-pcie", "v100-sxm2", "t4", "a100-40gb", "h100-sxm5", "b200"])
def test_accelerators_have_what_a_roofline_needs(name):
    found = device(name)
    assert found.peak["float32"] > 1e12
    assert found.memory_bandwidth is not None
    assert found.memory is not None


def test_names_are_unique_across_the_catalog():
    names = [name for part in SECTIONS.values() for name in part()]
    assert len(names) == len(set(names))
    assert not set(names) & set(SECTIONS)


@pytest.mark.parametrize("lookup", [network, device, link, cluster, framework, describe, section])
def test_unknown_names_are_errors(lookup):
    with pytest.raises(UnknownName):
        lookup("no such thing")


@pytest.mark.parametrize("part", SECTIONS)
def test_everything_can_be_described(part):
    described = section(part)
    assert [item["name"] for item in described] == list(SECTIONS[part]())
    assert all(item["title"] for item in described)


def test_described_networks_add_up():
    document = describe_network(network("resnet20"), 32)
    assert document["multiply_adds"] == 32 * network("resnet20").macs
    assert document["gradient_bytes"] == 4 * network("resnet20").parameters
    assert document["activation_bytes"] == sum(layer["activation_bytes"] for layer in document["layers"])


@pytest.mark.parametrize(("name", "full"), [("pytorch", "pytorch/ddp"), ("pytorch/fsdp2", "pytorch/fsdp2")])
def test_frameworks_get_their_mode(name, full):
    assert framework(name) == full


@pytest.mark.parametrize(("name", "near"), [("pytorch/dpp", "pytorch/ddp"), ("pytorh", "pytorch"), ("pytorch/", None)])
def test_wrong_frameworks_suggest_right_ones(name, near):
    with pytest.raises(UnknownName) as caught:
        framework(name)
    assert near is None or near in str(caught.value)


@pytest.mark.parametrize("name", framework_names())
def test_every_mode_resolves_and_says_where_its_defaults_come_from(name):
    found = policy(name)
    assert framework(name) == name
    assert found.source
    assert found.version
    assert resolve(name, Strategy()) == found


def test_a_strategy_overrides_what_it_names_and_nothing_else():
    asked = resolve("pytorch", Strategy(bucket="4 MiB", overlap=False, algorithm="ring"))
    assert (asked.fusion, asked.bucket, asked.first_bucket) == ("bytes", 4 * 2**20, None)
    assert (asked.overlap, asked.algorithm, asked.order) == (False, "ring", policy("pytorch").order)
    assert resolve("pytorch", Strategy(bucket=0.0)).fusion == "tensor"


def test_known_holds_every_name():
    names = shipped_catalog().names
    assert set(names) == {"networks", "clusters", "frameworks"}
    assert names["networks"] == network_names()
    assert len(device_names()) >= 16
    assert len(link_names()) >= 18


BOXES = (8, 10, 11, 12, 15, 16, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 184, 192, 256, 288, 512)
"""Sizes on boxes, in GB."""


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("RTX3090", "rtx-3090"),
        ("A100", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm5"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2"),
        ("Apple M1 Max", "m1-max"),
        ("AMD EPYC 7763 64-Core Processor", "epyc-7763"),
        ("NVIDIA GeForce RTX 3090 Ti", "rtx-3090-ti"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("a100-96gb", None),
        ("A100 96 GB", None),
        ("v100-sxm", "v100-sxm2"),
        ("rtx4090", "rtx-4090"),
        ("1080ti", "gtx-1080-ti"),
        ("h100-80gb", "h100-sxm5"),
        ("H100 SXM", "h100-sxm5"),
        ("H100 PCIe", "h100-pcie"),
        ("H100 PCIe 80GB", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("A100 SXM4 80 GB", "a100-80gb"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("A100 PCIe", "a100-pcie-40gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("V100 32GB", "v100-sxm2-32gb"),
        ("T4 16GB", "t4"),
        ("B200 192GB", "b200"),
        ("GH200", "gh200"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("NVIDIA A10G", "a10g"),
        ("A10", "a10"),
        ("RTX 6000", None),
        ("TPU v4", None),
    ],
)
def test_devices_are_known_by_what_drivers_and_people_call_them(label, name):
    assert device_by_alias(label) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("InfiniBand NDR", "infiniband-ndr"),
        ("ndr", "infiniband-ndr"),
        ("IB HDR", "infiniband-hdr"),
        ("HDR100", "infiniband-hdr100"),
        ("25 GbE", "25gbe"),
        ("100G", "100gbe"),
        ("100 Gb/s", "100gbe"),
        ("100GB/s", None),
        ("RoCE 100G", "100gbe"),
        ("gigabit ethernet", "1gbe"),
        ("10 Gigabit Ethernet", "10gbe"),
        ("Slingshot", "slingshot-11"),
        ("Omni-Path", "omni-path"),
        ("NVLink 3", "nvlink3"),
        ("PCIe 4.0 x16", "pcie4-x16"),
        ("infiniband", None),
        ("17gbe", None),
        ("efa", None),
    ],
)
def test_links_are_known_by_what_people_call_them(text, name):
    assert link_by_alias(text) == name


@pytest.mark.parametrize("name", [one for one in device_names() if device(one).kind == "gpu"])
def test_memory_of_gpus_is_what_drivers_report(name):
    """Chips hold powers of two: 24 GB on a box are 24 GiB; no GPU loses more than a tenth of them."""
    size = device(name).memory / 2**30
    assert any(0.9 < size / whole <= 1.0 for whole in BOXES), size


@pytest.mark.parametrize(
    "name", ["rtx-2080-ti", "rtx-4090", "rtx-5090", "a10", "a40", "rtx-a6000", "l4", "l40s", "h200-sxm", "mi300x"]
)
def test_accelerators_have_peaks_memory_and_power(name):
    found = device(name)
    assert found.peak["float16"] > found.peak["float32"] > 0
    assert found.memory
    assert found.memory_bandwidth
    assert found.power


def test_several_hosts_of_an_instance_share_its_price_and_links():
    one, eight = cluster("p4d.24xlarge"), cluster("p4d.24xlarge x 8")
    assert eight == cluster("8 x p4d.24xlarge").model_copy(update={"name": eight.name})
    assert eight.num_devices == 64
    assert len({host.name for host in eight.hosts}) == 8
    assert sum(item.price for item in one.hosts[0].devices) == pytest.approx(21.96)
    assert cluster("v100-10gbe-8x4").num_devices == 32
    for wrong in ("p4d.24xlarg x 2", "p4d.24xlarge x 0"):
        with pytest.raises(InputError):
            cluster(wrong)
