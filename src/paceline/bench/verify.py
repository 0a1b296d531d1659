"""The equality proof: equal weights and batches must give equal results in every framework.

For each framework and mode:

    one rank    logits, loss and every gradient of one batch, and the weights after three steps, of each proof network
                that it can build
    two ranks   the weights after three steps, each rank on its half of the batch, of an image and a text network

must equal a float64 reference in one process on the whole batch. Batch normalization uses the statistics of a rank's
own batch, so networks with it are verified on one rank only.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from paceline.bench.adapters import adapter_of, missing_environments
from paceline.bench.collect import explain_failure
from paceline.bench.frameworks.arrays import initial_tensors
from paceline.bench.frameworks.family import network_family
from paceline.bench.launch import case_launch, job_document, open_case_site, read_reports, wait_for_ranks
from paceline.bench.sites.local import LocalLauncher
from paceline.catalog.clusters import cluster
from paceline.spec.network import Network, plain_network
from paceline.spec.strategy import Strategy
from paceline.spec.study import Case, Protocol

__all__ = [
    "PROOF_NETWORKS",
    "REFERENCE",
    "TOLERANCE",
    "UNKNOWN",
    "UNPROVABLE",
    "Proof",
    "prove_family",
    "prove_framework",
]

PROOF_NETWORKS: dict[str, Network] = {
    name: Network.model_validate_json(json.dumps({"name": f"proof-{name}", **content}))
    for name, content in json.loads(files("paceline.bench").joinpath("proof_networks.json").read_text("utf-8")).items()
}
"""Small networks that contain every kind of layer; each framework proves those that it can build."""

REFERENCE = "pytorch/ddp"
"""Computes the reference, in float64 and one process."""
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}
"""Largest allowed error of a tensor, relative to the norm of the reference, by precision."""
BATCH, STEPS = 8, 3
UNPROVABLE = {
    "mxnet/dist_async": "asynchronous: the weights depend on who comes first",
    "tensorflow/parameter_server": "asynchronous: the weights depend on who comes first",
    "cntk/onebit": "quantises gradients to one bit",
    "cntk/block_momentum": "exchanges models, not gradients",
}
"""Modes that by design are not equivalent to the large batch; they are verified on one rank only."""
UNKNOWN = {
    "paceline": "the runtime deals out batches itself; its own tests prove it equal",
    "script": "a user's own program",
}
"""Frameworks without given weights and batches."""
ON_TWO_RANKS = ("plain", "transformer")
"""Networks of the two-rank proof, which verifies the exchange; layers are verified on one rank."""
ONE_BY_ONE = ("tensorflow/parameter_server",)
"""Modes that can connect to their servers only once per process."""
Arrays = dict[str, Any]


@dataclass(frozen=True)
class Proof:
    """The result of one comparison."""

    framework: str
    network: str
    ranks: int
    status: str
    """`equal`, `different`, `failed`, or `skipped` where the framework refuses the network."""
    worst: str = ""
    """The tensor with the largest error."""
    error: float | None = None
    """Its relative error."""
    reason: str = ""


def prove_framework(framework: str, networks: dict[str, Network] | None = None) -> Iterator[Proof]:
    """All comparisons of one framework and mode; by default all networks on one rank, some on two."""
    for ranks in (1, 2):
        chosen = networks or {name: PROOF_NETWORKS[name] for name in (PROOF_NETWORKS if ranks == 1 else ON_TWO_RANKS)}
        yield from _compared(framework, chosen, ranks)


def prove_family(framework: str) -> Iterator[Proof]:
    """Comparisons of one framework and mode on one rank, over the generated family of small networks."""
    return _compared(framework, network_family(), 1)


def _compared(framework: str, networks: dict[str, Network], ranks: int) -> Iterator[Proof]:
    cases = {name: _case(framework, network, ranks, "float32") for name, network in networks.items()}
    refused = {name: reason for name, case in cases.items() if (reason := _refusal(case))}
    wanted = {name: case for name, case in cases.items() if name not in refused}
    _compute_references([case.network for case in wanted.values()])
    together = ranks == 1 and framework not in ONE_BY_ONE
    found = _found(list(wanted.values())) if together and wanted else ""
    for name, case in cases.items():
        if name in refused:
            yield Proof(framework, name, ranks, "skipped", reason=refused[name])
        else:
            yield _proof(name, case, None if isinstance(found, str) else found[list(wanted).index(name)])


def _proof(name: str, case: Case, computed: list[Arrays] | None) -> Proof:
    """The result for one network, in a separate launch if it was not computed with the others."""
    if computed is None:
        found = _found([case])
        if isinstance(found, str):
            return Proof(case.framework, name, case.ranks, "failed", reason=found)
        (computed,) = found
    return _judge(case.framework, name, computed, _known[case.network.digest])


def _refusal(case: Case) -> str | None:
    """Why there is no comparison; None if there is one."""
    if case.framework.split("/")[0] in UNKNOWN:
        return UNKNOWN[case.framework.split("/")[0]]
    if missing_environments(case.framework):
        return f"not installed: paceline frameworks install {case.framework}"
    refused = adapter_of(case.framework).refusal(case)
    if refused or case.ranks == 1:
        return refused
    if any(layer.kind == "batch_norm" for layer in case.network.layers):
        return "each rank normalises its own batch"
    return UNPROVABLE.get(case.framework)


def _judge(framework: str, name: str, found: list[Arrays], expected: Arrays) -> Proof:
    ranks = len(found)
    worst, error = "", -1.0
    for arrays in found:
        for key, value in arrays.items():
            distance = _distance(value, expected[key], _least_scale(key, expected))
            if distance > error:
                worst, error = key, distance
    missing = [key for key in expected if key not in found[0] and (ranks == 1 or key.startswith("w/"))]
    if missing:
        return Proof(framework, name, ranks, "different", missing[0], None, f"{missing[0]} is missing")
    equal = error <= TOLERANCE["float32"]
    reason = "" if equal else f"{_words(worst)} is off by {error:.1e}, allowed {TOLERANCE['float32']:.0e}"
    return Proof(framework, name, ranks, "equal" if equal else "different", worst, error, reason)


def _words(key: str) -> str:
    kind, _, tensor = key.partition("/")
    if not tensor:
        return kind
    layer, _, role = tensor.rpartition(".")
    return f"layer {layer!r}: {'gradient of ' if kind == 'g' else ''}{role}{'' if kind == 'g' else ' after the steps'}"


def _least_scale(key: str, expected: Arrays) -> float:
    """What an error is compared with at least: of a gradient, a hundredth of the largest one of its layer.

    Where a norm follows, the terms of a bias's gradient cancel out, and what is left is the rounding of the terms.
    """
    layer, kind = key.rpartition(".")[0], key.partition("/")[0]
    beside = [value for name, value in expected.items() if kind == "g" and name.rpartition(".")[0] == layer]
    return max([1e-3, *(0.01 * float(np.linalg.norm(value)) for value in beside)])


def _distance(value: Any, expected: Any, least: float) -> float:
    """Error relative to the norm of the reference; infinite if shapes differ or a value is not finite."""
    if value.shape != expected.shape or not np.isfinite(value).all():
        return float("inf")
    scale = max(float(np.linalg.norm(expected)), least)
    return float(np.linalg.norm(value.astype(np.float64) - expected)) / scale


_known: dict[str, Arrays] = {}
"""Reference results by the digest of their network."""


def _compute_references(networks: list[Network]) -> None:
    """Compute the reference results that are not known yet, in one launch."""
    missing = {network.digest: network for network in networks if network.digest not in _known}
    if not missing:
        return
    found = _found([_case(REFERENCE, network, 1, "float64") for network in missing.values()])
    if isinstance(found, str):
        raise RuntimeError(f"the reference itself failed: {found}")
    _known.update({digest: ranks[0] for digest, ranks in zip(missing, found, strict=True)})


def _case(framework: str, network: Network, ranks: int, precision: Any) -> Case:
    return Case(
        network=network,
        cluster=cluster("local"),
        framework=framework,
        strategy=Strategy(precision=precision),
        ranks=ranks,
        batch=BATCH // ranks,
        scaling="strong",
        placement="packed",
        input="resident",
        threads=1,
    )


def _given(network: Network) -> Arrays:
    """Weights and batches of the proof."""
    generator = np.random.default_rng(7)
    plain = plain_network(network)
    tensors = initial_tensors(plain, 7)
    arrays = {f"w/{name}": value + 0.1 * generator.standard_normal(value.shape) for name, value in tensors.items()}
    rows = plain["layers"][-1]["shape"][:-1]
    arrays["targets"] = generator.integers(plain["classes"], size=(STEPS, BATCH, *rows))
    size = (STEPS, BATCH, *network.input.shape)
    if network.input.kind == "tokens":
        arrays["inputs"] = generator.integers(network.input.vocabulary, size=size)
    else:
        arrays["inputs"] = generator.standard_normal(size)
    return {key: value.astype(np.float32) if value.dtype.kind == "f" else value for key, value in arrays.items()}


def _found(cases: list[Case]) -> list[list[Arrays]] | str:
    """The results of each rank for each case, from one launch, or why there are none."""
    first, protocol = cases[0], Protocol(timeout=240.0)
    adapter = adapter_of(first.framework)
    with tempfile.TemporaryDirectory(prefix="paceline-proof-") as name:
        folders = [Path(name) / f"proof-{number}" for number in range(len(cases))]
        proofs = [_asked(case.network, folder) for case, folder in zip(cases, folders, strict=True)]
        with LocalLauncher() as launcher, open_case_site(launcher, first) as site:
            launch = case_launch(first, adapter, launcher, site, Path(name), threads=1)
            document = {**job_document(launch, protocol), "proofs": proofs}
            launch.job_path.write_text(json.dumps(document), encoding="utf-8")
            processes = adapter.processes(launch)
            ending = wait_for_ranks(site.start(processes), processes, protocol.timeout)
        failure = explain_failure(processes, read_reports(launch), ending)
        if failure is not None:
            return f"{failure.message}\n{failure.log_tail}"
        return [[dict(np.load(folder / f"rank-{rank}.npz")) for rank in range(first.ranks)] for folder in folders]


def _asked(network: Network, folder: Path) -> dict[str, Any]:
    """The parameters of one proof for the worker, with its weights and batches in a folder."""
    folder.mkdir()
    np.savez(folder / "given.npz", **_given(network))
    return {"network": plain_network(network), "given": str(folder / "given.npz"), "found": str(folder)}
