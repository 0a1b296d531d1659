"""One suite that every framework passes: the same network proved equal, a launch with phases, input from files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.bench.availability import environments_of
from paceline.bench.environments import prepare
from paceline.bench.proof_networks import PROOF_NETWORKS
from paceline.bench.verify import UNPROVABLE, prove_framework
from paceline.catalog.frameworks import framework_names, policy
from tests.conftest import Command

MEASURABLE = [name for name in framework_names() if name != "script/command"]
PROVABLE = [name for name in MEASURABLE if name not in UNPROVABLE]


def ready(framework: str) -> None:
    for name in ("pytorch", *environments_of(framework)):
        prepare(name)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("framework", PROVABLE)
def test_it_computes_what_the_reference_computes(framework: str) -> None:
    ready(framework)
    proofs = list(prove_framework(framework, PROOF_NETWORKS))
    wrong = [proof for proof in proofs if proof.status not in ("equal", "skipped")]
    assert wrong == []
    plain = {proof.ranks: proof.status for proof in proofs if proof.network == "plain"}
    alone = policy(framework).aggregation == "none" or framework == "mxnet/local"
    assert plain == {1: "equal", 2: "skipped" if alone else "equal"}


STUDY = """
name = "conformance"
networks = ["lenet"]
frameworks = ["{framework}"]
devices = {devices}
batch = [16]
input = ["{source}"]
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


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("source", ["resident", "copied", "files"])
@pytest.mark.parametrize("framework", MEASURABLE)
def test_a_study_measures_it(framework: str, source: str, paceline: Command, study_file: Callable[[str], Path]) -> None:
    ready(framework)
    alone = policy(framework).aggregation == "none" or framework == "mxnet/local"
    devices = [1] if alone or source == "files" else [1, 2]
    path = study_file(STUDY.format(framework=framework, devices=devices, source=source))
    document = json.loads(paceline("run", str(path), "--json", timeout=600))
    cases = document["cases"]
    assert [case["ranks"] for case in cases] == devices
    for case in cases:
        assert case["failed"] == 0
        assert case["samples_per_s"]["value"] > 0
        assert sum(case["shares"].values()) == pytest.approx(1, abs=0.03)
        assert case["shares"]["forward"] > 0
