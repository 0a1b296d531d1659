"""Layers of a network as PyTorch modules; parameters have Paceline's names, shapes and layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from paceline.bench.frameworks.graph import layer_keys

__all__ = ["TorchNetwork", "build"]

Spec = dict[str, Any]


class TorchNetwork(nn.Module):
    """The layers of a network in order; each reads the outputs of its input layers."""

    def __init__(self, network: Spec, *, dropout: bool = True) -> None:
        super().__init__()
        self.order = [(layer["name"], layer["inputs"]) for layer in network["layers"]]
        self.parts = nn.ModuleDict()
        self._keys = layer_keys(network)
        self._last_use = _last_uses(self.order)
        for layer in network["layers"]:
            inputs = [_shape_of(network, name) for name in layer["inputs"]]
            self.parts[self._keys[layer["name"]]] = build(layer, inputs, dropout=dropout)
        for layer in network["layers"]:
            if layer.get("tied_to"):
                self.parts[self._keys[layer["name"]]].weight = self.parts[self._keys[layer["tied_to"]]].weight

    def forward(self, batch: Tensor) -> Tensor:
        """Logits of a batch."""
        known = {"input": batch}
        for position, (name, inputs) in enumerate(self.order):
            known[name] = self.parts[self._keys[name]](*(known[source] for source in inputs))
            for source in self._last_use.get(position, ()):
                del known[source]
        return known[self.order[-1][0]]

    def shared_parts(self, network: Spec) -> set[str]:
        """Keys of the parts that have a tensor in common with another one."""
        tied = [layer for layer in network["layers"] if layer.get("tied_to")]
        return {self._keys[name] for layer in tied for name in (layer["name"], layer["tied_to"])}

    def named_tensors(self) -> dict[str, nn.Parameter]:
        """Trainable tensors by Paceline's names, in the order of declaration."""
        names = {key: name for name, key in self._keys.items()}
        tensors = {}
        for key, parameter in self.named_parameters():
            _, part, tensor = key.split(".", 2)
            tensors[f"{names[part]}.{tensor}"] = parameter
        return tensors


def _last_uses(order: list[Any]) -> dict[int, list[str]]:
    """Outputs that are not needed after a position, so that their memory can be freed."""
    last = {source: position for position, (_, inputs) in enumerate(order) for source in inputs}
    uses: dict[int, list[str]] = {}
    for source, position in last.items():
        uses.setdefault(position, []).append(source)
    return uses


def _shape_of(network: Spec, name: str) -> list[int]:
    if name == "input":
        given = network["input"]
        return [given["channels"], given["height"], given["width"]] if given["kind"] == "image" else [given["length"]]
    return next(layer["shape"] for layer in network["layers"] if layer["name"] == name)


def build(layer: Spec, inputs: list[list[int]], *, dropout: bool = True) -> nn.Module:
    """The module of one layer."""
    rate = layer.get("rate", 0.0) if dropout else 0.0
    return _BUILDERS[layer["kind"]]({**layer, "rate": rate}, inputs[0])


class _Add(nn.Module):
    def forward(self, *inputs: Tensor) -> Tensor:
        total = inputs[0]
        for value in inputs[1:]:
            total = total + value
        return total


class _Concat(nn.Module):
    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, dim=1)


class _GlobalAvgPool(nn.Module):
    def forward(self, image: Tensor) -> Tensor:
        return image.mean(dim=(2, 3))


class _FirstToken(nn.Module):
    def forward(self, sequence: Tensor) -> Tensor:
        return sequence[:, 0]


class _PadShortcut(nn.Module):
    def __init__(self, stride: int, extra: int) -> None:
        super().__init__()
        self.stride, self.side = stride, extra // 2

    def forward(self, image: Tensor) -> Tensor:
        return F.pad(image[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.side, self.side))


class _PositionEmbedding(nn.Module):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width).normal_(0, 0.02))

    def forward(self, sequence: Tensor) -> Tensor:
        return sequence + self.weight[: sequence.shape[1]]


class _TypeEmbedding(_PositionEmbedding):
    def forward(self, sequence: Tensor) -> Tensor:
        return sequence + self.weight[0]


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv_weight = nn.Parameter(torch.empty(3 * width, width).normal_(0, 0.02))
        self.qkv_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_weight = nn.Parameter(torch.empty(width, width).normal_(0, 0.02))
        self.out_bias = nn.Parameter(torch.zeros(width))

    def forward(self, sequence: Tensor) -> Tensor:
        batch, length, width = sequence.shape
        split = F.linear(sequence, self.qkv_weight, self.qkv_bias).view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return F.linear(mixed.transpose(1, 2).reshape(batch, length, width), self.out_weight, self.out_bias)


def _conv(layer: Spec, shape: list[int]) -> nn.Module:
    return nn.Conv2d(
        shape[0],
        layer["channels"],
        tuple(layer["kernel"]),
        stride=tuple(layer["stride"]),
        padding=tuple(layer["padding"]),
        groups=layer["groups"],
        bias=layer["bias"],
    )


def _pool(kind: Any) -> Callable[[Spec, list[int]], nn.Module]:
    def make(layer: Spec, shape: list[int]) -> nn.Module:
        sizes = [tuple(layer[name]) for name in ("kernel", "stride", "padding")]
        module: nn.Module = kind(*sizes, ceil_mode=layer["ceil"])
        return module

    return make


_BUILDERS: dict[str, Callable[[Spec, list[int]], nn.Module]] = {
    "conv2d": _conv,
    "linear": lambda layer, shape: nn.Linear(shape[-1], layer["features"], bias=layer["bias"]),
    "batch_norm": lambda layer, shape: nn.BatchNorm2d(shape[0], eps=layer["eps"]),
    "layer_norm": lambda layer, shape: nn.LayerNorm(shape[-1], eps=layer["eps"]),
    "local_response_norm": lambda layer, shape: nn.LocalResponseNorm(
        layer["size"], alpha=layer["alpha"], beta=layer["beta"], k=layer["k"]
    ),
    "relu": lambda layer, shape: nn.ReLU(),
    "tanh": lambda layer, shape: nn.Tanh(),
    "gelu": lambda layer, shape: nn.GELU(approximate="tanh" if layer["approximate"] else "none"),
    "max_pool": _pool(nn.MaxPool2d),
    "avg_pool": _pool(nn.AvgPool2d),
    "global_avg_pool": lambda layer, shape: _GlobalAvgPool(),
    "dropout": lambda layer, shape: nn.Dropout(layer["rate"]),
    "flatten": lambda layer, shape: nn.Flatten(),
    "add": lambda layer, shape: _Add(),
    "concat": lambda layer, shape: _Concat(),
    "pad_shortcut": lambda layer, shape: _PadShortcut(layer["stride"], layer["channels"] - shape[0]),
    "embedding": lambda layer, shape: nn.Embedding(layer["rows"], layer["width"]),
    "position_embedding": lambda layer, shape: _PositionEmbedding(layer["rows"], shape[1]),
    "type_embedding": lambda layer, shape: _TypeEmbedding(layer["rows"], shape[1]),
    "attention": lambda layer, shape: _Attention(shape[1], layer["heads"], layer["causal"]),
    "first_token": lambda layer, shape: _FirstToken(),
}
