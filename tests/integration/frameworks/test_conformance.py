"""One suite that every framework passes: the same network proved equal; both kinds of files, phases, no network."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.bench.adapters import environments_of
from paceline.bench.environments import prepare
from paceline.bench.verify import BUILDERS, PROOF_NETWORKS, UNKNOWN, UNPROVABLE, verify_family, verify_framework
from paceline.catalog.frameworks import framework_names, policy
from paceline.measurements.store import Store
from paceline.measurements.tables import pass_times
from tests.conftest import Command
from tests.integration.random_networks import random_networks

FRAMEWORKS = [name for name in framework_names() if name.split("/")[0] not in UNKNOWN]
OFFLINE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "offline"]
"""Runs a command in a network namespace that has loopback and nothing else."""


def ready(framework: str) -> None:
    for name in ("pytorch", *environments_of(framework)):
        prepare(name)


def ranks_of(framework: str) -> int:
    return 1 if policy(framework).aggregation == "none" or framework == "mxnet/local" else 2


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_it_computes_what_the_reference_computes(framework: str) -> None:
    ready(framework)
    proofs = list(verify_framework(framework, PROOF_NETWORKS))
    wrong = [proof for proof in proofs if proof.status not in ("equal", "skipped")]
    assert wrong == []
    plain = {proof.ranks: proof.status for proof in proofs if proof.network == "plain"}
    alone = ranks_of(framework) == 1 or framework in UNPROVABLE
    assert plain == {1: "equal", 2: "skipped" if alone else "equal"}


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("framework", BUILDERS)
def test_it_computes_or_refuses_every_network_of_the_family(framework: str) -> None:
    ready(framework)
    proofs = list(verify_family(framework))
    assert [proof for proof in proofs if proof.status not in ("equal", "skipped")] == []
    assert sum(proof.status == "equal" for proof in proofs) >= 20


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("framework", BUILDERS)
def test_it_computes_or_refuses_networks_made_by_chance(framework: str) -> None:
    """Where PyTorch itself, in float32, is not within the tolerance of float64, nobody can be."""
    ready(framework)
    made = random_networks(int(os.environ.get("SEED", "5")), 60)
    sound = {proof.network for proof in verify_family("pytorch/ddp", made) if proof.status == "equal"}
    assert len(sound) > 50
    proofs = list(verify_family(framework, {name: made[name] for name in sound}))
    assert [proof for proof in proofs if proof.status not in ("equal", "skipped")] == []


STUDY = """
name = "conformance"
networks = ["{network}"]
frameworks = ["{framework}"]
devices = [{ranks}]
batch = [16]
input = ["files"]
[protocol]
launches = 1
max_launches = 1
warmup = 2
steps = 8
launch_budget = "5 s"
phase_steps = 4
threads = 1
timeout = "200 s"
"""
COLOURS = """
name = "colours"
[input]
kind = "image"
channels = 3
height = 32
width = 32
[[layers]]
kind = "conv2d"
name = "conv"
channels = 8
kernel = [5, 5]
stride = [2, 2]
[[layers]]
kind = "relu"
name = "relu"
[[layers]]
kind = "flatten"
name = "flat"
[[layers]]
kind = "linear"
name = "fc"
features = 10
"""


@pytest.mark.full  # a network namespace needs root
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("files", ["folder", "cifar"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_study_measures_it(framework: str, files: str, paceline: Command, study_file: Callable[[str], Path]) -> None:
    """A folder of images on two ranks where there can be two, CIFAR's records on one: every pass runs in both."""
    ready(framework)
    ranks = ranks_of(framework) if files == "folder" else 1
    network = "lenet" if files == "folder" else study_file(COLOURS, "colours.toml").name
    path = study_file(STUDY.format(framework=framework, ranks=ranks, network=network))
    offline = Command(paceline.store, [*OFFLINE, *paceline.prefix])
    (case,) = json.loads(offline("run", str(path), "--json", timeout=600))["cases"]
    assert case["ranks"] == ranks
    assert case["failed"] == 0, case["failure"]
    assert case["samples_per_s"]["value"] > 0
    assert sum(case["shares"].values()) == pytest.approx(1, abs=0.03)
    assert case["shares"]["forward"] > 0
    store = Store(paceline.store)
    timed = {item.pass_name for item in pass_times(store, [run.id for run in store.read_all()])}
    assert {"clean", "forward", "compute", "resident", "copied", "full"} <= timed
