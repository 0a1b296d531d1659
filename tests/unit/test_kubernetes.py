"""Manifests are valid: pods and jobs by Kubernetes' own schema, the kinds around them by the fields their APIs name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from paceline.bench.sites.engines import Agents
from paceline.bench.sites.schedulers import KubernetesEngine, ManifestKind, SlurmEngine, manifest
from paceline.errors import InputError, Unsupported

AGENT = ("python3", "-c", "print('a: \"b\"\\n')", "10.0.0.1", "4000")


def written(kind: ManifestKind, ranks: int = 3) -> dict[str, Any]:
    return manifest(kind, "paceline-x", ranks=ranks, image="python:3.11", command=AGENT)


def check_job(spec: dict[str, Any]) -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": spec}
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)


def test_jobset() -> None:
    document = written("jobset")
    assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(document["spec"]) <= {"replicatedJobs", "network", "successPolicy", "failurePolicy", "startupPolicy"}
    (group,) = document["spec"]["replicatedJobs"]
    assert set(group) == {"name", "replicas", "template"}
    check_job(group["template"]["spec"])
    assert group["template"]["spec"]["completions"] == 3
    pod = group["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"] == list(AGENT)
    assert pod["restartPolicy"] == "Never", "a measurement is not repeated in part"


@pytest.mark.parametrize("ranks", [1, 4])
def test_pytorch_job(ranks: int) -> None:
    document = written("pytorchjob", ranks)
    specs = document["spec"]["pytorchReplicaSpecs"]
    assert sum(spec["replicas"] for spec in specs.values()) == ranks
    assert set(specs) == ({"Master", "Worker"} if ranks > 1 else {"Master"})
    for spec in specs.values():
        assert set(spec) == {"replicas", "restartPolicy", "template"}
        assert spec["template"]["spec"]["containers"][0]["name"] == "pytorch"  # the operator looks for this name
        check_job({"template": spec["template"]})


def test_the_check_can_fail() -> None:
    document = written("jobset")
    spec = document["spec"]["replicatedJobs"][0]["template"]["spec"]
    spec["template"]["spec"]["containers"][0]["imag"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        check_job(spec)


def test_wrong_kind_and_missing_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="kind=jobset"):
        KubernetesEngine(("kind=pod",))
    for twice in (("image=a", "image=b"), ("kind=jobset", "kind=jobset")):
        with pytest.raises(InputError, match="unknown or repeated --engine option"):
            KubernetesEngine(twice)
    for word in ("img=x", "image"):
        with pytest.raises(InputError, match=f"unknown or repeated --engine option {word}"):
            KubernetesEngine((word,))
    for place in (tmp_path, "/dev/null"):
        with pytest.raises(InputError, match="expected a file"):
            KubernetesEngine((f"manifest={place}",)).submission(Agents(("",), AGENT, tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unsupported, match="kubectl"):
        KubernetesEngine(()).submission(Agents(("", ""), AGENT, tmp_path))
    secret, ranks = json.loads((tmp_path / "manifest.json").read_text())["items"]
    assert ranks["kind"] == "JobSet"
    assert secret["metadata"]["name"] == ranks["metadata"]["name"]
    pod = ranks["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (token,) = pod["containers"][0]["env"]
    named = token["valueFrom"]["secretKeyRef"]
    assert named == {"name": secret["metadata"]["name"], "key": next(iter(secret["stringData"]))}
    kubernetes_validate.validate(secret, kubernetes_validate.latest_version(), strict=True)


def test_what_was_applied_is_deleted_even_if_some_of_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\necho "$@" > {said}\n')
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    submission = KubernetesEngine(()).submission(Agents(("",), AGENT, tmp_path))
    submission.cancel()
    path = tmp_path / "manifest.json"
    assert said.read_text().split() == ["delete", "--ignore-not-found", "--wait=false", "--filename", str(path)]
    assert path.stat().st_mode & 0o777 == 0o600, "the manifest has the token of the launch"


def test_the_batch_job_is_cancelled_by_the_number_that_sbatch_printed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    for name in ("srun", "scancel"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$@" >> {said}\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for kind in ("sbatch", "array"):
        agents = Agents(("",), AGENT, tmp_path)
        submission = SlurmEngine(kind=kind).submission(agents)  # type: ignore[arg-type]
        agents.log("slurm").write_text("4711;cluster\nsrun: job 4711 queued and waiting for resources 12")
        submission.cancel()
    assert said.read_text().split() == ["4711", "4711"]


def test_the_name_of_a_job_is_one_that_kubernetes_takes(tmp_path: Path) -> None:
    folder = tmp_path / "Launch_01_"
    folder.mkdir()
    KubernetesEngine((f"manifest={tmp_path}/m.json",)).submission(Agents(("",), AGENT, folder))
    names = {item["metadata"]["name"] for item in json.loads((tmp_path / "m.json").read_text())["items"]}
    assert names == {"paceline-launch-01"}
