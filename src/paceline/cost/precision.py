"""A precision on a device: peak rates of each kind of layer, and bytes per element.

`amp` is automatic mixed precision as PyTorch's autocast does it: convolutions and matrix products in float16 (bfloat16
on processors), activations in the same type, weights, gradients and update in float32. float16 and bfloat16 alone also
store weights and gradients in two bytes, with a float32 copy of the weights. TF32 multiplies with a shortened mantissa
and stores float32. A framework's default is TF32 where the device has it: for convolutions alone, or for matrix
products as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from paceline.errors import Unsupported
from paceline.spec.cluster import Device, LayerClass, Precision

__all__ = ["FLOAT32", "WIDTHS", "Numerics", "numerics_on", "precision_line"]

WIDTHS: dict[str, int] = {"float64": 8, "float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
"""Bytes of a stored number by precision."""
DEFAULTS = ("tf32_convolutions", "tf32_everywhere")
"""Defaults of frameworks that use TF32 on devices that have it, and float32 on others."""


@dataclass(frozen=True)
class Numerics:
    """The arithmetic of one device."""

    convolution: Precision = "float32"
    """Precision whose peak rate convolutions have."""
    matrix: Precision = "float32"
    """Precision of linear layers and attention."""
    activation: int = 4
    """Bytes of a stored activation."""
    weight: int = 4
    """Bytes of a weight and of its gradient, which is exchanged so."""

    def of(self, kind: LayerClass) -> Precision:
        """Precision in which a kind of layer multiplies."""
        return self.convolution if kind.startswith("convolution") else self.matrix

    def unit(self, kind: LayerClass) -> LayerClass:
        """The kind of layer as it reaches a device's rates: on matrix units in TF32 and half precision."""
        if kind == "elementwise" or self.of(kind) in ("float32", "float64"):
            return kind
        return _TENSOR[kind]

    @property
    def meaning(self) -> str:
        """Types of compute and storage."""
        if self.convolution != self.matrix:
            return f"{_SHOWN[self.convolution]} convolutions, {_SHOWN[self.matrix]} matrix products, stored in float32"
        if self.matrix == "tf32":
            return "TF32 convolutions and matrix products, stored in float32"
        if self.activation != self.weight:
            return f"{self.matrix} convolutions, matrix products and activations, float32 weights and gradients"
        return f"{self.matrix} weights, activations and gradients" if self.weight == 2 else self.matrix


_TENSOR: dict[LayerClass, LayerClass] = {
    "convolution": "tensor_convolution", "convolution_3x3": "tensor_convolution",
    "linear": "tensor_linear", "attention": "tensor_attention",
}  # fmt: skip
_SHOWN: dict[Precision, str] = {"tf32": "TF32", "float32": "float32"}
FLOAT32 = Numerics()


def numerics_on(device: Device, precision: str) -> Numerics:
    """The arithmetic of a precision on a device; refuses a precision that the device has no rate for."""
    if precision in DEFAULTS:
        if "tf32" not in device.peak:
            return FLOAT32
        return Numerics("tf32", "tf32" if precision == "tf32_everywhere" else "float32")
    if precision == "amp":
        half = _half(device)
        return Numerics(half, half, activation=2)
    known = next((name for name in get_args(Precision) if name == precision), None)
    if known is None or (device.peak and known not in device.peak):
        have = ", ".join(sorted(device.peak))
        raise Unsupported(
            f"no peak rate in {precision} is known for {device.name!r}, so its compute time cannot be predicted",
            hint=f"known for it: {have}; state the rate in the cluster file, or choose another --precision",
        )
    return Numerics(known, known, activation=WIDTHS[known], weight=WIDTHS[known])


def _half(device: Device) -> Precision:
    """The precision of autocast on a device."""
    first: tuple[Precision, ...] = ("bfloat16",) if device.kind == "cpu" else ("float16", "bfloat16")
    half = next((name for name in first if name in device.peak), None)
    if half is None and device.peak:
        raise Unsupported(
            f"amp on {device.name!r}: no peak rate in {' or '.join(first)} is known for it",
            hint=f"known for it: {', '.join(sorted(device.peak))}",
        )
    return half or first[0]


def precision_line(asked: str | None, default: str, *, framework: str, devices: list[Device]) -> str:
    """One line that names the precision on every device, and the reason."""
    meanings: dict[str, list[str]] = {}
    for device in devices:
        meanings.setdefault(numerics_on(device, asked or default).meaning, []).append(device.name)
    said = [text if len(meanings) == 1 else f"{text} on {', '.join(names)}" for text, names in meanings.items()]
    if asked is not None:
        return f"{asked}: {'; '.join(said)}" if said != [asked] else f"{asked}, as asked"
    return f"{'; '.join(said)}: {_why(default, framework, devices)}"


def _why(default: str, framework: str, devices: list[Device]) -> str:
    if default not in DEFAULTS:
        return f"the default of {framework}"
    if not any("tf32" in device.peak for device in devices):
        return f"the default of {framework} on devices without TF32"
    what = "convolutions only" if default == "tf32_convolutions" else "convolutions and matrix products"
    return f"the default of {framework} is TF32 for {what}; --precision changes it"
