"""A device's step at any batch: per-gradient times from layer times, and their sources; input; stragglers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paceline import catalog
from paceline.catalog.devices import device_by_alias, reach_spread
from paceline.cost.host import meets, parallel_share
from paceline.cost.precision import numerics_on
from paceline.cost.roofline import LayerTimes, device_times, measured_times, profiled_times, update_seconds
from paceline.errors import Unsupported
from paceline.measurements.profile import Profile
from paceline.spec.cluster import Cluster, Device, LayerClass, Placed
from paceline.spec.network import Network, layer_costs

__all__ = [
    "DeviceWork",
    "StepWork",
    "WorkAt",
    "counted_on",
    "counted_work",
    "in_chunks",
    "input_seconds",
    "moved_by_rooflines",
    "outlined_work",
    "profiled_device",
    "roofline",
    "roofline_work",
    "straggle_of",
    "work_of_profile",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BATCH_SPREAD = 0.08
"""Relative standard deviation of a profile scaled to another batch, per doubling."""
ASSUMED_JITTER = 0.01
"""Relative standard deviation of the steps of a device, where none was measured."""
JITTER_SPREAD = 1.3
"""Standard deviation of its log, chosen by published figures of several hosts: decision 146."""
MEASURED_REACH: dict[LayerClass, float] = dict.fromkeys(("convolution", "linear", "attention", "elementwise"), 1.0)
"""Measured rates are reached already."""
MOVED_SPREAD = 0.2
"""Relative standard deviation of a profile scaled to another device of its kind."""

FILE_BYTES = 110e3
"""Bytes of one stored training image; the mean of ImageNet's JPEG files."""


@dataclass(frozen=True)
class StepWork:
    """The step of one device, by gradient tensors in the order in which they become ready.

    The time of a layer without parameters counts for the next gradient that becomes ready.
    """

    forward: Floats
    """Forward seconds, aligned with the gradients."""
    backward: Floats
    """Backward seconds that must pass, after the gradient before, until this gradient is ready."""
    gradients: Floats
    """Bytes of each gradient."""
    layer: Ints
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
    threads: int | None = None
    """Compute threads of the rank that was measured; none if not known, or not a processor."""
    parallel: float | None = None
    """Share of the step that runs in parallel on several threads, if it was measured."""
    jitter_spread: float = 0.0
    """Standard deviation of the log of the jitter, if that is only assumed."""
    meetings: int = 0
    """Convolutions whose backward pass makes the threads of a processor meet."""
    before: float = 0.0
    """Seconds of earlier chunks of the same step, whose gradients are only summed."""

    @property
    def num_gradients(self) -> int:
        """How many tensors are exchanged."""
        return len(self.gradients)

    @property
    def start(self) -> float:
        """Seconds until backward of the last chunk begins."""
        return self.before + float(self.forward.sum())

    @property
    def compute(self) -> float:
        """Seconds of forward and backward."""
        return self.start + float(self.backward.sum())

    @property
    def total_bytes(self) -> float:
        """Bytes of all gradients."""
        return float(self.gradients.sum())


WorkAt = Callable[[int], StepWork]
"""A device's step at any number of samples."""


@dataclass(frozen=True)
class DeviceWork:
    """A device's step as a function of its batch."""

    times: LayerTimes
    order: tuple[int, ...]
    """Layers in the order in which their gradients become ready."""
    update: float
    jitter: float
    spread: float
    basis: str
    measured: int | None = None
    """Batch at which it was measured."""
    inputs: tuple[float, float] = (0.0, 0.0)
    """io and h2d seconds of one sample."""
    crowd: int = 1
    threads: int | None = None
    parallel: float | None = None
    jitter_spread: float = 0.0
    convolutions: tuple[tuple[float, float], ...] = ()
    """Bytes of input and output of one sample, and of weights, of each convolution on a processor."""

    def at(self, batch: int) -> StepWork:
        """The step with this many samples; none take no time."""
        order, ends, sizes, layer = self._ready
        seconds = self.times.at(batch)[:, order] * (batch > 0)
        last = int(ends[-1]) + 1
        spread = np.zeros((2, len(sizes)))
        first = np.searchsorted(layer, ends)
        spread[:, first] = np.add.reduceat(seconds[:, :last], np.append(0, ends[:-1] + 1), axis=1)
        spread[:, -1] += seconds[:, last:].sum(axis=1)
        far = 0.0 if self.measured is None or not batch else abs(np.log2(batch / self.measured))
        return StepWork(
            forward=spread[0],
            backward=spread[1],
            gradients=sizes,
            layer=layer,
            update=self.update,
            io=self.inputs[0] * batch,
            h2d=self.inputs[1] * batch,
            jitter=self.jitter,
            spread=float(np.hypot(self.spread, BATCH_SPREAD * far)),
            basis=self.basis + (f", scaled from batch {self.measured} to {batch}" if far else ""),
            crowd=self.crowd,
            threads=self.threads,
            parallel=self.parallel,
            jitter_spread=self.jitter_spread,
            meetings=sum(meets(moved * batch, weights) for moved, weights in self.convolutions),
        )

    @cached_property
    def _ready(self) -> tuple[Ints, Ints, Floats, Ints]:
        """Order of layers, positions of those with gradients, sizes of gradients, the position each belongs to."""
        gradients = [self.times.gradients[index] for index in self.order]
        layer = np.repeat(np.arange(len(gradients)), [len(sizes) for sizes in gradients])
        if not len(layer):
            raise Unsupported("the network has no parameters, so there is nothing to train")
        return np.array(self.order), np.unique(layer), np.concatenate([np.array(s) for s in gradients]), layer


