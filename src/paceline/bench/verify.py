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
from paceline.bench.launch import case_launch, job_document, open_case_site, read_reports, wait_for_ranks
from paceline.bench.sites.local import LocalLauncher
from paceline.catalog.clusters import cluster
from paceline.spec.network import Network, plain_network
from paceline.spec.strategy import Strategy
from paceline.spec.study import Case, Protocol

__all__ = [
    "BUILDERS",
    "PROOF_NETWORKS",
    "REFERENCE",
    "TOLERANCE",
    "UNKNOWN",
    "UNPROVABLE",
    "Verification",
    "network_family",
    "verify_family",
    "verify_framework",
]

PROOF_NETWORKS: dict[str, Network] = {
    name: Network.model_validate_json(json.dumps({"name": f"proof-{name}", **content}))
    for name, content in json.loads(files("paceline.bench").joinpath("proof_networks.json").read_text("utf-8")).items()
}
"""Small networks that contain every kind of layer; each framework is verified on those that it can build."""

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
BUILDERS = (
    *("caffe/single", "chainer/chainermn", "cntk/sync", "jax/data_parallel", "keras/jax", "keras/tensorflow"),
    *("keras/torch", "mxnet/dist_sync", "paddle/data_parallel", "pytorch/ddp", "singa/allreduce"),
    "tensorflow/multiworker",
)
"""One mode of each framework with its own network builder."""
ON_TWO_RANKS = ("plain", "transformer")
"""Networks of the two-rank proof, which verifies the exchange; layers are verified on one rank."""
ONE_BY_ONE = ("tensorflow/parameter_server",)
"""Modes that can connect to their servers only once per process."""
Arrays = dict[str, Any]


@dataclass(frozen=True)
class Verification:
    """The result of one comparison."""

    framework: str
    network: str
    ranks: int
    status: str
    """`equal`, `different`, `failed`, or `skipped` where the framework refuses the network."""
    worst: str = ""
    """The tensor with the largest error."""
    error: float | None = None
    """Relative error of the quantity."""
    reason: str = ""


def verify_framework(framework: str, networks: dict[str, Network] | None = None) -> Iterator[Verification]:
    """All comparisons of one framework and mode; by default all networks on one rank, some on two."""
    for ranks in (1, 2):
        chosen = networks or {name: PROOF_NETWORKS[name] for name in (PROOF_NETWORKS if ranks == 1 else ON_TWO_RANKS)}
        yield from _compared(framework, chosen, ranks)


def verify_family(framework: str, networks: dict[str, Network] | None = None) -> Iterator[Verification]:
    """Comparisons of one framework and mode on one rank; by default over the generated family of small networks."""
    return _compared(framework, networks or network_family(), 1)


def _compared(framework: str, networks: dict[str, Network], ranks: int) -> Iterator[Verification]:
    cases = {name: _case(framework, network, ranks, "float32") for name, network in networks.items()}
    refused = {name: reason for name, case in cases.items() if (reason := _refusal(case))}
    wanted = {name: case for name, case in cases.items() if name not in refused}
    _compute_references([case.network for case in wanted.values()])
    together = ranks == 1 and framework not in ONE_BY_ONE
    results = _computed(list(wanted.values())) if together and wanted else ""
    for name, case in cases.items():
        if name in refused:
            yield Verification(framework, name, ranks, "skipped", reason=refused[name])
        else:
            yield _proof(name, case, None if isinstance(results, str) else results[list(wanted).index(name)])


def _proof(name: str, case: Case, computed: list[Arrays] | None) -> Verification:
    """The result for one network, in a separate launch if it was not computed with the others."""
    if computed is None:
        results = _computed([case])
        if isinstance(results, str):
            return Verification(case.framework, name, case.ranks, "failed", reason=results)
        (computed,) = results
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


