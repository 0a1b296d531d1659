"""Small networks beyond the proof networks: every kind of layer, in even and odd sizes, strides and paddings."""

from __future__ import annotations

import json
from typing import Any

from paceline.spec.network import Network

__all__ = ["network_family"]

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