def roofline_work(
    network: Network, device: Device, *, precision: str = "float32", stated_for: int | None = None
) -> DeviceWork:
    """The work that peak rates suggest, or that an emulation states; refuses where the device is not known."""
    emulation = device.emulation
    stated = emulation is not None and emulation.forward is not None
    numerics = numerics_on(device, precision)
    basis = f"roofline of {device.name}, {numerics.meaning}: no measurement of this network on it"
    return DeviceWork(
        times=device_times(network, device, precision=precision, stated_for=stated_for),
        order=tuple(reversed(range(len(network.layers)))),
        update=update_seconds(network.parameters, device, precision=precision),
        jitter=ASSUMED_JITTER if emulation is None else emulation.jitter,
        jitter_spread=JITTER_SPREAD if emulation is None else 0.0,
        spread=0.0 if emulation is not None else reach_spread(device),
        basis=f"times of {device.name} as its emulation states them" if stated else basis,
        convolutions=_convolutions(network) if device.kind == "cpu" else (),
    )


def roofline(network: Network, device: Device, batch: int, *, precision: str = "float32") -> StepWork:
    """The step that peak rates suggest at one batch."""
    return roofline_work(network, device, precision=precision).at(batch)


def work_of_profile(profile: Profile) -> DeviceWork:
    """The work that a profile measured.

    Disturbances of a CPU last from less than a step to minutes, so averaging over more steps does not reduce the
    variance of means (flicker noise; Allan, 1966). Launches vary as much as the steps of one launch: the jitter of
    steps counts once for the profile (`capture`) and once for the predicted run.
    """
    names = [layer.name for layer in profile.layers]
    ready = profile.ready or tuple(reversed(names))
    source, host = f" ({profile.source})" if profile.source else "", profile.host
    gain = host.thread_gain if host else None
    return DeviceWork(
        times=measured_times(profile.rows, batch=profile.batch),
        order=tuple(names.index(name) for name in ready),
        update=profile.update,
        jitter=profile.jitter,
        spread=math.hypot(profile.uncertainty, profile.jitter) if host else profile.uncertainty,
        basis=f"profile of {profile.network}, batch {profile.batch}{source}",
        measured=profile.batch,
        inputs=(profile.io / profile.batch, profile.h2d / profile.batch),
        crowd=profile.crowd,
        threads=host.threads if host else None,
        parallel=parallel_share(gain, host.threads) if host and gain and host.threads > 1 else None,
        convolutions=_profiled_convolutions(profile) if host else (),
    )


def _profiled_convolutions(profile: Profile) -> tuple[tuple[float, float], ...]:
    """Bytes of the convolutions of a profile: as it counted them, or those of the catalog's network."""
    counted = tuple(
        (layer.moved, max(layer.gradients, default=0.0))
        for layer in profile.layers
        if layer.kind in ("convolution", "convolution_3x3") and layer.moved is not None
    )
    known = profile.network in catalog.network_names()
    return counted or (_convolutions(catalog.network(profile.network)) if known else ())


def _convolutions(network: Network) -> tuple[tuple[float, float], ...]:
    """Bytes in float32 of input and output of one sample, and of weights, of each convolution."""
    return tuple(
        (4.0 * (cost.input_elements + cost.output_elements), 4.0 * max(tensor.elements for tensor in cost.tensors))
        for layer, cost in zip(network.layers, layer_costs(network), strict=True)
        if layer.kind == "conv2d"
    )


def counted_work(profile: Profile, device: Device, *, precision: str = "float32") -> DeviceWork | None:
    """The roofline of a profiled network from the multiply-adds and bytes of its layers; none if they are not known.

    Bytes that were counted in half precision are doubled: rooflines take those of float32.
    """
    whole = 2.0 if profile.precision in ("float16", "bfloat16") else 1.0
    counted = [
        (layer.name, layer.kind, layer.macs, whole * layer.moved, tuple(whole * size for size in layer.gradients))
        for layer in profile.layers
        if layer.kind is not None and layer.macs is not None and layer.moved is not None
    ]
    if len(counted) < len(profile.layers) or not any(macs for _, _, macs, _, _ in counted):
        return None
    parameters = sum(sum(sizes) for *_, sizes in counted) / 4
    names = [layer.name for layer in profile.layers]
    meaning = numerics_on(device, precision).meaning
    return DeviceWork(
        times=profiled_times(counted, device, precision=precision, steps=[layer.steps for layer in profile.layers]),
        order=tuple(names.index(name) for name in profile.ready or reversed(names)),
        update=update_seconds(parameters, device, precision=precision),
        jitter=ASSUMED_JITTER,
        jitter_spread=JITTER_SPREAD,
        spread=reach_spread(device),
        basis=f"roofline of {device.name}, {meaning}, from the work of the profile's layers",
    )


