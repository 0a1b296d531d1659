"""The equality proof: the same weights and batches in every framework must give the same numbers.

For each framework and mode, on each proof network that it can build:

    one rank    logits, loss and every gradient of one batch, and the weights after three steps
    two ranks   the weights after three steps, each rank on its half of the batch

must equal a float64 reference in one process on the whole batch. Batch normalisation uses the statistics of a rank's
own batch, so that networks with it are proved on one rank only.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.bench.adapters import adapter_of
from paceline.bench.collect import explain_failure, read_report
from paceline.bench.frameworks.arrays import initial_tensors
from paceline.bench.job import job_document
from paceline.bench.launch import order_for, watch
from paceline.bench.launchers.local import LocalLauncher
from paceline.bench.proof_networks import PROOF_NETWORKS
from paceline.catalog.clusters import cluster
from paceline.spec.network import Network, plain_network
from paceline.spec.protocol import Protocol
from paceline.spec.strategy import Strategy
from paceline.spec.study import Case

__all__ = ["REFERENCE", "TOLERANCE", "UNKNOWN", "UNPROVABLE", "Proof", "prove_framework"]

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
"""Modes whose two-rank weights are not those of the large batch, by design; one rank of them is proved."""
UNKNOWN = {
    "paceline": "the runtime deals out batches itself; its own tests prove it equal",
    "script": "a user's own program",
}
"""What cannot be fed given weights and batches."""
Arrays = dict[str, Any]


@dataclass(frozen=True)
class Proof:
    """What came of one comparison."""

    framework: str
    network: str
    ranks: int
    status: str
    """`equal`, `different`, `failed`, or `skipped` where the framework refuses the network."""
    worst: str = ""
    """The tensor that is furthest from the reference."""
    error: float | None = None
    """Its relative error."""
    reason: str = ""


def prove_framework(framework: str, networks: dict[str, Network] | None = None) -> Iterator[Proof]:
    """Every comparison of one framework and mode, one after the other."""
    for name, network in (networks or PROOF_NETWORKS).items():
        for ranks in (1, 2):
            yield _compare(framework, name, network, ranks)


def _compare(framework: str, name: str, network: Network, ranks: int) -> Proof:
    case = _case(framework, network, ranks, "float32")
    refused = adapter_of(framework).refusal(case)
    if ranks > 1 and any(layer.kind == "batch_norm" for layer in network.layers):
        refused = refused or "each rank normalises its own batch"
    if ranks > 1:
        refused = refused or UNPROVABLE.get(framework)
    refused = UNKNOWN.get(framework.split("/")[0], refused)
    if refused:
        return Proof(framework, name, ranks, "skipped", reason=refused)
    found = _found(case, _given(network))
    if isinstance(found, str):
        return Proof(framework, name, ranks, "failed", reason=found)
    return _judge(framework, name, found, _reference(network))


def _judge(framework: str, name: str, found: list[Arrays], expected: Arrays) -> Proof:
    ranks = len(found)
    worst, error = "", -1.0
    for arrays in found:
        for key, value in arrays.items():
            distance = _distance(value, expected[key])
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


def _distance(value: Any, expected: Any) -> float:
    """Error relative to the norm of what is expected; infinite where shapes differ or a number is undefined."""
    if value.shape != expected.shape or not np.isfinite(value).all():
        return float("inf")
    scale = max(float(np.linalg.norm(expected)), 1e-3)
    return float(np.linalg.norm(value.astype(np.float64) - expected)) / scale


_known: dict[str, Arrays] = {}


def _reference(network: Network) -> Arrays:
    if network.digest not in _known:
        found = _found(_case(REFERENCE, network, 1, "float64"), _given(network))
        if isinstance(found, str):
            raise RuntimeError(f"the reference itself failed: {found}")
        _known[network.digest] = found[0]
    return _known[network.digest]


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


def _found(case: Case, given: Arrays) -> list[Arrays] | str:
    """What each rank computed, or why there is nothing."""
    with tempfile.TemporaryDirectory(prefix="paceline-proof-") as name:
        folder = Path(name)
        np.savez(folder / "given.npz", **given)
        launcher, adapter = LocalLauncher(), adapter_of(case.framework)
        order = order_for(case, adapter, launcher, folder, threads=1)
        protocol = Protocol(timeout=240.0)
        document = {**job_document(order, protocol), "proof": {"given": str(folder / "given.npz"), "found": name}}
        order.job_path.write_text(json.dumps(document), encoding="utf-8")
        processes = adapter.processes(order)
        launch = launcher.start(processes)
        try:
            ending = watch(launch, processes, protocol.timeout)
        finally:
            launch.stop()
        reports = [read_report(order.events_path(rank), rank) for rank in range(case.ranks)]
        failure = explain_failure(processes, reports, ending)
        if failure is not None:
            return f"{failure.message}\n{failure.log_tail}"
        return [dict(np.load(folder / f"rank-{rank}.npz")) for rank in range(case.ranks)]
