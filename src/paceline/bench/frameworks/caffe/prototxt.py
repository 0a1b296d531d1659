"""Writes a network as Caffe text (prototxt); runs in Caffe's own Python 3.9, without Caffe itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.bench.frameworks.graph import Plain, UnsupportedLayer, input_shapes, layer_keys

__all__ = ["parameter_blobs", "reader_prototxt", "solver_prototxt", "train_prototxt"]

Shapes = list[tuple[int, ...]]


def train_prototxt(network: Plain, *, batch: int, training: bool = True) -> str:
    """The network with an input of images and labels, and the loss."""
    if network["input"]["kind"] != "image":
        raise UnsupportedLayer("Caffe's builder takes images only")
    network = _with_keys(network)
    shapes = input_shapes(network)
    parts = [_input(network["input"], batch)]
    for layer in network["layers"]:
        if layer["kind"] == "dropout" and not training:
            layer = {**layer, "rate": 0.0}
        build = BUILDERS.get(layer["kind"])
        if build is None:
            raise UnsupportedLayer(f"Caffe builds no {layer['kind']} ({layer['name']})")
        parts.append(build(layer, shapes[layer["name"]], batch))
    last = network["layers"][-1]["name"]
    parts.append(f'layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "{last}" bottom: "label" top: "loss" }}')
    return "\n".join([*parts, ""])


def _with_keys(network: Plain) -> Plain:
    """The network with names that are valid in prototxt and do not collide with the names of added layers."""
    keys = {**layer_keys(network), "input": "input"}
    layers = [
        {**layer, "name": keys[layer["name"]], "inputs": [keys[name] for name in layer["inputs"]]}
        for layer in network["layers"]
    ]
    return {**network, "layers": layers}


def solver_prototxt(net_path: str, *, rate: float, momentum: float, seed: int) -> str:
    """A plain stochastic gradient descent solver for a network file."""
    lines = [
        f'train_net: "{net_path}"',
        f"base_lr: {rate}",
        f'lr_policy: "fixed" momentum: {momentum} weight_decay: 0 max_iter: 100000000 display: 0 snapshot: 0',
        f'solver_mode: CPU type: "SGD" random_seed: {seed}',
    ]
    return "\n".join([*lines, ""])


def reader_prototxt(source: str, *, batch: int, colour: bool) -> str:
    """A net of one layer, Caffe's own reader of listed images, which reads ahead in a thread; pixels in [-1, 1]."""
    lines = [
        'name: "reader"',
        'layer { name: "files" type: "ImageData" top: "input" top: "label"',
        f"  transform_param {{ mean_value: 127.5 scale: {1 / 127.5} }}",
        f'  image_data_param {{ source: "{source}" batch_size: {batch} shuffle: true',
        f"  is_color: {str(colour).lower()} }} }}",
    ]
    return "\n".join([*lines, ""])


def parameter_blobs(network: Plain) -> dict[str, tuple[str, int]]:
    """The Caffe layer and blob index that hold each tensor; batch norm's scale and shift live in a Scale layer."""
    keys, blobs = layer_keys(network), {}
    for layer in network["layers"]:
        owner = keys[layer["name"]] + ("_scale" if layer["kind"] == "batch_norm" else "")
        blobs.update({tensor["name"]: (owner, index) for index, tensor in enumerate(layer["tensors"])})
    return blobs


def _input(source: Plain, batch: int) -> str:
    image = _dims((batch, source["channels"], source["height"], source["width"]))
    return (
        'layer { name: "data" type: "Input" top: "input" top: "label" '
        f"input_param {{ shape {{ {image} }} shape {{ dim: {batch} }} }} }}"
    )


def _dims(sizes: Any) -> str:
    return " ".join(f"dim: {size}" for size in sizes)


def _text(name: str, kind: str, bottoms: Any, *, top: str = "", params: str = "") -> str:
    reads = " ".join(f'bottom: "{bottom}"' for bottom in bottoms)
    return f'layer {{ name: "{name}" type: "{kind}" {reads} top: "{top or name}" {params} }}'


def _simple(kind: str) -> Callable[[Plain, Shapes, int], str]:
    return lambda layer, shapes, batch: _text(layer["name"], kind, layer["inputs"])


def _conv(layer: Plain, _: Shapes, __: int) -> str:
    high, wide = layer["kernel"]
    params = (
        f"num_output: {layer['channels']} kernel_h: {high} kernel_w: {wide} "
        f"stride_h: {layer['stride'][0]} stride_w: {layer['stride'][1]} "
        f"pad_h: {layer['padding'][0]} pad_w: {layer['padding'][1]} "
        f"group: {layer['groups']} bias_term: {str(layer['bias']).lower()}"
    )
    return _text(layer["name"], "Convolution", layer["inputs"], params=f"convolution_param {{ {params} }}")


def _linear(layer: Plain, _: Shapes, __: int) -> str:
    params = f"inner_product_param {{ num_output: {layer['features']} bias_term: {str(layer['bias']).lower()} }}"
    return _text(layer["name"], "InnerProduct", layer["inputs"], params=params)