def outlined_work(profile: Profile, device: Device, *, precision: str) -> DeviceWork:
    """Layers without measured times: the device's roofline."""
    work = counted_work(profile, device, precision=precision)
    if work is None:
        raise Unsupported(
            f"the profile of {profile.network} has neither times nor the multiply-adds of all its layers",
            hint="capture a few steps, or outline the model: paceline.outline(model, inputs, path=...)",
        )
    return replace(work, basis=f"{work.basis}, which were counted and not run")


def profiled_device(profile: Profile) -> Device | None:
    """The device of a profile with its rates, from the catalog or measured with the profile."""
    known = device_by_alias(profile.device) if profile.device else None
    device, host = catalog.device(known) if known else None, profile.host
    if host is not None and host.peak and host.bandwidth:
        return Device(
            name=profile.device or "processor",
            kind="cpu",
            peak={"float32": host.peak},
            memory_bandwidth=host.bandwidth,
            reach=MEASURED_REACH,
        )
    return device if device and device.memory_bandwidth and "float32" in device.peak else None


def counted_on(profile: Profile, device: Device, *, precision: str) -> DeviceWork | None:
    """The roofline of a profile's network, from the catalog or from the counts of the profile."""
    if profile.network in catalog.network_names():
        return roofline_work(catalog.network(profile.network), device, precision=precision)
    return counted_work(profile, device, precision=precision)


def moved_by_rooflines(work: StepWork, *, measured: StepWork, wanted: StepWork) -> StepWork:
    """Measured work moved to another device by the ratio of the two devices' rooflines, gradient by gradient."""
    ratios = []
    for before, after in ((measured.forward, wanted.forward), (measured.backward, wanted.backward)):
        whole = np.full(work.num_gradients, after.sum() / before.sum())
        alike = measured.num_gradients == work.num_gradients
        ratios.append(np.divide(after, before, out=whole, where=before > 0) if alike else whole)
    return replace(
        work,
        forward=work.forward * ratios[0],
        backward=work.backward * ratios[1],
        update=work.update * wanted.update / measured.update,
        jitter=wanted.jitter,
        jitter_spread=wanted.jitter_spread,
        spread=float(np.hypot(work.spread, MOVED_SPREAD)),
        gradients=work.gradients * (wanted.total_bytes / measured.total_bytes),
        basis=f"{work.basis}, moved by the ratio of rooflines",
        threads=None,
        parallel=None,
        meetings=wanted.meetings,
    )


def in_chunks(work: WorkAt, samples: int, largest: int | None) -> StepWork:
    """The step of a device whose memory holds at most `largest` samples at once: one chunk after the other."""
    if largest is None or samples <= largest:
        return work(samples)
    chunks = -(-samples // largest)
    return replace(work(samples - (chunks - 1) * largest), before=(chunks - 1) * work(largest).compute)


def straggle_of(placed: Sequence[Placed]) -> tuple[float, float]:
    """Probability that some emulated device slows a step down, and by which factor."""
    emulations = [rank.device.emulation for rank in placed if rank.device.emulation is not None]
    missed = math.prod(1 - emulation.straggle for emulation in emulations)
    slow = [emulation.straggle_factor for emulation in emulations if emulation.straggle]
    return 1 - missed, max(slow, default=1.0)


def input_seconds(
    source: str, network: Network | None, cluster: Cluster, *, batch: int, placed: Sequence[Placed],
    works: Sequence[StepWork],
) -> tuple[float, float]:  # fmt: skip
    """io and h2d of the slowest host: its devices share the disk."""
    measured = max(work.io for work in works), max(work.h2d for work in works)
    if source == "resident" or network is None:
        return measured if source != "resident" else (0.0, 0.0)
    h2d = io = 0.0
    for index in {rank.host for rank in placed}:
        host, local = cluster.hosts[index], sum(rank.host == index for rank in placed)
        h2d = max(h2d, _input_bytes(network, batch) / host.inside.bandwidth)
        if source == "files":
            if host.disk is None:
                raise Unsupported(
                    f"input from files needs the rate of {host.name!r}'s disk", hint="set `disk` in the cluster file"
                )
            io = max(io, FILE_BYTES * batch * local / host.disk)
    return io, h2d


def _input_bytes(network: Network, batch: int) -> float:
    """Bytes of one batch as the device reads it: float32 pixels or 64-bit tokens."""
    width = 4.0 if network.input.kind == "image" else 8.0
    return float(np.prod(network.input.shape)) * batch * width
