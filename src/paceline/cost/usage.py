"""A throughput in tokens or images per second, and as a share of the devices' peak rate (MFU).

    MFU = rate * sum over layers of 6 multiply-adds / peak        three passes of two operations, all devices

Only multiply-adds of the network count, not recomputation to save memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from paceline.cost.precision import numerics_on
from paceline.cost.roofline import ideal_seconds
from paceline.spec.cluster import Device, LayerClass
from paceline.spec.network import Network

__all__ = ["input_unit", "peak_share"]


def input_unit(network: Network | None) -> tuple[str, int]:
    """Unit and number of units per sample: 1,024 tokens of a text, or one image."""
    if network is None:
        return "samples", 1
    return ("images", 1) if network.input.kind == "image" else ("tokens", network.input.shape[0])


def peak_share(
    macs: Mapping[LayerClass, float] | None,
    devices: Sequence[Device],
    rate: float,
    precision: str,
    *,
    fewest: bool = False,
) -> float | None:
    """Share of the devices' peak that this many samples per second need; None where work or a peak is not known.

    `macs` are multiply-adds of the forward pass of one sample, by kind of layer; `fewest` as in `ideal_seconds`.
    """
    if not macs or any(device.emulation is not None for device in devices):
        return None
    alike = Counter(map(id, devices))
    kinds = {id(device): device for device in devices}
    ideal = {
        key: ideal_seconds(macs, device, numerics_on(device, precision), fewest=fewest) for key, device in kinds.items()
    }
    if not ideal or not all(ideal.values()):
        return None
    return rate / sum(alike[key] / seconds for key, seconds in ideal.items() if seconds)
