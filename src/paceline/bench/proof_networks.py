"""Small networks with every kind of layer, for the equality proof."""

from __future__ import annotations

import json

from paceline.spec.network import Network

__all__ = ["PROOF_NETWORKS", "proof_network"]

IMAGE = {"kind": "image", "channels": 3, "height": 14, "width": 14}
WINDOW = {"kernel": [3, 3], "stride": [2, 2]}

PLAIN = [
    {"kind": "conv2d", "name": "conv1", "channels": 8, "kernel": [3, 3], "padding": [1, 1]},
    {"kind": "relu", "name": "relu1"},
    {"kind": "max_pool", "name": "pool1", "kernel": [2, 2], "stride": [2, 2]},
    {"kind": "conv2d", "name": "conv2", "channels": 12, "kernel": [3, 3], "stride": [2, 2]},
    {"kind": "tanh", "name": "tanh2"},
    {"kind": "flatten", "name": "flat"},
    {"kind": "dropout", "name": "drop", "rate": 0.5},
    {"kind": "linear", "name": "fc1", "features": 16},
    {"kind": "relu", "name": "relu3"},
    {"kind": "linear", "name": "fc2", "features": 10},
]
RESIDUAL = [
    {"kind": "conv2d", "name": "conv1", "channels": 8, "kernel": [3, 3], "padding": [1, 1], "bias": False},
    {"kind": "batch_norm", "name": "norm1"},
    {"kind": "relu", "name": "relu1"},
    {"kind": "max_pool", "name": "pool1", **WINDOW, "padding": [1, 1]},
    {"kind": "conv2d", "name": "conv2", "channels": 16, **WINDOW, "padding": [1, 1], "bias": False},
    {"kind": "batch_norm", "name": "norm2"},
    {"kind": "pad_shortcut", "name": "short", "channels": 16, "inputs": ["pool1"]},
    {"kind": "add", "name": "sum", "inputs": ["norm2", "short"]},
    {"kind": "relu", "name": "relu2"},
    {"kind": "global_avg_pool", "name": "mean"},
    {"kind": "linear", "name": "fc", "features": 10},
]
INCEPTION = [
    {"kind": "conv2d", "name": "conv1", "channels": 8, "kernel": [5, 5], "padding": [2, 2]},
    {"kind": "relu", "name": "relu1"},
    {"kind": "max_pool", "name": "pool1", **WINDOW, "ceil": True},
    {"kind": "local_response_norm", "name": "lrn", "alpha": 0.5},
    {"kind": "conv2d", "name": "left", "channels": 6, "kernel": [1, 1], "inputs": ["lrn"]},
    {"kind": "avg_pool", "name": "mid", "kernel": [3, 3], "stride": [1, 1], "padding": [1, 1], "inputs": ["lrn"]},
    {"kind": "conv2d", "name": "right", "channels": 4, "kernel": [3, 3], "padding": [1, 1], "inputs": ["lrn"]},
    {"kind": "concat", "name": "joined", "inputs": ["left", "mid", "right"]},
    {"kind": "relu", "name": "relu2"},
    {"kind": "global_avg_pool", "name": "mean"},
    {"kind": "linear", "name": "fc", "features": 10},
]
GROUPED = [
    {"kind": "conv2d", "name": "conv1", "channels": 8, "kernel": [3, 3], "padding": [1, 1]},
    {"kind": "relu", "name": "relu1"},
    {"kind": "conv2d", "name": "conv2", "channels": 12, "kernel": [3, 3], "stride": [2, 2], "groups": 2},
    {"kind": "relu", "name": "relu2"},
    {"kind": "flatten", "name": "flat"},
    {"kind": "linear", "name": "fc", "features": 10},
]
TRANSFORMER = [
    {"kind": "embedding", "name": "tokens", "rows": 19, "width": 12},
    {"kind": "position_embedding", "name": "places", "rows": 8},
    {"kind": "type_embedding", "name": "types"},
    {"kind": "attention", "name": "attend", "heads": 3, "causal": True},
    {"kind": "add", "name": "sum1", "inputs": ["types", "attend"]},
    {"kind": "layer_norm", "name": "norm1"},
    {"kind": "linear", "name": "up", "features": 24},
    {"kind": "gelu", "name": "gelu", "approximate": True},
    {"kind": "linear", "name": "down", "features": 12},
    {"kind": "add", "name": "sum2", "inputs": ["norm1", "down"]},
    {"kind": "linear", "name": "head", "features": 19, "tied_to": "tokens", "bias": False},
]
PROOF_NETWORKS: dict[str, Network] = {
    name: Network.model_validate_json(json.dumps({"name": f"proof-{name}", "input": given, "layers": layers}))
    for name, given, layers in (
        ("plain", IMAGE, PLAIN),
        ("residual", IMAGE, RESIDUAL),
        ("inception", IMAGE, INCEPTION),
        ("grouped", IMAGE, GROUPED),
        ("transformer", {"kind": "tokens", "length": 6, "vocabulary": 19}, TRANSFORMER),
    )
}


def proof_network(name: str) -> Network:
    """A proof network by name."""
    return PROOF_NETWORKS[name]
