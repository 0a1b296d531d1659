import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.catalog import network_names
from paceline.cli import program
from paceline.errors import UnknownName

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*words):
    result = CliRunner().invoke(program, words, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_networks_lists_all():
    listed = run("networks")
    assert all(re.search(rf"^{re.escape(name)} ", listed, re.MULTILINE) for name in network_names())
    assert "25,557,032" in listed


def test_networks_shows_layers_at_a_batch():
    shown = run("networks", "resnet50", "--batch", "32")
    assert "res5_3_relu" in shown
    totals = [word for line in shown.splitlines() if line.startswith("total") for word in line.split()[1:]]
    assert totals[:2] == ["25,557,032", f"{32 * 4_089_184_256:,}"], "a narrow terminal shows the columns in two blocks"


def test_networks_as_json():
    document = json.loads(run("networks", "lenet", "--json"))
    assert document["schema"] == "paceline.networks/1"
    assert document["parameters"] == 431_080
    assert len(json.loads(run("networks", "--json"))["networks"]) == len(network_names())


def test_catalog_lists_and_shows():
    assert "v100-sxm2" in run("catalog")
    assert "NVIDIA Tesla V100 data sheet" in run("catalog", "v100-sxm2")
    assert "2 x k80" in run("catalog", "mixed-lab")
    assert re.search(r"source: .*; 21\.9\d* USD/h in \d{4}-\d\d", run("catalog", "p4d.24xlarge").replace("\n", " "))
    assert "25 MiB" in run("catalog", "pytorch")
    assert "strong2" in run("catalog", str(EXAMPLES / "clusters" / "unequal.toml"))
    assert "dgx-1" not in run("catalog", "links")


def test_catalog_as_json():
    document = json.loads(run("catalog", "10gbe", "--json"))
    assert document["figures"][0] == {
        "figure": "bandwidth",
        "value": "10 Gb/s",
        "source": "IEEE 802.3ae-2002",
        "note": "",
    }
    assert set(json.loads(run("catalog", "--json"))) == {"schema", "devices", "links", "clusters", "frameworks"}


@pytest.mark.parametrize("words", [("networks", "alexnt"), ("catalog", "v99")])
def test_unknown_names_are_errors(words):
    with pytest.raises(UnknownName):
        CliRunner().invoke(program, words, catch_exceptions=False)


@pytest.mark.parametrize("verb", ["networks", "catalog"])
def test_help_teaches_by_example(verb):
    shown = run(verb, "--help")
    assert "Examples:" in shown
    assert "--json" in shown