def _judge(framework: str, name: str, computed: list[Arrays], expected: Arrays) -> Verification:
    ranks = len(computed)
    worst, error = "", -1.0
    for arrays in computed:
        for key, value in arrays.items():
            distance = _distance(value, expected[key], _least_scale(key, expected))
            if distance > error:
                worst, error = key, distance
    missing = [key for key in expected if key not in computed[0] and (ranks == 1 or key.startswith("w/"))]
    if missing:
        return Verification(framework, name, ranks, "different", missing[0], None, f"{missing[0]} is missing")
    equal = error <= TOLERANCE["float32"]
    reason = "" if equal else f"{_words(worst)} is off by {error:.1e}, allowed {TOLERANCE['float32']:.0e}"
    return Verification(framework, name, ranks, "equal" if equal else "different", worst, error, reason)


def _words(key: str) -> str:
    kind, _, tensor = key.partition("/")
    if not tensor:
        return kind
    layer, _, role = tensor.rpartition(".")
    return f"layer {layer!r}: {'gradient of ' if kind == 'g' else ''}{role}{'' if kind == 'g' else ' after the steps'}"


def _least_scale(key: str, expected: Arrays) -> float:
    """Minimum reference of an error: for a gradient, a hundredth of the largest gradient of its layer. Before a
    normalization the terms of a bias's gradient cancel out, and only their rounding errors remain.
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
    results = _computed([_case(REFERENCE, network, 1, "float64") for network in missing.values()])
    if isinstance(results, str):
        raise RuntimeError(f"the reference itself failed: {results}")
    _known.update({digest: ranks[0] for digest, ranks in zip(missing, results, strict=True)})


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


def _computed(cases: list[Case]) -> list[list[Arrays]] | str:
    """The results of each rank for each case, from one launch, or the reason why there are none."""
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
    return {"network": plain_network(network), "given": str(folder / "given.npz"), "results": str(folder)}


Layer = dict[str, Any]
CONV = {"kind": "conv2d", "name": "conv", "channels": 8, "kernel": [3, 3], "padding": [1, 1]}
END: list[Layer] = [{"kind": "flatten", "name": "flat"}, {"kind": "linear", "name": "out", "features": 5}]
EMBED: list[Layer] = [
    {"kind": "embedding", "name": "words", "rows": 11, "width": 6},
    {"kind": "position_embedding", "name": "places", "rows": 9},
]
WINDOWS = (([2, 2], [2, 2], [0, 0]), ([3, 3], [2, 2], [1, 1]), ([3, 2], [2, 3], [1, 0]), ([4, 4], [3, 3], [2, 2]))


def network_family() -> dict[str, Network]:
    """All networks by name."""
    plain = {**_convolutions(), **_pools(), **_images(), **_sequences(), **_names()}
    return {
        name: Network.model_validate_json(json.dumps({"name": f"family-{name}", **content}))
        for name, content in plain.items()
    }


def _image(layers: list[Layer], height: int = 8, width: int = 8) -> dict[str, Any]:
    return {"input": {"kind": "image", "channels": 4, "height": height, "width": width}, "layers": [*layers, *END]}


def _convolutions() -> dict[str, Any]:
    networks = {}
    for kernel, stride, padding in ([[1, 1], [2, 2], [0, 0]], *map(list, WINDOWS), [[5, 1], [1, 2], [2, 0]]):
        for side in (7, 8):
            layer = {**CONV, "kernel": kernel, "stride": stride, "padding": padding, "bias": side == 7}
            networks[f"conv-{_text(kernel, stride, padding)}-of-{side}"] = _image([layer], side, side + 1)
    networks["conv-groups"] = _image([CONV, {**CONV, "name": "grouped", "groups": 4}])
    return networks


def _pools() -> dict[str, Any]:
    networks = {}
    for kind in ("max_pool", "avg_pool"):
        for kernel, stride, padding in WINDOWS:
            for ceil in (False, True):
                layer = {"kind": kind, "name": "pool", "kernel": kernel, "stride": stride, "padding": padding}
                for side in (7, 8):
                    name = f"{kind}-{_text(kernel, stride, padding)}{'-ceil' if ceil else ''}-of-{side}"
                    networks[name] = _image([CONV, {**layer, "ceil": ceil}], side, side + 2)
    return networks


def _text(*pairs: list[int]) -> str:
    return "-".join(f"{high}x{wide}" for high, wide in pairs)


def _images() -> dict[str, Any]:
    second = {**CONV, "name": "second", "inputs": ["input"]}
    both = {"inputs": ["conv", "second"]}
    rows = {"kind": "linear", "name": "rows", "features": 6}
    flats: list[Layer] = [{"kind": "flatten", "name": f"flat{n}", "inputs": [n]} for n in ("conv", "second")]
    networks: dict[str, list[Layer]] = {
        f"lrn-{size}": [CONV, {"kind": "local_response_norm", "name": "lrn", "size": size}] for size in (4, 5)
    }
    networks |= {
        f"shortcut-{side}": [CONV, {"kind": "pad_shortcut", "name": "cut", "channels": 12, "stride": stride}]
        for side, stride in (("even", 2), ("third", 3))
    }
    networks |= {
        "batch-norm": [{**CONV, "bias": False}, {"kind": "batch_norm", "name": "norm"}, {"kind": "tanh", "name": "t"}],
        "layer-norm-of-image": [CONV, {"kind": "layer_norm", "name": "norm"}],
        "linear-on-image": [CONV, rows],
        "gelu": [CONV, {"kind": "gelu", "name": "a"}, {"kind": "gelu", "name": "b", "approximate": True}],
        "concat-of-images": [CONV, second, {"kind": "concat", "name": "both", **both}],
        "add-of-three": [CONV, second, {"kind": "add", "name": "sum", "inputs": ["conv", "second", "conv"]}],
        "mean": [CONV, {"kind": "global_avg_pool", "name": "mean"}, {"kind": "layer_norm", "name": "norm"}],
    }
    for kind in ("add", "concat"):
        networks[f"{kind}-after-flatten"] = [CONV, second, *flats, {"kind": kind, "name": "j", "inputs": _named(flats)}]
    networks["layer-norm-after-flatten"] = [CONV, flats[0], {"kind": "layer_norm", "name": "norm"}]
    return {name: _image(layers) for name, layers in networks.items()}


def _named(layers: list[Layer]) -> list[str]:
    return [layer["name"] for layer in layers]


def _sequences() -> dict[str, Any]:
    norm = {"kind": "layer_norm", "name": "norm"}
    attention = {"kind": "attention", "name": "mix", "heads": 2}
    joined = {"kind": "concat", "name": "both", "inputs": ["words", "places"]}
    networks = {
        "text": [*EMBED, {"kind": "type_embedding", "name": "types"}, {**attention, "causal": True}, norm],
        "concat-of-sequences": [*EMBED, joined, attention],
        "first-token": [*EMBED, attention, {"kind": "first_token", "name": "first"}],
        "flat-text": [*EMBED, norm, {"kind": "flatten", "name": "line"}],
    }
    tied = {"kind": "linear", "name": "logits", "features": 11, "tied_to": "words"}
    words = {"kind": "tokens", "length": 7, "vocabulary": 11}
    plain = {name: {"input": words, "layers": [*layers, END[1]]} for name, layers in networks.items()}
    return {**plain, "tied": {"input": words, "layers": [*EMBED, norm, tied]}}


def _names() -> dict[str, Any]:
    """Names that mean something to a framework, that need escaping, or that differ only in a separator."""
    names = ["values", "label", "data", "loss", "a-b", "a_b", "a.b", "a__b", 'say "hi" { }', "Größe", "parameters"]
    kinds: list[Layer] = [{**CONV, "channels": 4}, {"kind": "tanh"}]
    return {"names": _image([{**kinds[index % 2], "name": name} for index, name in enumerate(names)])}
