"""Memory of one device: weights, gradients, optimiser state, activations.

State per parameter at w bytes a number: w of weight, w of gradient, one number of at least 4 bytes for each moment of
the optimiser, and a float32 copy of the weight where w < 4. ZeRO stage 1 divides the optimiser's part by the ranks,
stage 2 also the gradients, stage 3 also the weights. Rajbhandari et al., ZeRO, 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.cost.precision import FLOAT32, Numerics
from paceline.errors import InputError, Unsupported
from paceline.spec.cluster import Device
from paceline.spec.network import Network, layer_costs
from paceline.units import BYTES

__all__ = [
    "MemoryUse",
    "StateBytes",
    "check_fits",
    "check_state_fits",
    "default_batch",
    "largest_batch",
    "memory_limit",
    "memory_of",
    "state_bytes",
]

RESERVED = 0.8e9
"""Bytes that context, kernels and the allocator keep for themselves on an accelerator."""
SHARD = "shard the model over devices (--framework pytorch/fsdp2), or take a larger device or half precision"
IN_PLACE = ("relu", "dropout", "flatten")
"""Layers whose output takes the place of their input, so that nothing more is kept."""

USUAL_IMAGES, USUAL_TOKENS = 64, 8192
"""Default work of a device per step."""

Shards = tuple[int, int]
"""ZeRO stage, and the ranks over which it divides."""


@dataclass(frozen=True)
class StateBytes:
    """Bytes of training state per parameter on one device."""

    weights: float
    gradients: float
    optimizer: float


def state_bytes(width: int, *, moments: int = 1, shards: Shards = (0, 1)) -> StateBytes:
    """State per parameter with SGD and momentum (one moment) or Adam (two)."""
    stage, ranks = shards
    weights, gradients, optimizer = (ranks if stage >= at else 1 for at in (3, 2, 1))
    master = 4 if width < 4 else 0
    return StateBytes(width / weights, width / gradients, (moments * max(4, width) + master) / optimizer)


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


def memory_of(
    network: Network, batch: int, *, numerics: Numerics = FLOAT32, shards: Shards = (0, 1), moments: int = 1
) -> MemoryUse:
    """Memory with momentum SGD, or with the two moments of Adam."""
    costs = layer_costs(network)
    parameters = sum(cost.parameters for cost in costs)
    state = state_bytes(numerics.weight, moments=moments, shards=shards)
    return MemoryUse(
        weights=parameters * state.weights,
        gradients=parameters * state.gradients,
        optimizer=parameters * state.optimizer,
        activations=float(
            sum(cost.activation_bytes(batch, numerics.activation) for cost in costs if cost.kind not in IN_PLACE)
        ),
        reserved=RESERVED,
    )


def memory_limit(device: Device) -> float | None:
    """Bytes that training may take; None where they are not known, or where the host's memory is paged."""
    return None if device.kind == "cpu" else device.memory


def check_fits(
    network: Network, device: Device, batch: int, *, numerics: Numerics = FLOAT32, shards: Shards = (0, 1)
) -> None:
    """One clear error if a batch exceeds the device's memory."""
    limit, use = memory_limit(device), memory_of(network, batch, numerics=numerics, shards=shards)
    if limit is None or use.total <= limit:
        return
    largest = _largest(use, batch, limit)
    whose = f" on each of {shards[1]} devices" if shards[0] and shards[1] > 1 else ""
    raise InputError(
        f"a batch of {batch} of {network.name} needs {BYTES.format(use.total)}{whose} with momentum SGD, "
        f"{device.name} has {BYTES.format(limit)}: {BYTES.format(use.total - limit)} too much",
        hint=f"the largest batch that fits is about {largest}" if largest >= 1 else SHARD,
    )


def check_state_fits(
    name: str, parameters: float, device: Device, *, numerics: Numerics = FLOAT32, shards: Shards = (0, 1)
) -> None:
    """One clear error if weights, gradients and momentum alone exceed the device's memory."""
    limit, state = memory_limit(device), state_bytes(numerics.weight, shards=shards)
    need = parameters * (state.weights + state.gradients + state.optimizer) + RESERVED
    if limit is not None and need > limit:
        raise InputError(
            f"weights, gradients and momentum of {name} need {BYTES.format(need)} on each device, "
            f"{device.name} has {BYTES.format(limit)}, activations not counted",
            hint=SHARD,
        )


def largest_batch(
    network: Network, device: Device, *, numerics: Numerics = FLOAT32, shards: Shards = (0, 1)
) -> int | None:
    """The most samples that fit at once; None where nothing limits them."""
    limit = memory_limit(device)
    if limit is None:
        return None
    use = memory_of(network, 1, numerics=numerics, shards=shards)
    largest = _largest(use, 1, limit)
    if largest < 1:
        raise Unsupported(
            f"{network.name} does not fit into the memory of {device.name!r}, not even one sample: it needs "
            f"{BYTES.format(use.total)} with momentum SGD, there are {BYTES.format(limit)}",
            hint=f"{SHARD}, or a smaller network; leave the device out of an unequal cluster",
        )
    return largest


def default_batch(network: Network, largest: int | None) -> int:
    """Default samples per device: 64 images or 8,192 tokens, halved until they fit into memory in one pass."""
    samples = USUAL_IMAGES if network.input.kind == "image" else max(1, USUAL_TOKENS // network.input.length)
    while largest is not None and samples > max(1, largest):
        samples //= 2
    return samples


def _largest(use: MemoryUse, batch: int, limit: float) -> int:
    return int((limit - (use.total - use.activations)) // max(use.activations / batch, 1.0))
