"""Devices, hosts, links and clusters; devices and links of a cluster may differ."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from paceline.spec.fields import Bandwidth, Bytes, Count, Flops, Name, Price, Seconds, Share, SpecModel, Watts

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
LayerClass = Literal[
    "convolution", "convolution_3x3", "linear", "attention",
    "tensor_convolution", "tensor_linear", "tensor_attention", "elementwise",
]  # fmt: skip
"""Kinds of layer that reach different shares of a device's rates; `tensor_` where matrix units multiply, `_3x3` for
dense 3 x 3 convolutions of stride 1."""
ReachShare = Annotated[float, Field(gt=0, le=1)]


class Emulation(SpecModel):
    """How a rank emulates this device: compute is a timed wait, gradients are real."""

    forward: Seconds | None = None
    """Time of one forward pass of the case; by default the model's estimate for the device."""
    backward: Seconds | None = None
    """Time of one backward pass; by default twice the forward pass."""
    batch: Count | None = None
    """Number of samples of the stated forward and backward times; by default the batch of the case."""
    profile: Name | None = None
    """Path of a profile with the times of each layer, which are scaled to the batch of the case."""
    speed: Annotated[float, Field(gt=0)] = 1.0
    """Factor by which the device is faster than the stated times."""
    jitter: Share = 0.0
    """Standard deviation of the compute time of a step, relative to its mean."""
    straggle: Share = 0.0
    """Probability that a step is slowed down."""
    straggle_factor: Annotated[float, Field(ge=1)] = 10.0
    """Factor by which such a step takes longer."""


class Device(SpecModel):
    """One accelerator or processor; unknown figures are absent, never guessed."""

    name: Name
    kind: DeviceKind = "gpu"
    peak: dict[Precision, Flops] = Field(default_factory=dict)
    """Peak dense compute rate by precision, as the vendor states it."""
    memory: Bytes | None = None
    """Memory size."""
    memory_bandwidth: Bandwidth | None = None
    """Memory bandwidth, as the vendor states it."""
    launch_overhead: Seconds | None = None
    """Time to launch one kernel when the launch is not hidden by other work."""
    reach: dict[LayerClass, ReachShare] = Field(default_factory=dict)
    """Share of peak compute that convolution, linear and attention layers reach (`tensor_...` in TF32 and half
    precision), and share of memory bandwidth that elementwise layers reach; by default the catalog's share for the kind
    of device."""
    price: Price | None = None
    """Price of one device."""
    power: Watts | None = None
    """Power of one device under load, as the vendor states it."""
    emulation: Emulation | None = None
    """Present if ranks emulate this device."""
    quota: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the device that the rank may use; below 1 the launcher throttles the rank."""


class Link(SpecModel):
    """A connection between two devices or hosts."""

    name: Name
    bandwidth: Bandwidth
    """Rate per direction."""
    latency: Seconds = 0.0
    """One-way latency of an empty message."""
    jitter: Seconds = 0.0
    """Standard deviation of the latency."""
    loss: Share = 0.0
    """Packet loss rate."""


class Host(SpecModel):
    """A machine: its devices, the link between them, and the link to other hosts."""

    name: Name
    devices: Annotated[tuple[Device, ...], Field(min_length=1)]
    """Devices, in the order in which ranks are placed on them."""
    inside: Link
    """Link between two devices of this host."""
    link: Link
    """Link from this host to the other hosts."""
    nics: Count = 1
    """Number of network ports, shared by the devices."""
    address: str | None = None
    """Host name or address for ssh, mpirun or a scheduler; by default `name`."""
    disk: Bandwidth | None = None
    """Rate at which the host reads training data, shared by its devices."""
    cores: Count | None = None
    """Number of processor cores, shared by the ranks."""


class Cluster(SpecModel):
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
        """Number of devices of all hosts."""
        return sum(len(host.devices) for host in self.hosts)

    def with_cores(self, cores: int, *, device: str | None = None) -> Cluster:
        """The cluster with this number of cores for each host that states none, and that has a device of this name."""
        hosts = tuple(
            host
            if host.cores or (device is not None and device not in {one.name for one in host.devices})
            else host.model_copy(update={"cores": cores})
            for host in self.hosts
        )
        return self.model_copy(update={"hosts": hosts})

    def with_a_rank_per_core(self) -> Cluster:
        """The cluster with no more devices on a host than it has cores."""
        hosts = tuple(host.model_copy(update={"devices": host.devices[: host.cores]}) for host in self.hosts)
        return self.model_copy(update={"hosts": hosts})


class Placed(SpecModel):
    """The host and device of one rank."""

    rank: int
    host: int
    """Index of the host in the cluster."""
    local_rank: int
    device: Device


def place(cluster: Cluster, ranks: int, *, spread: bool = False) -> tuple[Placed, ...]:
    """Assign ranks to devices: host after host, or with `spread` round robin over the hosts."""
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
