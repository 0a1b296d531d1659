"""What every kind of layer computes, by loops over its definition: nothing of it is shared with a framework."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["logits_of", "loss_of"]

Floats = NDArray[np.float64]
Plain = dict[str, Any]


def logits_of(network: Plain, tensors: dict[str, Any], batch: Any) -> Floats:
    """The output of the last layer."""
    known: dict[str, Any] = {"input": batch}
    for layer in network["layers"]:
        own = {
            name.rpartition(".")[2]: value
            for name, value in tensors.items()
            if name.rpartition(".")[0] == layer["name"]
        }
        if layer.get("tied_to"):
            own["weight"] = tensors[f"{layer['tied_to']}.weight"]
        inputs = [known[name] for name in layer["inputs"]]
        known[layer["name"]] = (
            np.stack([_sample(layer, own, each) for each in zip(*inputs, strict=True)])
            if layer["kind"] != "batch_norm"
            else _batch_norm(layer, own, inputs[0])
        )
    return np.asarray(known[network["layers"][-1]["name"]])


def loss_of(logits: Floats, targets: Any) -> float:
    """Mean cross-entropy over all rows."""
    rows = logits.reshape(-1, logits.shape[-1])
    rows = rows - rows.max(axis=1, keepdims=True)
    log = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return float(-log[np.arange(len(rows)), np.asarray(targets).reshape(-1)].mean())


def _batch_norm(layer: Plain, own: Plain, images: Floats) -> Floats:
    mean, variance = images.mean(axis=(0, 2, 3), keepdims=True), images.var(axis=(0, 2, 3), keepdims=True)
    plain = (images - mean) / np.sqrt(variance + layer["eps"])
    return np.asarray(plain * own["weight"][:, None, None] + own["bias"][:, None, None])


def _sample(layer: Plain, own: Plain, inputs: tuple[Any, ...]) -> Any:
    return globals()[f"_{layer['kind']}"](layer, own, *inputs)


def _conv2d(layer: Plain, own: Plain, image: Floats) -> Floats:
    weight, (high, wide) = own["weight"], layer["stride"]
    padded = np.pad(image, [(0, 0), *((side, side) for side in layer["padding"])])
    out = np.zeros(layer["shape"])
    each, of_group = len(image) // layer["groups"], layer["channels"] // layer["groups"]
    for channel, row, column in itertools.product(*map(range, layer["shape"])):
        first = channel // of_group * each
        window = padded[first : first + each, row * high :, column * wide :][:, : weight.shape[2], : weight.shape[3]]
        out[channel, row, column] = (window * weight[channel]).sum()
    return out + own["bias"][:, None, None] if layer["bias"] else out


def _window(layer: Plain, image: Floats, place: tuple[int, int]) -> tuple[Floats, int]:
    """What of the image a window holds, and how many places it has within the image and its padding."""
    parts, count = [], 1
    for at, axis in zip(place, (0, 1), strict=True):
        side, padding = image.shape[axis + 1], layer["padding"][axis]
        begin = at * layer["stride"][axis] - padding
        end = min(begin + layer["kernel"][axis], side + padding)
        parts.append(slice(max(0, begin), min(end, side)))
        count *= end - begin
    return image[:, parts[0], parts[1]], count


def _pooled(layer: Plain, image: Floats, reduce: Any) -> Floats:
    out = np.zeros(layer["shape"])
    for row, column in itertools.product(range(out.shape[1]), range(out.shape[2])):
        out[:, row, column] = reduce(*_window(layer, image, (row, column)))
    return out


def _max_pool(layer: Plain, own: Plain, image: Floats) -> Floats:
    return _pooled(layer, image, lambda found, count: found.max(axis=(1, 2)))


def _avg_pool(layer: Plain, own: Plain, image: Floats) -> Floats:
    return _pooled(layer, image, lambda found, count: found.sum(axis=(1, 2)) / count)


def _global_avg_pool(layer: Plain, own: Plain, image: Floats) -> Any:
    return image.mean(axis=(1, 2))


def _local_response_norm(layer: Plain, own: Plain, image: Floats) -> Floats:
    out, size = np.zeros_like(image), layer["size"]
    for channel in range(len(image)):
        first = channel - size // 2
        beside = image[max(0, first) : max(0, first + size)]
        out[channel] = image[channel] / (layer["k"] + layer["alpha"] / size * (beside**2).sum(axis=0)) ** layer["beta"]
    return out


def _pad_shortcut(layer: Plain, own: Plain, image: Floats) -> Floats:
    side = (layer["channels"] - len(image)) // 2
    return np.pad(image[:, :: layer["stride"], :: layer["stride"]], ((side, side), (0, 0), (0, 0)))


def _linear(layer: Plain, own: Plain, rows: Floats) -> Any:
    return rows @ own["weight"].T + own.get("bias", 0.0)


def _layer_norm(layer: Plain, own: Plain, rows: Floats) -> Any:
    mean, variance = rows.mean(axis=-1, keepdims=True), rows.var(axis=-1, keepdims=True)
    return (rows - mean) / np.sqrt(variance + layer["eps"]) * own["weight"] + own["bias"]


def _relu(layer: Plain, own: Plain, values: Floats) -> Any:
    return np.where(values > 0, values, 0.0)


def _tanh(layer: Plain, own: Plain, values: Floats) -> Any:
    return np.tanh(values)


def _gelu(layer: Plain, own: Plain, values: Floats) -> Any:
    if layer["approximate"]:
        return 0.5 * values * (1 + np.tanh(math.sqrt(2 / math.pi) * (values + 0.044715 * values**3)))
    return 0.5 * values * (1 + np.vectorize(math.erf)(values / math.sqrt(2)))


def _dropout(layer: Plain, own: Plain, values: Floats) -> Any:
    return values  # in a proof nothing is left to chance


def _flatten(layer: Plain, own: Plain, values: Floats) -> Any:
    return values.reshape(-1)


def _add(layer: Plain, own: Plain, *values: Floats) -> Any:
    return np.sum(values, axis=0)


def _concat(layer: Plain, own: Plain, *values: Floats) -> Any:
    return np.concatenate(values)


def _embedding(layer: Plain, own: Plain, tokens: Any) -> Any:
    return own["weight"][tokens]


def _position_embedding(layer: Plain, own: Plain, rows: Floats) -> Any:
    return rows + own["weight"][: len(rows)]


def _type_embedding(layer: Plain, own: Plain, rows: Floats) -> Any:
    return rows + own["weight"][0]


def _first_token(layer: Plain, own: Plain, rows: Floats) -> Any:
    return rows[0]


def _attention(layer: Plain, own: Plain, rows: Floats) -> Any:
    length, width = rows.shape
    size = width // layer["heads"]
    query, key, value = np.split(rows @ own["qkv_weight"].T + own["qkv_bias"], 3, axis=1)
    mixed = np.zeros_like(rows)
    for head in range(layer["heads"]):
        part = slice(head * size, (head + 1) * size)
        for place in range(length):
            last = place + 1 if layer["causal"] else length
            scores = key[:last, part] @ query[place, part] / math.sqrt(size)
            shares = np.exp(scores - scores.max())
            mixed[place, part] = shares / shares.sum() @ value[:last, part]
    return mixed @ own["out_weight"].T + own["out_bias"]
