"""Per-layer times: from a profile, or a roofline from the catalog with a wider interval.

Roofline of one pass of one layer: max(flop / (peak * reach), bytes / (memory bandwidth * reach)) + launches * launch
overhead. Williams, Waterman and Patterson, Roofline, 2009. Backward takes twice the flop and twice the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paceline.errors import Unsupported
from paceline.measurements.profile import Profile
from paceline.spec.cluster import Device
from paceline.spec.network import LayerCost, Network, layer_costs

__all__ = ["StepWork", "input_bytes", "on_device", "roofline", "scaled_to_batch", "work_of_profile"]

Floats = NDArray[np.float64]

COMPUTE_REACH = 0.7
"""Share of peak that convolutions and matrix products reach; the published figures lie between 0.4 and 1.3 of it."""
MEMORY_REACH = 0.75
"""Share of memory bandwidth that element-wise layers reach."""
ROOFLINE_SPREAD = 0.4
"""Standard deviation of log(measured / roofline); `paceline validate` prints what the published figures give."""
DEFAULT_LAUNCH = 8e-6
"""Seconds to start a kernel, where the catalog says nothing."""


@dataclass(frozen=True)
class StepWork:
    """One device's step: per gradient tensor in the order in which gradients become ready.

    A layer without parameters lends its time to the next gradient that becomes ready.
    """

    forward: Floats
    """Forward seconds, aligned with the gradients."""
    backward: Floats
    """Backward seconds that must pass, after the gradient before, until this gradient is ready."""
    gradients: Floats
    """Bytes of each gradient."""
    layer: NDArray[np.int64]
    """Number of the layer that each gradient belongs to, in the order of readiness."""
    update: float
    io: float
    h2d: float
    jitter: float
    spread: float
    """Standard deviation of the log of all compute times together."""
    basis: str
    crowd: int = 1
    """Ranks of a host that computed while it was measured."""

    @property
    def num_gradients(self) -> int:
        """How many tensors are exchanged."""
        return len(self.gradients)

    @property
    def compute(self) -> float:
        """Seconds of forward and backward."""
        return float(self.forward.sum() + self.backward.sum())

    @property
    def total_bytes(self) -> float:
        """Bytes of all gradients."""
        return float(self.gradients.sum())


def work_of_profile(profile: Profile) -> StepWork:
    """The work that a profile measured."""
    by_name = {layer.name: layer for layer in profile.layers}
    order = profile.ready or tuple(layer.name for layer in reversed(profile.layers))
    rows = [(by_name[n].forward, by_name[n].backward, by_name[n].gradients) for n in order]
    work = _work(
        rows,
        update=profile.update,
        inputs=(profile.io, profile.h2d),
        noise=(profile.jitter, profile.uncertainty),
        basis=f"profile of {profile.network}, batch {profile.batch}"
        + (f" ({profile.source})" if profile.source else ""),
    )
    return replace(work, crowd=profile.crowd)


def roofline(network: Network, device: Device, batch: int, *, precision: str = "float32") -> StepWork:
    """The work that peak rates suggest; refuses where the catalog does not know the device."""
    peak = device.peak.get(precision)  # type: ignore[call-overload]
    if peak is None or device.memory_bandwidth is None:
        missing = f"peak compute rate in {precision}" if peak is None else "memory bandwidth"
        raise Unsupported(
            f"nothing supports a prediction for {device.name!r}: its {missing} is not known",
            hint="measure one device (`paceline run`), or give a --profile of one step",
        )
    width = 4 if precision in ("float32", "tf32") else 2
    launch = device.launch_overhead if device.launch_overhead is not None else DEFAULT_LAUNCH
    rates = (peak * COMPUTE_REACH, device.memory_bandwidth * MEMORY_REACH, launch)
    rows = [_layer_row(cost, batch, width, rates) for cost in reversed(layer_costs(network))]
    parameters = sum(size for _, _, sizes in rows for size in sizes) / width
    return _work(
        rows,
        update=parameters * 4 * 5 / rates[1] + launch,
        inputs=(0.0, 0.0),
        noise=(0.01, ROOFLINE_SPREAD),
        basis=f"roofline of {device.name} in {precision}: no measurement of this network on it",
    )


def _layer_row(
    cost: LayerCost, batch: int, width: int, rates: tuple[float, float, float]
) -> tuple[float, float, tuple[float, ...]]:
    flops, memory, launch = rates
    flop = 2.0 * cost.macs * batch
    moved = float(cost.input_elements + cost.output_elements + 2 * cost.kept_elements) * batch * width
    moved += cost.parameters * width
    forward = max(flop / flops, moved / memory) + launch
    backward = max(2 * flop / flops, 2 * moved / memory) + 2 * launch
    return forward, backward, tuple(float(tensor.elements * width) for tensor in reversed(cost.tensors))


def _work(
    rows: list[tuple[float, float, tuple[float, ...]]],
    *,
    update: float,
    inputs: tuple[float, float],
    noise: tuple[float, float],
    basis: str,
) -> StepWork:
    """Rows of (forward, backward, gradient bytes) in the order of readiness, spread over gradients."""
    forward, backward, sizes, layer = [], [], [], []
    pending_forward = pending_backward = 0.0
    for number, (fwd, bwd, gradients) in enumerate(rows):
        pending_forward += fwd
        pending_backward += bwd
        for size in gradients:
            forward.append(pending_forward)
            backward.append(pending_backward)
            sizes.append(size)
            layer.append(number)
            pending_forward = pending_backward = 0.0
    if not sizes:
        raise Unsupported("the network has no parameters, so there is nothing to train")
    forward[-1] += pending_forward
    backward[-1] += pending_backward
    return StepWork(
        forward=np.asarray(forward),
        backward=np.asarray(backward),
        gradients=np.asarray(sizes),
        layer=np.asarray(layer, dtype=np.int64),
        update=update,
        io=inputs[0],
        h2d=inputs[1],
        jitter=noise[0],
        spread=noise[1],
        basis=basis,
    )


def scaled_to_batch(work: StepWork, *, measured: int, wanted: int, launch: float = DEFAULT_LAUNCH) -> StepWork:
    """The same step at another batch: start-up stays, the rest grows with the batch, and certainty shrinks."""
    if measured == wanted:
        return work
    factor = wanted / measured
    floor = np.minimum(launch, work.forward), np.minimum(2 * launch, work.backward)
    return replace(
        work,
        forward=floor[0] + (work.forward - floor[0]) * factor,
        backward=floor[1] + (work.backward - floor[1]) * factor,
        io=work.io * factor,
        h2d=work.h2d * factor,
        spread=float(np.hypot(work.spread, 0.08 * abs(np.log2(factor)))),
        basis=f"{work.basis}, scaled from batch {measured} to {wanted}",
    )


def on_device(work: StepWork, *, measured: StepWork, wanted: StepWork) -> StepWork:
    """Measured work moved to another device by the ratio of the two devices' rooflines, gradient by gradient."""
    if measured.num_gradients != work.num_gradients:
        ratio_f = np.full(work.num_gradients, wanted.forward.sum() / measured.forward.sum())
        ratio_b = np.full(work.num_gradients, wanted.backward.sum() / measured.backward.sum())
    else:
        ratio_f, ratio_b = wanted.forward / measured.forward, wanted.backward / measured.backward
    return replace(
        work,
        forward=work.forward * ratio_f,
        backward=work.backward * ratio_b,
        update=work.update * wanted.update / measured.update,
        jitter=wanted.jitter,
        spread=float(np.hypot(work.spread, 0.2)),
        basis=f"{work.basis}, moved by the ratio of rooflines",
    )


def input_bytes(network: Network, batch: int) -> float:
    """Bytes of one batch as the device reads it: float32 pixels or 64-bit tokens."""
    width = 4.0 if network.input.kind == "image" else 8.0
    return float(np.prod(network.input.shape)) * batch * width
