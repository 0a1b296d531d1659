from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.catalog import cluster, device, link
from paceline.catalog.clusters import wide_enough
from paceline.catalog.devices import device_names, device_record
from paceline.catalog.links import link_names
from paceline.cli import program
from paceline.errors import InputError, SpecError

EXAMPLE = Path(__file__).parents[2] / "examples" / "clusters" / "unequal.toml"

HEAD = 'name = "c"\n[[host]]\nname = "a"\n'


def written(tmp_path, text):
    path = tmp_path / "c.toml"
    path.write_text(text)
    return str(path)


def test_the_example_means_what_it_says():
    found = cluster(str(EXAMPLE))
    assert [host.name for host in found.hosts] == ["strong1", "strong2", "weak", "prototype"]
    strong, _, weak, prototype = found.hosts
    assert strong.devices == (device("v100-pcie"), device("v100-pcie"))
    assert weak.devices == (device("p40"), device("t4").model_copy(update={"memory": 15e9}))
    assert weak.link == link("10gbe").model_copy(update={"bandwidth": 5e9 / 8})
    assert (prototype.devices[0].kind, prototype.devices[0].peak) == ("other", {"bfloat16": 100e12})
    assert (prototype.inside.bandwidth, prototype.inside.latency, prototype.address) == (64e9, 1e-6, "prototype.lab")


def test_devices_can_be_emulated_and_throttled(tmp_path):
    text = HEAD + 'devices = [{ name = "host-cpu", quota = 0.5, emulation = { forward = "40 ms", speed = 2.0 } }]\n'
    found = cluster(written(tmp_path, text + 'inside = "loopback"\nlink = "1gbe"\n')).hosts[0].devices[0]
    assert (found.quota, found.emulation.forward, found.emulation.speed) == (0.5, 0.04, 2.0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('devices = ["v100-smx"]\ninside = "pcie3-x16"\nlink = "10gbe"', ":4: host[0].devices[0]: got 'v100-smx'"),
        ('devices = ["k80"]\ninside = "pci"\nlink = "10gbx"', ":5: host[0].inside: got 'pci', expected a link"),
        ('devices = ["k80"]\ninside = "pci"\nlink = "10gbx"', ":6: host[0].link: got '10gbx'"),
        ('devices = []\ninside = "pcie3-x16"\nlink = "10gbe"', ":4: host[0].devices: got [], expected at least 1"),
        ('devices = [7]\ninside = "pcie3-x16"\nlink = "10gbe"', ":4: host[0].devices[0]: got 7, expected a table"),
        ('devices = ["k80"]\nlink = "10gbe"', ":2: host[0].inside: got nothing"),
        ('devices = ["k80"]\ncount = 2\naddress = "x"\ninside = "1gbe"\nlink = "1gbe"', ":2: host[0]: got"),
        (
            'devices = [{name = "k80", count = 1024}]\ncount = 65536\ninside = "1gbe"\nlink = "1gbe"',
            "host: got 67108864 devices, expected at most 1000000",
        ),
        (
            'devices = ["k80"]\ninside = "1gbe"\nlink = "1gbe"\n[[host]]\nname = "a"\ndevices = ["k80"]\n'
            'inside = "1gbe"\nlink = "1gbe"',
            ":8: host[1].name: got 'a', expected a unique host name",
        ),
    ],
)
def test_wrong_files_name_line_and_field(tmp_path, body, words):
    path = written(tmp_path, HEAD + body + "\n")
    with pytest.raises(SpecError) as caught:
        cluster(path)
    assert words in str(caught.value)
    assert path in str(caught.value)