def _batch_norm(layer: Plain, _: Shapes, __: int) -> str:
    name = layer["name"]
    params = f"batch_norm_param {{ use_global_stats: false eps: {layer['eps']} }}"
    norm = _text(name + "_norm", "BatchNorm", layer["inputs"], params=params)
    return (
        norm
        + "\n"
        + _text(name + "_scale", "Scale", [name + "_norm"], top=name, params="scale_param { bias_term: true }")
    )


def _local_response_norm(layer: Plain, _: Shapes, __: int) -> str:
    params = f"local_size: {layer['size']} alpha: {layer['alpha']} beta: {layer['beta']} k: {layer['k']}"
    return _text(layer["name"], "LRN", layer["inputs"], params=f"lrn_param {{ {params} }}")


def _pool(method: str) -> Callable[[Plain, Shapes, int], str]:
    def build(layer: Plain, shapes: Shapes, _: int) -> str:
        sizes = [_rounded_up(layer, shapes[0], axis) for axis in (0, 1)]
        extra = [size - wanted for size, wanted in zip(sizes, layer["shape"][1:])]
        name = layer["name"]
        params = (
            f"pooling_param {{ pool: {method} kernel_h: {layer['kernel'][0]} kernel_w: {layer['kernel'][1]} "
            f"stride_h: {layer['stride'][0]} stride_w: {layer['stride'][1]} "
            f"pad_h: {layer['padding'][0]} pad_w: {layer['padding'][1]} }}"
        )
        top = name + "_whole" if any(extra) else name
        return "\n".join([_text(name, "Pooling", layer["inputs"], top=top, params=params), *_cut(layer, top, extra)])

    return build


def _rounded_up(layer: Plain, shape: tuple[int, ...], axis: int) -> int:
    """Caffe rounds the size of a pooled image up; with padding on any side, windows start inside image or padding."""
    side, kernel = shape[axis + 1], layer["kernel"][axis]
    stride, padding = layer["stride"][axis], layer["padding"][axis]
    count = -(-(side + 2 * padding - kernel) // stride) + 1
    if any(layer["padding"]) and (count - 1) * stride >= side + padding:
        count -= 1
    return count


def _cut(layer: Plain, top: str, extra: list[int]) -> list[str]:
    """Drops the last rows and columns that rounding up added."""
    parts, name = [], layer["name"]
    axes = [axis for axis in (0, 1) if extra[axis]]
    for axis in axes:
        out = name if axis == axes[-1] else f"{name}_rows"
        rest = f"{name}_rest{axis}"
        parts.append(
            f'layer {{ name: "{out}_cut" type: "Slice" bottom: "{top}" top: "{out}" top: "{rest}" '
            f"slice_param {{ axis: {axis + 2} slice_point: {layer['shape'][axis + 1]} }} }}"
        )
        parts.append(f'layer {{ name: "{rest}_silence" type: "Silence" bottom: "{rest}" }}')
        top = out
    return parts


def _global_avg_pool(layer: Plain, _: Shapes, __: int) -> str:
    name = layer["name"]
    pooled = _text(
        name + "_pool", "Pooling", layer["inputs"], params="pooling_param { pool: AVE global_pooling: true }"
    )
    return pooled + "\n" + _text(name, "Flatten", [name + "_pool"])


def _dropout(layer: Plain, _: Shapes, __: int) -> str:
    if not layer["rate"]:
        return _text(layer["name"], "Split", layer["inputs"])
    params = f"dropout_param {{ dropout_ratio: {layer['rate']} }}"
    return _text(layer["name"], "Dropout", layer["inputs"], params=params)


def _pad_shortcut(layer: Plain, shapes: Shapes, batch: int) -> str:
    """Every stride-th pixel by a 1x1 pooling; the new channels are constant zeros."""
    name, extra = layer["name"], (layer["channels"] - shapes[0][0]) // 2
    pair = (layer["stride"], layer["stride"])
    pick = {"name": name + "_pick", "kernel": (1, 1), "stride": pair, "padding": (0, 0)}
    picked = _pool("MAX")({**pick, "inputs": layer["inputs"], "shape": layer["shape"]}, shapes, batch)
    if not extra:
        return picked + "\n" + _text(name, "Split", [name + "_pick"])
    zeros = (
        f'layer {{ name: "{name}_zeros" type: "DummyData" top: "{name}_zeros" '
        f"dummy_data_param {{ shape {{ {_dims((batch, extra, *layer['shape'][1:]))} }} }} }}"
    )
    bottoms = [name + "_zeros", name + "_pick", name + "_zeros"]
    return "\n".join([picked, zeros, _text(name, "Concat", bottoms, params="concat_param { axis: 1 }")])


BUILDERS: dict[str, Callable[[Plain, Shapes, int], str]] = {
    "conv2d": _conv,
    "linear": _linear,
    "batch_norm": _batch_norm,
    "local_response_norm": _local_response_norm,
    "relu": _simple("ReLU"),
    "tanh": _simple("TanH"),
    "max_pool": _pool("MAX"),
    "avg_pool": _pool("AVE"),
    "global_avg_pool": _global_avg_pool,
    "dropout": _dropout,
    "flatten": _simple("Flatten"),
    "add": _simple("Eltwise"),
    "concat": _simple("Concat"),
    "pad_shortcut": _pad_shortcut,
}
