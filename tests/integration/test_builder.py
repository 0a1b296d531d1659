"""PyTorch's builder against layers by loops, since what it computes in float64 is the reference of all frameworks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.bench.verify import PROOF_NETWORKS, _compute_references, _given, _known, network_family
from paceline.spec.network import Network, plain_network
from tests.integration.plain_layers import logits_of, loss_of
from tests.integration.random_networks import random_networks

Layer = dict[str, Any]
CONV: Layer = {"kind": "conv2d", "name": "conv", "channels": 8, "kernel": [3, 3], "padding": [1, 1]}
SECOND: Layer = {**CONV, "name": "second", "inputs": ["input"]}
FLAT: Layer = {"kind": "flatten", "name": "flat"}
OUT: Layer = {"kind": "linear", "name": "out", "features": 5}
WORDS: Layer = {"kind": "embedding", "name": "words", "rows": 11, "width": 6}
PLACES: Layer = {"kind": "position_embedding", "name": "places", "rows": 9}
MIX: Layer = {"kind": "attention", "name": "mix"}
STEP = 1e-8
"""Length of a step along which the loss is compared with what its gradient says."""


def image(*layers: Layer, height: int = 8, width: int = 8) -> dict[str, Any]:
    return {"input": {"kind": "image", "channels": 4, "height": height, "width": width}, "layers": layers}


def text(*layers: Layer, length: int = 9) -> dict[str, Any]:
    return {"input": {"kind": "tokens", "length": length, "vocabulary": 11}, "layers": layers}


def pools() -> dict[str, dict[str, Any]]:
    """Windows beyond the image, gaps between windows, half a window of padding, the whole image, no layer before."""
    made = {}
    for kind in ("max_pool", "avg_pool"):
        for name, side, sizes in (
            ("beyond", 4, ([5, 5], [2, 2], [0, 0], True)),
            ("far-beyond", 4, ([7, 7], [3, 3], [1, 1], True)),
            ("gaps", 8, ([2, 2], [3, 4], [0, 0], True)),
            ("points", 8, ([1, 1], [3, 3], [0, 0], True)),
            ("half-padding", 7, ([2, 2], [2, 2], [1, 1], True)),
            ("whole", 8, ([8, 8], [1, 1], [0, 0], False)),
        ):
            pool = dict(zip(("kernel", "stride", "padding", "ceil"), sizes, strict=True))
            made[f"{kind}-{name}"] = image(
                CONV, {"kind": kind, "name": "pool", **pool}, FLAT, OUT, height=side, width=side
            )
        first = {"kind": kind, "name": "pool", "kernel": [3, 3], "stride": [2, 2], "padding": [1, 1]}
        made[f"{kind}-first"] = image(first, FLAT, OUT)
    return made


def images() -> dict[str, dict[str, Any]]:
    made = {
        "depthwise": image({**CONV, "groups": 4, "stride": [2, 1]}, FLAT, OUT, height=7),
        "one-row-kernel": image({**CONV, "kernel": [1, 5], "padding": [0, 2], "stride": [1, 3]}, FLAT, OUT),
        "more-padding-than-kernel": image({**CONV, "kernel": [1, 1], "padding": [2, 1]}, FLAT, OUT, height=5),
        "concat-of-three": image(CONV, SECOND, joined("concat", "conv", "second", "conv"), FLAT, OUT),
        "concat-of-one": image(CONV, joined("concat", "conv"), FLAT, OUT),
        "add-to-itself": image(CONV, joined("add", "conv", "conv"), FLAT, OUT),
        "add-to-the-input": image({**CONV, "channels": 4}, joined("add", "conv", "input"), FLAT, OUT),
        "ends-in-an-image": image(CONV),
        "ends-in-a-norm": image(CONV, FLAT, {"kind": "layer_norm", "name": "norm", "eps": 0.1}, height=4, width=4),
        "ends-in-a-relu": image(CONV, FLAT, {**OUT, "bias": False}, {"kind": "relu", "name": "last"}),
        "ends-in-a-mean": image(CONV, {"kind": "global_avg_pool", "name": "mean"}, FLAT),
        "norm-first": image({"kind": "batch_norm", "name": "norm", "eps": 0.5}, CONV, FLAT, OUT),
    }
    for channels, stride in ((8, 1), (10, 5)):
        cut = {"kind": "pad_shortcut", "name": "cut", "channels": channels, "stride": stride}
        made[f"shortcut-of-{stride}"] = image(CONV, cut, FLAT, OUT, height=7)
    for size, alpha, beta, k in ((1, 0.5, 0.75, 1.0), (3, 2.0, 1.0, 0.5), (12, 0.9, 0.5, 2.0)):
        norm = {"kind": "local_response_norm", "name": "norm", "size": size, "alpha": alpha, "beta": beta, "k": k}
        made[f"lrn-of-{size}"] = image(CONV, norm, FLAT, OUT)
    return made


def joined(kind: str, *inputs: str) -> Layer:
    return {"kind": kind, "name": "joined", "inputs": list(inputs)}


def texts() -> dict[str, dict[str, Any]]:
    other, first = {**WORDS, "name": "other", "inputs": ["input"]}, {"kind": "first_token", "name": "first"}
    tied = {"kind": "linear", "name": "logits", "features": 11, "bias": False, "tied_to": "words"}
    return {
        "one-head": text(WORDS, PLACES, {**MIX, "heads": 1}, OUT),
        "heads-of-one": text(WORDS, PLACES, {**MIX, "heads": 6, "causal": True}, OUT),
        "two-tables": text(WORDS, other, joined("add", "words", "other"), OUT),
        "one-type": text(WORDS, {"kind": "type_embedding", "name": "types", "rows": 1}, OUT),
        "tied-without-bias": text(WORDS, PLACES, {"kind": "relu", "name": "relu"}, tied),
        "one-token": text(WORDS, PLACES, {**MIX, "heads": 2}, first, OUT, length=1),
        "vector-twice": text(WORDS, PLACES, first, joined("concat", "first", "first"), OUT),
    }


@pytest.fixture(scope="module")
def networks() -> dict[str, Network]:
    made = {**pools(), **images(), **texts()}
    more = {name: Network.model_validate_json(json.dumps({"name": name, **content})) for name, content in made.items()}
    return {**PROOF_NETWORKS, **network_family(), **more, **random_networks(int(os.environ.get("SEED", "5")), 30)}


def test_the_reference_computes_what_each_kind_of_layer_is_defined_to(
    pytorch: Path, networks: dict[str, Network]
) -> None:
    _compute_references(list(networks.values()))
    chance = np.random.default_rng(5)
    for name, network in networks.items():
        plain, given, found = plain_network(network), _given(network), _known[network.digest]
        weights = {key[2:]: value.astype(np.float64) for key, value in given.items() if key.startswith("w/")}
        batch, targets = given["inputs"][0], given["targets"][0]
        batch = batch.astype(np.float64) if batch.dtype.kind == "f" else batch
        logits = logits_of(plain, weights, batch)
        assert np.allclose(found["logits"], logits, rtol=1e-9, atol=1e-9), name
        assert float(found["loss"]) == pytest.approx(loss_of(logits, targets), rel=1e-9), name
        away = {key: chance.standard_normal(value.shape) for key, value in weights.items()}
        ends = [
            loss_of(logits_of(plain, {key: weights[key] + sign * STEP * away[key] for key in weights}, batch), targets)
            for sign in (1, -1)
        ]
        slope = sum(float((found[f"g/{key}"] * away[key]).sum()) for key in weights)
        assert slope == pytest.approx((ends[0] - ends[1]) / (2 * STEP), rel=1e-4, abs=1e-6), name