def test_a_missing_file_is_an_error():
    with pytest.raises(InputError, match="No such file"):
        cluster("nowhere/c.toml")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--network", "llama-7b", "--cluster", "dgx-a100"), "--profile of paceline.capture or outline"),
        (("--network", "resnet50", "--cluster", "8 hosts of rtx-3090"), 'write devices as "4x rtx-4090"'),
        (("--network", "resnet50", "--cluster", "A100", "--devices", "8"), ': --cluster "8x a100-40gb"'),
        (("--network", "resnet50", "--cluster", "4x t4", "--devices", "12"), ': --cluster "4x t4 over 25gbe x 3"'),
        (("--network", "resnet50", "--cluster", "4x t4 x 2"), '"4x t4 over 25gbe x 2"'),
        (("--network", "resnet50", "--cluster", "2x m2-max"), '"m2-max over 25gbe x 2"'),
        (
            ("--network", "resnet50", "--cluster", "p4d.24xlarge x 2", "--devices", "8,33"),
            'at most 16, or for a larger cluster: --cluster "p4d.24xlarge x 5"',
        ),
    ],
)
def test_a_name_of_something_else_or_too_few_hosts_get_the_words_to_type(words, hint):
    error = CliRunner().invoke(program, ["predict", *words]).exception
    assert isinstance(error, InputError)
    assert hint in error.hint


@pytest.mark.parametrize(
    ("text", "name", "hosts", "devices", "inside", "link"),
    [
        ("rtx-4090", "rtx-4090", 1, 1, "pcie4-x16", "pcie4-x16"),
        ("4x RTX 4090", "4x rtx-4090", 1, 4, "pcie4-x16", "pcie4-x16"),
        ("NVIDIA GeForce RTX 4090 x 4", "4x rtx-4090", 1, 4, "pcie4-x16", "pcie4-x16"),
        ("8xA100", "8x a100-40gb", 1, 8, "nvlink3", "nvlink3"),
        ("A100 80GB x 8", "8x a100-80gb", 1, 8, "nvlink3", "nvlink3"),
        ("4x t4 over 25GbE x 8", "4x t4 over 25gbe x 8", 8, 4, "pcie3-x16", "25gbe"),
        ("rtx4090", "rtx-4090", 1, 1, "pcie4-x16", "pcie4-x16"),
        ("8 H100", "8x h100-sxm5", 1, 8, "nvlink4", "nvlink4"),
        ("a100x8", "8x a100-40gb", 1, 8, "nvlink3", "nvlink3"),
        ("8x NVIDIA H100 80GB HBM3", "8x h100-sxm5", 1, 8, "nvlink4", "nvlink4"),
        ("4x a100 over InfiniBand NDR x 2", "4x a100-40gb over infiniband-ndr x 2", 2, 4, "nvlink3", "infiniband-ndr"),
        ("4x a100 over 25 GbE x 2", "4x a100-40gb over 25gbe x 2", 2, 4, "nvlink3", "25gbe"),
        ("xeon-platinum-8480 over 100gbe x 3", "xeon-platinum-8480 over 100gbe x 3", 3, 1, "loopback", "100gbe"),
    ],
)
def test_a_cluster_is_written_as_its_devices(text, name, hosts, devices, inside, link):
    found = cluster(text)
    assert found.name == name
    assert [len(host.devices) for host in found.hosts] == [devices] * hosts
    assert {(host.inside.name, host.link.name) for host in found.hosts} == {(inside, link)}
    assert cluster(found.name) == found


def test_hosts_have_several_ports():
    found = cluster("8x h100 over 8x NDR x 4")
    assert found.name == "8x h100-sxm5 over 8x infiniband-ndr x 4"
    assert [host.nics for host in found.hosts] == [8] * 4
    assert cluster(found.name) == found
    with pytest.raises(InputError, match="got 0 ports, expected 1 to 64"):
        cluster("8x h100 over 0x NDR x 4")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("DGX A100", "dgx-a100"),
        ("dgx1", "dgx-1"),
        ("Standard_ND96asr_v4", "nd96asr-v4"),
        ("Standard_NC24ads_A100_v4", "nc24ads-a100-v4"),
        ("P4D.24XLARGE", "p4d.24xlarge"),
        ("p4d.24xlarge x 2", "p4d.24xlarge x 2"),
        ("2x P4D.24xlarge", "p4d.24xlarge x 2"),
    ],
)
def test_entries_are_known_as_providers_write_them(text, name):
    assert cluster(text).name == name


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rtx7080", "'rtx7080'"),
        ("8x rtx7080 over 25gbe x 2", "'rtx7080'"),
        ("p4d.24xlarg x 2", "'p4d.24xlarg'"),
        ("TPU v4", "'TPU v4'"),
    ],
)
def test_an_unknown_device_is_named_whole(text, shown):
    with pytest.raises(InputError, match=f"no cluster or device is called {shown}"):
        cluster(text)


