"""Devices, hosts, links. Unequal devices and links are the normal case: a cluster is a list of hosts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from paceline.spec.fields import Bandwidth, Bytes, Count, Flops, Name, Noun, Price, Seconds, Share

__all__ = [
    "Cluster",
    "Device",
    "DeviceKind",
    "Emulation",
    "Host",
    "LayerClass",
    "Link",
    "Placed",
    "Precision",
    "ReachShare",
    "place",
]

DeviceKind = Literal["gpu", "cpu", "manycore", "other"]
Precision = Literal["float64", "float32", "tf32", "float16", "bfloat16", "float8"]
LayerClass = Literal["convolution", "linear", "attention", "elementwise"]
"""Kinds of layer that reach different shares of a device's rates."""
ReachShare = Annotated[float, Field(gt=0, le=1)]


class Emulation(Noun):
    """How a rank pretends to be this device: compute becomes timed waits, gradients stay real."""

    forward: Seconds | None = None
    """Seconds of one forward pass of the case; none given means the model's estimate for the device."""
    backward: Seconds | None = None
    """Seconds of one backward pass; none given means twice the forward."""
    batch: Count | None = None
    """Samples that forward and backward are stated for; none given means the batch of the case, whatever it is."""
    profile: Name | None = None
    """Path of a profile whose times, layer by layer, the device takes, scaled to the case's batch."""
    speed: Annotated[float, Field(gt=0)] = 1.0
    """How many times faster than stated the device is."""
    jitter: Share = 0.0
    """Standard deviation of a step's compute time, as a share of it."""
    straggle: Share = 0.0
    """Probability that a step is slowed down."""
    straggle_factor: Annotated[float, Field(ge=1)] = 10.0
    """How many times longer such a step takes."""


class Device(Noun):
    """One accelerator or one processor that computes; an unknown figure is absent, never guessed."""

    name: Name
    kind: DeviceKind = "gpu"
    peak: dict[Precision, Flops] = Field(default_factory=dict)
    """Peak dense compute rate by precision, as the vendor states it."""
    memory: Bytes | None = None
    """Size of its own memory."""
    memory_bandwidth: Bandwidth | None = None
    """Rate of its own memory, as the vendor states it."""
    launch_overhead: Seconds | None = None
    """Time that starting one kernel takes when nothing hides it."""
    reach: dict[LayerClass, ReachShare] = Field(default_factory=dict)
    """Share of peak compute that convolution, linear and attention layers reach, and share of memory bandwidth that
    elementwise layers reach; the catalog's share for the kind of device where none is given."""
    price: Price | None = None
    """Rent of one device."""
    emulation: Emulation | None = None
    """Given if a rank only pretends to be this device."""
    quota: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of its compute it may really use; below 1 the launcher throttles the rank."""


class Link(Noun):
    """One way between two points; the rate is per direction."""

    name: Name
    bandwidth: Bandwidth
    """Rate of one direction."""
    latency: Seconds = 0.0
    """One-way time of an empty message."""
    jitter: Seconds = 0.0
    """Standard deviation of the latency."""
    loss: Share = 0.0
    """Share of packets that are lost."""


class Host(Noun):
    """A machine: its devices, how they reach each other, and how it reaches other hosts."""

    name: Name
    devices: Annotated[tuple[Device, ...], Field(min_length=1)]
    """In the order in which ranks are placed on them."""
    inside: Link
    """Between two devices of this host."""
    link: Link
    """From this host to the others."""
    nics: Count = 1
    """Network ports that its devices share."""
    address: str | None = None
    """Where ssh, mpirun or a scheduler finds it; its name if absent."""
    disk: Bandwidth | None = None
    """Rate at which it reads training data; all its devices share it."""
    cores: Count | None = None
    """Processor cores that its ranks share."""


class Cluster(Noun):
    """Hosts in order; ranks are placed on their devices in this order."""

    name: Name
    hosts: Annotated[tuple[Host, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _unique(self) -> Cluster:
        names = [host.name for host in self.hosts]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two hosts are called {twice!r}")
        return self

    @property
    def num_devices(self) -> int:
        """Devices of all hosts."""
        return sum(len(host.devices) for host in self.hosts)


class Placed(Noun):
    """One rank: where it runs and on what."""

    rank: int
    host: int
    """Index of the host in the cluster."""
    local_rank: int
    device: Device


def place(cluster: Cluster, ranks: int, *, spread: bool = False) -> tuple[Placed, ...]:
    """Ranks on devices: host after host, or with `spread` one device of each host in turn."""
    if ranks > cluster.num_devices:
        raise ValueError(f"{ranks} ranks on {cluster.num_devices} devices of cluster {cluster.name!r}")
    slots = [(host, index) for host, item in enumerate(cluster.hosts) for index in range(len(item.devices))]
    if spread:
        slots.sort(key=lambda slot: (slot[1], slot[0]))
    chosen = slots[:ranks]
    devices = [cluster.hosts[host].devices[index] for host, index in chosen]
    return tuple(
        Placed(rank=rank, host=host, local_rank=index, device=device)
        for rank, ((host, index), device) in enumerate(zip(chosen, devices, strict=True))
    )
