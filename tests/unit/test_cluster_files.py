from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.catalog import cluster, device, link
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
        ('devices = ["v100-sxm"]\ninside = "pcie3-x16"\nlink = "10gbe"', ":4: host[0].devices[0]: got 'v100-sxm'"),
        ('devices = ["k80"]\ninside = "pci"\nlink = "10gb"', ":5: host[0].inside: got 'pci', expected a link"),
        ('devices = ["k80"]\ninside = "pci"\nlink = "10gb"', ":6: host[0].link: got '10gb'"),
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
        (("--network", "llama-7b", "--cluster", "dgx-a100"), "--profile of paceline.capture"),
        (("--network", "resnet50", "--cluster", "RTX 3090 x 2"), "clusters with rtx-3090: "),
        (("--network", "resnet50", "--cluster", "A100"), "clusters with a100-40gb: dgx-a100, "),
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
