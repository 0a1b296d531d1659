"""Engines that hand agents to a scheduler: Slurm and Kubernetes.

Slurm runs agents by srun, a batch job, a job array or a heterogeneous job. Kubernetes runs them as pods: a manifest for
JobSet or the Kubeflow training operator, applied by kubectl, in JSON, which kubectl reads like YAML. The image of a pod
needs Python 3 and, where no file system is shared, receives the framework's environment over the agent's connection.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

from paceline import variables
from paceline.bench.sites.engines import Agents, Submission, write_private
from paceline.errors import InputError, Unsupported

__all__ = ["JobKind", "KubernetesEngine", "ManifestKind", "SlurmEngine", "manifest", "token_secret"]

JobKind = Literal["srun", "sbatch", "array", "hetjob"]
ManifestKind = Literal["jobset", "pytorchjob"]
IMAGE = "python:3.11"


class SlurmEngine:
    """Slurm places the agents; on named nodes if the cluster names them. A batch job is cancelled with the launch."""

    name = "slurm"
    carries = False
    timeout_s = 86400.0
    """Seconds that a job may be queued; if it cannot run, srun or sbatch ends earlier."""

    def __init__(self, options: tuple[str, ...] = (), *, kind: JobKind = "srun") -> None:
        self._options, self._kind = options, kind

    def submission(self, agents: Agents) -> Submission:
        """The command that starts all agents."""
        if shutil.which("srun") is None:
            raise Unsupported("Slurm's srun is not installed here", hint="run on a login node of the cluster")
        make = {"srun": self._srun, "sbatch": self._sbatch, "array": self._array, "hetjob": self._hetjob}
        commands = {"slurm": make[self._kind](agents)}
        if self._kind in ("sbatch", "array"):
            return Submission(commands, functools.partial(_cancel, agents.log("slurm")))
        return Submission(commands)

    def _srun(self, agents: Agents) -> list[str]:
        return ["srun", "--kill-on-bad-exit=0", *self._options, *_tasks(agents), *agents.command]

    def _sbatch(self, agents: Agents) -> list[str]:
        script = agents.folder / "job.sh"
        tasks = shlex.join(_tasks(agents))
        script.write_text(f"#!/bin/sh\nexec srun --kill-on-bad-exit=0 {tasks} {agents.shell_command}\n")
        nodes = agents.num_by_host
        named = [f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}"] if agents.named else []
        return [*self._batch(agents), f"--ntasks={len(agents.hosts)}", *named, str(script)]

    def _batch(self, agents: Agents) -> list[str]:
        output = f"--output={agents.folder}/slurm-%j.log"
        return ["sbatch", "--parsable", "--wait", "--job-name=paceline", output, *self._options]

    def _array(self, agents: Agents) -> list[str]:
        if agents.named and len(agents.hosts) > 1:
            raise Unsupported(
                "Slurm chooses the hosts of an array itself, and this cluster names its hosts",
                hint="--on slurm, slurm-batch or slurm-het; or a cluster that names none, such as `local`",
            )
        script = agents.folder / "job.sh"
        script.write_text(f"#!/bin/sh\nexec {agents.shell_command}\n")
        nodes = [f"--nodelist={agents.hosts[0]}"] if agents.named else []
        last = len(agents.hosts) - 1
        return [*self._batch(agents), f"--array=0-{last}", "--ntasks=1", *nodes, str(script)]

    def _hetjob(self, agents: Agents) -> list[str]:
        """One component per node, so that each node is requested with its own resources."""
        words = ["srun", "--kill-on-bad-exit=0", *self._options]
        for number, (host, count) in enumerate(agents.num_by_host.items()):
            node = [f"--nodelist={host}", "--nodes=1"] if host else []
            words += [*([":"] if number else []), f"--ntasks={count}", *node, *agents.command]
        return words


def _tasks(agents: Agents) -> list[str]:
    """The distribution of tasks over nodes; a node that is listed twice gets two tasks."""
    if not agents.named:
        return [f"--ntasks={len(agents.hosts)}"]
    machines = agents.folder / "machines"
    machines.write_text("".join(f"{host}\n" for host in agents.hosts))
    nodes = len(agents.num_by_host)
    return [f"--ntasks={len(agents.hosts)}", f"--nodes={nodes}", "--distribution=arbitrary", f"--nodelist={machines}"]


def _cancel(log: Path) -> None:
    """Cancel the submitted batch job, if any; its id is the first word of the output of sbatch."""
    number = re.match(r"\d+", log.read_text(errors="replace")) if log.exists() else None
    if number:
        subprocess.run(["scancel", number.group()], capture_output=True, timeout=20, check=False)


class KubernetesEngine:
    """Applies a manifest with one pod for each agent, and deletes it when the launch ends."""

    name = "kubernetes"
    carries = False
    timeout_s = 1800.0
    """Seconds for pods to be scheduled and to pull their image."""

    def __init__(self, options: tuple[str, ...] = ()) -> None:
        asked = dict(word.split("=", 1) for word in options if "=" in word)
        self._image, kind = asked.get("image", IMAGE), asked.get("kind", "jobset")
        unknown = [
            word for word in options if word.split("=", 1)[0] not in ("image", "kind", "manifest") or "=" not in word
        ]
        if unknown or len(asked) < len(options):
            raise InputError(
                f"--on kubernetes: unknown or repeated --engine option {', '.join(unknown or options)}",
                hint="--engine image=NAME, --engine kind=jobset or pytorchjob, --engine manifest=FILE",
            )
        if kind not in ("jobset", "pytorchjob"):
            raise InputError(
                f"--on kubernetes: unknown kind of manifest {kind!r}", hint="kind=jobset or kind=pytorchjob"
            )
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
