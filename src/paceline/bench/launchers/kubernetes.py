"""Agents as pods: a manifest for JobSet or the Kubeflow training operator, applied by kubectl.

The pods run nothing but agents, which call back like those of every other engine; the image needs Python 3 and, where
no file system is shared, receives the framework's environment over the leash.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

from paceline.bench.launchers.remote.launcher import Seats
from paceline.errors import InputError, Unsupported

__all__ = ["Kubernetes", "manifest", "yaml_text"]

Kind = Literal["jobset", "pytorchjob"]
IMAGE = "python:3.11"


class Kubernetes:
    """Applies a manifest with one pod for each process, and deletes it when the launch ends."""

    name = "kubernetes"
    patience_s = 1800.0
    """Pods may queue, and pull their image."""

    def __init__(self, options: tuple[str, ...] = ()) -> None:
        wanted = dict(word.split("=", 1) for word in options if "=" in word)
        self._image, self._kind = wanted.get("image", IMAGE), wanted.get("kind", "jobset")
        unknown = set(wanted) - {"image", "kind", "manifest"}
        if unknown or len(wanted) < len(options):
            raise InputError(
                f"Kubernetes knows no {', '.join(sorted(unknown)) or 'word without ='}",
                hint="--engine image=NAME, --engine kind=jobset or pytorchjob, --engine manifest=FILE",
            )
        if self._kind not in ("jobset", "pytorchjob"):
            raise InputError(f"no manifest is called {self._kind!r}", hint="kind=jobset or kind=pytorchjob")
        self._kept = Path(wanted["manifest"]) if "manifest" in wanted else None
        self._path: Path | None = None

    def commands(self, seats: Seats) -> dict[str, list[str]]:
        """One kubectl for all; where the manifest is to be kept, whoever applies it may do so elsewhere."""
        name = "paceline-" + re.sub(r"[^a-z0-9]+", "-", seats.folder.name.lower()).strip("-")
        kind: Kind = "jobset" if self._kind == "jobset" else "pytorchjob"
        document = manifest(kind, name, ranks=len(seats.hosts), image=self._image, command=seats.agent)
        if self._kept is not None:
            self._kept.write_text(yaml_text(document), encoding="utf-8")
            return {"manifest": ["echo", f"kubectl apply --filename {self._kept}"]}
        self._path = seats.folder / "manifest.yaml"
        self._path.write_text(yaml_text(document), encoding="utf-8")
        if shutil.which("kubectl") is None:
            raise Unsupported(
                "kubectl is not installed here",
                hint="install it, or keep the manifest and apply it elsewhere: --engine manifest=FILE",
            )
        return {"kubectl": ["kubectl", "apply", "--filename", str(self._path)]}

    def cancel(self) -> None:
        """Delete what was applied."""
        if self._path is not None and self._path.exists() and shutil.which("kubectl"):
            delete = ["kubectl", "delete", "--ignore-not-found", "--wait=false", "--filename", str(self._path)]
            subprocess.run(delete, capture_output=True, timeout=60, check=False)


def manifest(kind: Kind, name: str, *, ranks: int, image: str, command: tuple[str, ...]) -> dict[str, Any]:
    """One pod for each rank; a pod that fails is not started again, because a measurement is not repeated in part."""
    container = {"name": "pytorch", "image": image, "command": list(command)}
    pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    if kind == "jobset":
        return _jobset(name, pod, ranks)
    return _pytorch_job(name, pod, ranks)


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


def yaml_text(value: Any, indent: int = 0) -> str:
    """Plain data as YAML; scalars are written as JSON, which YAML includes."""
    pad = "  " * indent
    if isinstance(value, dict) and value:
        return "".join(f"{pad}{key}:{_nested(item, indent)}" for key, item in value.items())
    if isinstance(value, list) and value:
        return "".join(f"{pad}-{_nested(item, indent)}" for item in value)
    return f"{pad}{json.dumps(value)}\n"


def _nested(item: Any, indent: int) -> str:
    if isinstance(item, dict | list) and item:
        return "\n" + yaml_text(item, indent + 1)
    return f" {json.dumps(item)}\n"