def test_unequal_hosts_are_joined():
    found = cluster("2x a100 + 4x rtx-3090 over 10gbe x 2 + dgx-1")
    assert [len(host.devices) for host in found.hosts] == [2, 4, 4, 8]
    assert [host.link.name for host in found.hosts] == ["10gbe", "10gbe", "10gbe", "infiniband-edr"]
    assert [host.inside.name for host in found.hosts] == ["nvlink3", "pcie4-x16", "pcie4-x16", "nvlink2"]
    assert cluster(found.name) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2x t4 + 2x p40", "the network between its hosts is missing"),
        ("2x t4 over 10gbe + nonsense", "no cluster or device is called 'nonsense'"),
        ("0x t4", "got 0 devices in a host, expected 1 to 64"),
        ("65x t4", "got 65 devices in a host"),
        ("2x t4 over 25gbe x 0", "got 0 hosts"),
        ("2x t4 over token-ring x 2", "no link is called 'token-ring'"),
        ("2x t4 +", "no cluster or device is called"),
        ("2x a100+4x t4 over 10gbe", "no cluster or device is called"),
        ("4x t4 and 4x p40", "no cluster or device is called"),
    ],
)
def test_devices_that_make_no_cluster_are_refused(text, words):
    with pytest.raises(InputError, match=words):
        cluster(text)


def test_every_gpu_of_a_server_has_a_link_to_the_next_one():
    alone = {name for name in device_names() if device_record(name).kind == "gpu" and not device_record(name).inside}
    assert alone == {"m1-max", "m1-ultra", "m2-max", "m2-ultra", "m3-max", "m3-ultra", "m4-max"}
    for name in set(device_names()) - alone:
        inside = device_record(name).inside
        assert inside is None or inside.link in link_names()


@pytest.mark.parametrize(
    ("name", "devices", "wide"),
    [
        ("dgx-a100", 8, "dgx-a100"),
        ("dgx-a100", 9, "dgx-a100 x 2"),
        ("dgx-a100", 64, "dgx-a100 x 8"),
        ("dgx-a100 x 2", 64, "dgx-a100 x 2"),
        ("lab-10gbe", 64, "lab-10gbe"),
        ("local", 9999, "local"),
        ("mine.toml", 64, "mine.toml"),
    ],
)
def test_an_entry_of_one_host_is_repeated_for_more_devices(name, devices, wide):
    assert wide_enough(name, devices) == wide


@pytest.mark.parametrize(
    ("where", "priced"), [("2x a100 + 4x rtx-3090 over 10gbe", True), ("4x rtx-3090 + 2x a100 over 10gbe", False)]
)
def test_devices_of_which_some_have_a_price_are_shown(where, priced):
    done = CliRunner().invoke(
        program, ["predict", "--network", "resnet50", "--cluster", where, "--devices", "1,6", "--samples", "1000"]
    )
    assert done.exit_code == 0, done.exception
    assert ("money in USD" in done.output) is priced
    assert "everyday units" in done.output


@pytest.mark.parametrize("verb", [("predict",), ("whatif", "--set", "link.bandwidth=10Gb/s"), ("simulate",)])
def test_every_verb_repeats_a_cluster_of_one_host(verb):
    done = CliRunner().invoke(program, [*verb, "--network", "lenet", "--cluster", "dgx-1", "--devices", "8,16"])
    assert done.exit_code == 0, done.exception
    assert "dgx-1 x 2" in done.output
