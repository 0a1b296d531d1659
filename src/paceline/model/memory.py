"""Memory of one device in data-parallel training: weights, gradients, optimiser state, activations."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import InputError
from paceline.spec.cluster import Device
from paceline.spec.network import Network, layer_costs
from paceline.units import BYTES

__all__ = ["MemoryUse", "check_fits", "memory_of"]

RESERVED = 0.8e9
"""Bytes that context, kernels and the allocator keep for themselves on an accelerator."""

IN_PLACE = ("relu", "dropout", "flatten")
"""Layers whose output takes the place of their input, so that nothing more is kept."""


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on one device."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    reserved: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.reserved


def memory_of(network: Network, batch: int, *, width: int = 4, shards: tuple[int, int] = (0, 1)) -> MemoryUse:
    """Memory with momentum SGD at `width` bytes a number; `shards` is the ZeRO stage and the number of ranks.

    In half precision a float32 copy of the weights is kept with the optimiser's state.
    """
    costs = layer_costs(network)
    parameters = float(sum(cost.parameters for cost in costs))
    stage, ranks = shards
    divide = [ranks if stage >= at else 1 for at in (3, 2, 1)]
    master = 4.0 if width < 4 else 0.0
    return MemoryUse(
        weights=parameters * width / divide[0],
        gradients=parameters * width / divide[1],
        optimizer=parameters * (4.0 + master) / divide[2],
        activations=float(sum(cost.activation_bytes(batch, width) for cost in costs if cost.kind not in IN_PLACE)),
        reserved=RESERVED,
    )


def check_fits(
    network: Network, device: Device, batch: int, *, width: int, shards: tuple[int, int]
) -> MemoryUse | None:
    """The memory use, or one clear error if it exceeds the device; None if its memory is not known."""
    if device.memory is None or device.kind == "cpu":
        return None
    use = memory_of(network, batch, width=width, shards=shards)
    if use.total <= device.memory:
        return use
    per_sample = use.activations / batch
    room = device.memory - (use.total - use.activations)
    largest = int(room // per_sample)
    hint = f"the largest batch that fits is about {largest}" if largest >= 1 else "shard the model over devices"
    raise InputError(
        f"a batch of {batch} of {network.name} needs {BYTES.format(use.total)}, "
        f"{device.name} has {BYTES.format(device.memory)}: {BYTES.format(use.total - device.memory)} too much",
        hint=hint,
    )
