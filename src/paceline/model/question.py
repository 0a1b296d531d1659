"""What is asked of the model, and the ranks with their work that it means."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from paceline import catalog
from paceline.errors import InputError, Unsupported
from paceline.measurements.profile import Profile
from paceline.model.calibration import Calibration
from paceline.model.collective.cost import fabric_of
from paceline.model.compute import StepWork, input_bytes, on_device, roofline, scaled_to_batch, work_of_profile
from paceline.model.iteration.terms import Ranks
from paceline.model.measured.names import device_called
from paceline.model.memory import check_fits
from paceline.spec.cluster import Cluster, Device, Placed, place
from paceline.spec.network import Network
from paceline.spec.strategy import Strategy

__all__ = ["Question", "check_question", "ranks_of", "works_of"]

FILE_BYTES = 110e3
"""Bytes of one stored training image; the mean of ImageNet's JPEG files."""


@dataclass(frozen=True)
class Question:
    """What is asked; either a network of the catalog or a profile says what a device computes."""

    cluster: Cluster
    framework: str
    batch: int
    """Samples per device and step."""
    network: Network | None = None
    profile: Profile | None = None
    strategy: Strategy = field(default_factory=Strategy)
    input: str = "resident"
    """Where batches come from: `resident`, `copied` or `files`."""

    @property
    def label(self) -> str:
        """A short name for people."""
        what = self.network.name if self.network else self.profile.network if self.profile else "nothing"
        return (
            f"{what}, {catalog.framework(self.framework)}, batch {self.batch} per device, cluster {self.cluster.name}"
        )


def check_question(question: Question, counts: tuple[int, ...]) -> None:
    """Refuse what cannot be answered, with what to change."""
    if not counts or counts[0] < 1:
        raise InputError("numbers of devices must be at least 1", hint="for example --devices 1,2,4,8")
    have = question.cluster.num_devices
    if counts[-1] > have:
        raise InputError(
            f"{counts[-1]} devices asked, cluster {question.cluster.name!r} has {have}",
            hint=f"lower --devices to at most {have}, or describe a larger cluster",
        )
    if (question.network is None) == (question.profile is None):
        raise InputError("give either a network or a profile", hint="--network resnet50, or --profile FILE")
    if question.batch < 1:
        raise InputError(f"a batch of {question.batch} is no batch", hint="--batch must be at least 1")


def works_of(question: Question) -> dict[str, StepWork]:
    """Work of each kind of device in the cluster."""
    found: dict[str, StepWork] = {}
    for host in question.cluster.hosts:
        for device in host.devices:
            if _key(device) not in found:
                found[_key(device)] = _work_on(question, device)
    return found


def _key(device: Device) -> str:
    return f"{device.name}|{device.quota}|{device.emulation}"


def _work_on(question: Question, device: Device) -> StepWork:
    if question.network is not None:
        width = 4 if question.strategy.precision == "float32" else 2
        shards = (catalog.resolve(question.framework, question.strategy).shard_stage or 0, question.cluster.num_devices)
        check_fits(question.network, device, question.batch, width=width, shards=shards)
        work = roofline(question.network, device, question.batch, precision=question.strategy.precision)
        return _throttled(work, device)
    assert question.profile is not None
    profile = question.profile
    work = scaled_to_batch(work_of_profile(profile), measured=profile.batch, wanted=question.batch)
    return _throttled(_moved(work, profile, device, question), device)


def _moved(work: StepWork, profile: Profile, device: Device, question: Question) -> StepWork:
    """A profile of another device: by the ratio of rooflines, or the new device's roofline alone, with its jitter."""
    if profile.device is None or device.name in (profile.device, device_called(profile.device)):
        return work
    if profile.network not in catalog.network_names():
        raise Unsupported(
            f"the profile was taken on {profile.device!r}, the cluster has {device.name!r}, "
            "and the catalog cannot say how they compare for this network",
            hint=f"profile one step on {device.name!r}",
        )
    network = catalog.network(profile.network)
    wanted = roofline(network, device, question.batch, precision=question.strategy.precision)
    known = device_called(profile.device)
    before = catalog.device(known) if known else None
    if before is None or before.memory_bandwidth is None or "float32" not in before.peak:
        why = f"the figures of {profile.device} are not known, so its profile cannot be moved"
        return replace(wanted, basis=f"{wanted.basis}; {why}")
    return on_device(work, measured=roofline(network, before, question.batch), wanted=wanted)


def _throttled(work: StepWork, device: Device) -> StepWork:
    if device.quota == 1.0:
        return work
    slow = 1 / device.quota
    return replace(work, forward=work.forward * slow, backward=work.backward * slow, update=work.update * slow)


def ranks_of(question: Question, count: int, calibration: Calibration, works: dict[str, StepWork]) -> Ranks:
    """The ranks of one number of devices, host after host."""
    placed = place(question.cluster, count)
    kinds = [_key(rank.device) for rank in placed]
    used = sorted(set(kinds))
    fabric = fabric_of(question.cluster, placed)
    software = calibration.base_latency
    fabric = replace(
        fabric,
        inside_latency=fabric.inside_latency + software / 5,
        between_latency=fabric.between_latency + software,
    )
    return Ranks(
        works=tuple(works[kind] for kind in used),
        counts=tuple(kinds.count(kind) for kind in used),
        fabric=fabric,
        batch=question.batch,
        memory_per_byte=max((1 / r.device.memory_bandwidth for r in placed if r.device.memory_bandwidth), default=0.0),
        input_s=_input_seconds(question, placed, works),
        accumulate=question.strategy.accumulate,
    )


def _input_seconds(question: Question, placed: tuple[Placed, ...], works: dict[str, StepWork]) -> tuple[float, float]:
    """io and h2d of the slowest host: its devices share the disk."""
    measured = max(work.io for work in works.values()), max(work.h2d for work in works.values())
    if question.input == "resident" or question.network is None:
        return measured if question.input != "resident" else (0.0, 0.0)
    h2d = io = 0.0
    for index in {rank.host for rank in placed}:
        host, local = question.cluster.hosts[index], sum(rank.host == index for rank in placed)
        h2d = max(h2d, input_bytes(question.network, question.batch) / host.inside.bandwidth)
        if question.input == "files":
            if host.disk is None:
                raise Unsupported(
                    f"input from files needs the rate of {host.name!r}'s disk", hint="set `disk` in the cluster file"
                )
            io = max(io, FILE_BYTES * question.batch * local / host.disk)
    return io, h2d
