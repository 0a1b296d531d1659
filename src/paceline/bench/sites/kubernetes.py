"""Agents as pods: a manifest for JobSet or the Kubeflow training operator, applied by kubectl.

The pods run agents, which connect like those of every other engine; the image needs Python 3 and, where
no file system is shared, receives the framework's environment over the agent's connection. Manifests are JSON, which
kubectl reads like YAML.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

from paceline import variables
from paceline.bench.sites.engines import Agents, Submission, write_private
from paceline.errors import InputError, Unsupported

__all__ = ["KubernetesEngine", "ManifestKind", "manifest", "token_secret"]

ManifestKind = Literal["jobset", "pytorchjob"]
IMAGE = "python:3.11"


class KubernetesEngine:
    """Applies a manifest with one pod for each agent, and deletes it when the launch ends."""

    name = "kubernetes"
    carries = False
    timeout_s = 1800.0
    """Seconds for pods to be scheduled and to pull their image."""

    def __init__(self, options: tuple[str, ...] = ()) -> None:
        asked = dict(word.split("=", 1) for word in options if "=" in word)
        self._image, kind = asked.get("image", IMAGE), asked.get("kind", "jobset")
        unknown = set(asked) - {"image", "kind", "manifest"}
        if unknown or len(asked) < len(options):
            raise InputError(
                f"Kubernetes knows no {', '.join(sorted(unknown)) or 'word without ='}",
                hint="--engine image=NAME, --engine kind=jobset or pytorchjob, --engine manifest=FILE",
            )
        if kind not in ("jobset", "pytorchjob"):
            raise InputError(f"no manifest is called {kind!r}", hint="kind=jobset or kind=pytorchjob")
        self._kind: ManifestKind = "jobset" if kind == "jobset" else "pytorchjob"
        self._kept = Path(asked["manifest"]) if "manifest" in asked else None

    def submission(self, agents: Agents) -> Submission:
        """One kubectl for all agents, or only the manifest file if the user applies it."""
        name = "paceline-" + re.sub(r"[^a-z0-9]+", "-", agents.folder.name.lower()).strip("-")
        ranks = manifest(self._kind, name, ranks=len(agents.hosts), image=self._image, command=agents.command)
        document = {"apiVersion": "v1", "kind": "List", "items": [token_secret(name, agents.token), ranks]}
        path = self._kept or agents.folder / "manifest.json"
        write_private(path, json.dumps(document, indent=2))
        if self._kept is not None:
            return Submission({"manifest": ["echo", f"kubectl apply --filename {path}"]})
        if shutil.which("kubectl") is None:
            raise Unsupported(
                "kubectl is not installed here",
                hint="install it, or keep the manifest and apply it elsewhere: --engine manifest=FILE",
            )
        apply = ["kubectl", "apply", "--filename", str(path)]
        return Submission({"kubectl": apply}, functools.partial(_delete, path))


def _delete(path: Path) -> None:
    """Delete the applied resources."""
    if path.exists() and shutil.which("kubectl"):
        delete = ["kubectl", "delete", "--ignore-not-found", "--wait=false", "--filename", str(path)]
        subprocess.run(delete, capture_output=True, timeout=60, check=False)


def manifest(kind: ManifestKind, name: str, *, ranks: int, image: str, command: tuple[str, ...]) -> dict[str, Any]:
    """One pod per rank; a failed pod is not restarted, because a measurement is not repeated in part."""
    token = {"name": variables.AGENT_TOKEN, "valueFrom": {"secretKeyRef": {"name": name, "key": "token"}}}
    container = {"name": "pytorch", "image": image, "command": list(command), "env": [token]}
    pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    if kind == "jobset":
        return _jobset(name, pod, ranks)
    return _pytorch_job(name, pod, ranks)


def token_secret(name: str, token: str) -> dict[str, Any]:
    """The token of the launch, which pods get from the cluster: manifests of pods can be read by more people."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"token": token}}


def _jobset(name: str, pod: dict[str, Any], ranks: int) -> dict[str, Any]:
    job = {"parallelism": ranks, "completions": ranks, "completionMode": "Indexed", "backoffLimit": 0, "template": pod}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": {"maxRestarts": 0},
            "network": {"enableDNSHostnames": True},
            "replicatedJobs": [{"name": "ranks", "replicas": 1, "template": {"spec": job}}],
        },
    }


def _pytorch_job(name: str, pod: dict[str, Any], ranks: int) -> dict[str, Any]:
    replicas = {"Master": 1, **({"Worker": ranks - 1} if ranks > 1 else {})}
    specs = {role: {"replicas": n, "restartPolicy": "Never", "template": pod} for role, n in replicas.items()}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"runPolicy": {"cleanPodPolicy": "All", "backoffLimit": 0}, "pytorchReplicaSpecs": specs},
    }
