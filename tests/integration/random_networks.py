"""Small networks by chance, as somebody may write them: every kind of layer, odd sizes, branches, names of any kind."""

from __future__ import annotations

import json
import random
from typing import Any

from pydantic import TypeAdapter, ValidationError

from paceline.spec import shapes
from paceline.spec.layers import Layer
from paceline.spec.network import Network

NAMES = ("values", "label", "class", "lambda", "a.b", "a-b", "a_b", "Größe", "卷积", "None", "self", "conv.weight")
NAMES += ("out/1", "input_1", "1", "bias", "loss:0", "%d", "{x}", "A", "a", "x y", '"q"', "softmax")
IMAGES = ("conv2d", "conv2d", "conv2d", "max_pool", "avg_pool", "local_response_norm", "pad_shortcut", "batch_norm")
TEXTS = ("attention", "attention", "position_embedding", "type_embedding")
ANY = ("linear", "tanh", "gelu", "relu", "add", "concat", "layer_norm")
NORMS = {"batch_norm", "layer_norm"}
Plain = dict[str, Any]
LAYER: TypeAdapter[Layer] = TypeAdapter(Layer)


def random_networks(seed: int, count: int) -> dict[str, Network]:
    """Networks by name; a name repeats its network."""
    return {f"{seed}-{number}": _network(f"{seed}-{number}") for number in range(count)}


def _network(name: str) -> Network:
    made = _Making(random.Random(name))
    return Network.model_validate_json(json.dumps({"name": f"random-{name}", **made.whole()}))


class _Making:
    """A network that grows by layers which fit."""

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._layers = chance, list[Plain]()
        self._names = chance.sample(NAMES, len(NAMES))
        if chance.random() < 0.75:
            sides = [chance.choice((1, 3, 5, 6, 7, 8, 9)) for _ in range(2)]
            self._input: Plain = {
                "kind": "image",
                "channels": chance.choice((1, 3, 4)),
                "height": sides[0],
                "width": sides[1],
            }
            self._kinds, self._known = (*IMAGES, *ANY), {"input": (self._input["channels"], *sides)}
        else:
            self._input = {"kind": "tokens", "length": chance.choice((1, 2, 7)), "vocabulary": 11}
            self._kinds, self._known = (*TEXTS, *ANY), {"input": (self._input["length"],)}
            self._add({"kind": "embedding", "name": "words", "rows": 11, "width": chance.choice((4, 6))})

    def whole(self) -> Plain:
        """Up to seven layers, joined where nothing reads them."""
        wanted = self._chance.randint(2, 7)
        for _ in range(300):
            if len(self._layers) < wanted:
                self._try_one()
        self._join()
        self._add({"kind": "linear", "name": "out", "features": 5})
        return {"input": self._input, "layers": self._layers}

    def _try_one(self) -> None:
        kind = self._chance.choice(self._kinds)
        if kind in NORMS and NORMS & {layer["kind"] for layer in self._layers}:
            return  # one after the other, gradients of a bias cancel out, and rounding remains
        name = self._names.pop() if self._names and self._chance.random() < 0.5 else f"l{len(self._layers)}"
        layer = {"kind": kind, "name": name, **self._fields(kind)}
        if "inputs" not in layer and self._layers and self._chance.random() < 0.15:
            layer["inputs"] = [self._chance.choice(list(self._known))]
        self._add(layer)

    def _fields(self, kind: str) -> Plain:
        pick = self._chance.choice
        sizes = {"kernel": (1, 1, 2, 3, 3, 4, 5), "stride": (1, 1, 2, 3, 4), "padding": (0, 0, 1, 2)}
        window = {name: [pick(some) for _ in range(2)] for name, some in sizes.items()}
        made: dict[str, Plain] = {
            "conv2d": {
                **window,
                "channels": pick((1, 2, 4, 6)),
                "groups": pick((1, 1, 1, 2, 4)),
                "bias": pick((True, False)),
            },
            "max_pool": {**window, "ceil": pick((True, False))},
            "avg_pool": {**window, "ceil": pick((True, False))},
            "local_response_norm": {
                "size": pick((1, 2, 3, 4, 5)),
                "alpha": pick((1e-4, 0.5, 2.0)),
                "k": pick((0.5, 2.0)),
            },
            "pad_shortcut": {"channels": pick((4, 6, 8)), "stride": pick((1, 2, 3))},
            "linear": {"features": pick((1, 3, 6)), "bias": pick((True, False))},
            "gelu": {"approximate": pick((True, False))},
            "attention": {"heads": pick((1, 2)), "causal": pick((True, False))},
            "position_embedding": {"rows": 9},
            "type_embedding": {"rows": pick((1, 2))},
            **{name: {"eps": pick((1e-5, 1e-3, 0.1))} for name in NORMS},
            **{
                name: {"inputs": [pick(list(self._known)) for _ in range(pick((1, 2, 2, 3)))]}
                for name in ("add", "concat")
            },
        }
        return made.get(kind, {})

    def _add(self, layer: Plain) -> None:
        """Add a layer if its name is free and its inputs fit."""
        inputs = layer.get("inputs") or [self._layers[-1]["name"] if self._layers else "input"]
        try:
            parsed = LAYER.validate_json(json.dumps(layer))
            shape = shapes.output_shape(parsed, [self._known[name] for name in inputs])
            parameters = shapes.parameter_shapes(parsed, self._known[inputs[0]], {})
        except (ValidationError, shapes.ShapeError):
            return
        if layer["kind"] == "layer_norm" and ("weight", (1,)) in parameters:
            return  # one number less its mean is zero: of its gradients only rounding remains
        is_read = layer["kind"] == "embedding" or self._input["kind"] != "tokens" or "input" not in inputs
        if layer["name"] not in self._known and is_read:
            self._layers.append({**layer, "inputs": inputs})
            self._known[layer["name"]] = shape

    def _join(self) -> None:
        """Put side by side what nothing reads, so that all layers lead to the last one, which reads no image."""
        read = {name for layer in self._layers for name in layer["inputs"]}
        loose = [layer["name"] for layer in self._layers if layer["name"] not in read]
        for name in loose:
            if len(self._known[name]) > 1 and (len(loose) > 1 or len(self._known[name]) == 3):
                self._add({"kind": "flatten", "name": f"flat of {name}", "inputs": [name]})
        if len(loose) > 1:
            flats = [name if len(self._known[name]) == 1 else f"flat of {name}" for name in loose]
            self._add({"kind": "concat", "name": "joined", "inputs": flats})
