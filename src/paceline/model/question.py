"""A validated question to the model, and its ranks with their work."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline import catalog
from paceline.catalog.clusters import more_hosts
from paceline.catalog.devices import device_by_alias
from paceline.cost.collective import fabric_of
from paceline.cost.host import fair_threads, shared_words
from paceline.cost.memory import check_fits, check_state_fits, default_batch, largest_batch, memory_limit, memory_of
from paceline.cost.precision import numerics_on, precision_line
from paceline.errors import InputError, Unsupported
from paceline.measurements.profile import Profile, read_profile
from paceline.measurements.run import Run
from paceline.model.calibration import Calibration
from paceline.model.compute import (
    DeviceWork,
    StepWork,
    WorkAt,
    counted_on,
    input_seconds,
    moved_by_rooflines,
    outlined_work,
    profiled_device,
    roofline_work,
    straggle_of,
    work_of_profile,
)
from paceline.model.prediction import doublings
from paceline.model.step import Ranks, shared_work
from paceline.spec.cluster import Cluster, Device, Emulation, Placed, place
from paceline.spec.network import Network
from paceline.spec.strategy import Strategy

__all__ = [
    "Question", "check_question", "check_workload", "cores_words", "device_key",
    "largest_batches", "memory_bytes", "memory_use", "precision_of", "question_of_run",
    "ranks_of", "ranks_with", "shared_works", "with_default_batch", "works_of",
]  # fmt: skip


@dataclass(frozen=True)
class Question:
    """A question; either a network of the catalog or a profile defines the work of a device."""

    cluster: Cluster
    framework: str
    batch: int
    """Samples per device and step."""
    network: Network | None = None
    profile: Profile | None = None
    strategy: Strategy = field(default_factory=Strategy)
    input: str = "resident"
    """Source of batches: `resident`, `copied` or `files`."""
    threads: int | None = None
    """Compute threads of each rank on a processor; by default an even share of its host's cores, and no more than
    the profile had."""
    assumed: bool = False
    """Whether the batch is the assumed default."""
    global_batch: int | None = None
    """Samples per step of all devices, if these are fixed; `batch` is then that of the devices that are looked at."""

    @property
    def subject(self) -> str:
        """Name of the network."""
        return self.network.name if self.network else self.profile.network if self.profile else "nothing"

    @property
    def label(self) -> str:
        """A short name for people."""
        each = f"batch {self.batch}{' (assumed)' * self.assumed} per device"
        batch = each if self.global_batch is None else f"global batch {self.global_batch}"
        return f"{self.subject}, {catalog.framework(self.framework)}, {batch}, cluster {self.cluster.name}"


def question_of_run(run: Run, profile: Profile, *, threads: int | None) -> Question:
    """The question that a stored run answers: its cluster with the cores of its machine."""
    cluster = Cluster.model_validate_json(json.dumps(run.case["cluster"]))
    strategy = Strategy.model_validate_json(json.dumps(run.case["strategy"]))
    emulates = run.launcher == "virtual"  # all hosts are on this machine
    cores = max(1, run.machine.cores // len(cluster.hosts)) if emulates else run.machine.cores
    return Question(
        cluster.with_cores(cores), run.framework, run.batch, profile=profile, strategy=strategy, input=run.input,
        threads=threads,
    )  # fmt: skip


def check_question(question: Question, counts: tuple[int, ...]) -> None:
    """Refuse what cannot be answered, with what to change."""
    if not counts or counts[0] < 1:
        raise InputError("numbers of devices must be at least 1", hint="for example 1,2,4,8")
    have = question.cluster.num_devices
    if counts[-1] > have:
        raise InputError(
            f"{counts[-1]} devices asked, cluster {question.cluster.name!r} has {have}",
            hint=f"ask for at most {have}, or for a larger cluster{more_hosts(question.cluster, counts[-1])}",
        )
    if question.batch < 1:
        raise InputError(f"a batch of {question.batch} is no batch", hint="a batch is at least 1 sample")
    check_workload(question)
    _check_memory(question, counts)


def _check_memory(question: Question, counts: tuple[int, ...]) -> None:
    """The fewest devices must hold what they train: shards are the larger, the fewer devices there are."""
    try:
        _check_fits_on(question, counts[0])
    except InputError as error:
        more = next((count for count in doublings(1, question.cluster.num_devices) if _fits_on(question, count)), None)
        if more is None or more <= counts[0]:
            raise
        raise InputError(error.message, hint=f"its shards fit from {more} devices on: ask for those") from None


def _fits_on(question: Question, ranks: int) -> bool:
    try:
        _check_fits_on(question, ranks)
    except InputError:
        return False
    return True


def _check_fits_on(question: Question, ranks: int) -> None:
    for device in _devices(question).values():
        if question.network is not None:
            check_fits(question.network, device, question.batch, **_memory_of(question, device, ranks))
        elif question.profile is not None:
            _check_state_fits(question, question.profile, device, ranks=ranks)


def _check_state_fits(question: Question, profile: Profile, device: Device, *, ranks: int) -> None:
    """Weights, gradients and optimiser must fit on a device that did not train the model already."""
    if profile.device is not None and device_by_alias(profile.device) == device.name:
        return
    parameters = sum(sum(layer.gradients) for layer in profile.layers) / 4
    check_state_fits(profile.network, parameters, device, **_memory_of(question, device, ranks))


def check_workload(question: Question) -> None:
    """Either a network or a profile must define the work of a device."""
    if (question.network is None) == (question.profile is None):
        raise InputError("give either a network or a profile", hint="a network of the catalog, or a profile's file")


def _memory_of(question: Question, device: Device, ranks: int | None = None) -> dict[str, Any]:
    """Bytes of numbers on a device, and how ZeRO divides the state over the ranks, by default over all devices."""
    policy = catalog.resolve(question.framework, question.strategy)
    shards = (policy.shard_stage or 0, ranks or question.cluster.num_devices)
    return {"numerics": numerics_on(device, policy.precision), "shards": shards}


def precision_of(question: Question) -> str:
    """One line on the precision of the question, with the reason."""
    asked = question.strategy.precision
    devices, profile = list(_devices(question).values()), question.profile
    default = catalog.policy(question.framework).precision
    measured = profile is not None and not profile.is_outline and asked in (None, profile.precision)
    if profile is not None and measured and all(_is_profiled(profile, device) for device in devices):
        return f"{asked}, that of the profile" if asked else "that of the profile"
    return precision_line(asked, default, framework=catalog.framework(question.framework), devices=devices)


def device_key(device: Device) -> str:
    """Key of a device: equal for devices with equal compute."""
    return device.model_dump_json(exclude={"price", "power"})


def _devices(question: Question) -> dict[str, Device]:
    """One device of each kind."""
    return {device_key(device): device for host in question.cluster.hosts for device in host.devices}


def works_of(question: Question, *, stated_for: int | None = None) -> dict[str, WorkAt]:
    """Work of each kind of device at any batch; `stated_for` is the batch of emulated times that name none."""
    return {key: _work_on(question, device, stated_for) for key, device in _devices(question).items()}


def largest_batches(question: Question) -> dict[str, int | None]:
    """The most samples that each kind of device holds at once; None where nothing limits them or is known."""
    network = question.network
    if network is None and question.profile is not None and question.profile.network in catalog.network_names():
        network = catalog.network(question.profile.network)
    return {
        key: None if network is None else largest_batch(network, device, **_memory_of(question, device))
        for key, device in _devices(question).items()
    }


def with_default_batch(question: Question) -> Question:
    """The question with the batch that is usual for its network, and that every device holds."""
    assert question.network is not None
    fitting = [largest for largest in largest_batches(question).values() if largest is not None]
    return replace(question, batch=default_batch(question.network, min(fitting, default=None)), assumed=True)


def memory_bytes(question: Question, device: Device, samples: int) -> float | None:
    """Bytes that a pass of these samples takes on a device; None where the layers are not known."""
    known = question.network
    return None if known is None else memory_of(known, samples, **_memory_of(question, device)).total


def memory_use(question: Question, ranks: int) -> list[dict[str, Any]]:
    """Bytes that a step takes on each kind of accelerator, and those that it has; empty where they are not known."""
    if question.network is None:
        return []
    uses = []
    for device in _devices(question).values():
        limit, given = memory_limit(device), _memory_of(question, device, ranks)
        if limit is not None:
            use = memory_of(question.network, question.batch, **given)
            adam = memory_of(question.network, question.batch, **given, moments=2)
            uses.append(
                {
                    "device": device.name,
                    "of": limit,
                    **vars(use),
                    "total": use.total,
                    "adam": adam.total,
                    "ranks": ranks if given["shards"][0] else None,
                }
            )
    return uses


def _work_on(question: Question, device: Device, stated_for: int | None) -> WorkAt:
    precision, emulation = catalog.resolve(question.framework, question.strategy).precision, device.emulation
    if emulation is not None and emulation.profile is not None:
        work = work_of_profile(read_profile(Path(emulation.profile)))
        return replace(work, times=work.times.slowed(1 / emulation.speed), jitter=emulation.jitter).at
    if question.network is not None:
        return roofline_work(question.network, device, precision=precision, stated_for=stated_for).at
    assert question.profile is not None
    if question.profile.is_outline:
        return outlined_work(question.profile, device, precision=precision).at
    work = work_of_profile(question.profile)
    if emulation is not None and emulation.forward is not None:
        return _stated(work, emulation, emulation.batch or stated_for or question.batch).at
    return _moved(work, question.profile, device, question)


def _stated(work: DeviceWork, emulation: Emulation, batch: int) -> DeviceWork:
    """A profile's shares of a step, in the time that an emulation states for a batch."""
    assert emulation.forward is not None
    backward = 2 * emulation.forward if emulation.backward is None else emulation.backward
    seconds = work.times.at(work.measured or batch)
    stated = np.array([[emulation.forward], [backward]]) / emulation.speed
    times = replace(
        work.times,
        compute=seconds / seconds.sum(axis=1, keepdims=True) * stated / batch,
        launch=np.zeros_like(seconds),
    )
    return replace(work, times=times, jitter=emulation.jitter, basis=f"{work.basis}, in times that emulations state")


def _is_profiled(profile: Profile, device: Device) -> bool:
    """Whether a device is of the kind that was profiled."""
    return profile.device is None or device.name in (profile.device, device_by_alias(profile.device))


def _moved(work: DeviceWork, profile: Profile, device: Device, question: Question) -> WorkAt:
    """A profile of another device: by the ratio of rooflines, or the new device's roofline alone, with its jitter."""
    default, precision = (catalog.resolve(question.framework, way).precision for way in (Strategy(), question.strategy))
    same = _is_profiled(profile, device)
    profiled = profile.precision or default
    if same and numerics_on(device, precision) == numerics_on(device, profiled):
        slow = 1 / device.quota
        return replace(work, times=work.times.slowed(slow), update=work.update * slow).at
    before = device if same and device.peak else profiled_device(profile)
    wanted = counted_on(profile, device, precision=precision)
    other = device.kind != ("cpu" if profile.host else device.kind if before is None else before.kind)
    measured = counted_on(profile, before, precision=profiled) if before else None
    if wanted is None:
        raise Unsupported(
            f"the profile was taken on {profile.device or device.name!r}, asked is {device.name!r} in {precision}, "
            "and the catalog cannot say how they compare for this network: the profile does not count multiply-adds",
            hint="capture it again with this version, or "
            f"profile one step on {device.name!r}" + (f" in {precision}" if same else ""),
        )
    if other:
        why = "a processor and a GPU reach unrelated shares of their rates: the profile gives layers, not their times"
        return replace(wanted, basis=f"{wanted.basis}; {why}").at
    if before is None or measured is None:
        why = f"the figures of {profile.device} are not known, so its profile cannot be moved"
        return replace(wanted, basis=f"{wanted.basis}; {why}").at

    def moved(batch: int) -> StepWork:
        return moved_by_rooflines(work.at(batch), measured=measured.at(batch), wanted=wanted.at(batch))

    return moved


def ranks_of(question: Question, count: int, calibration: Calibration, works: dict[str, WorkAt]) -> Ranks:
    """The ranks of one number of devices, host after host, each with the question's batch."""
    placed = place(question.cluster, count)
    kinds = [device_key(rank.device) for rank in placed]
    steps = {kind: works[kind](question.batch) for kind in dict.fromkeys(kinds)}
    return ranks_with(question, placed, [steps[kind] for kind in kinds], calibration=calibration)


def ranks_with(
    question: Question, placed: Sequence[Placed], works: Sequence[StepWork], *, calibration: Calibration,
    present: Sequence[Placed] = (),
) -> Ranks:  # fmt: skip
    """Ranks on devices, each with its own work; equal works are given as one object.

    `present` are all ranks that compute on these hosts, if there are others.
    """
    use = _host_use(question, present or placed)
    works, spread = shared_works(question, placed, works, calibration=calibration, present=present)
    distinct = {id(work): work for work in works}
    counts = Counter(map(id, works))
    policy = catalog.resolve(question.framework, question.strategy)
    fabric = fabric_of(question.cluster, placed, nccl=policy.nccl_on_gpus)
    if fabric.nccl is None:  # NCCL's own latencies contain its software
        software = calibration.base_latency
        fabric = replace(
            fabric,
            inside_latency=fabric.inside_latency + software / 5,
            between_latency=fabric.between_latency + software,
        )
    rates = {rank.device.memory_bandwidth for rank in placed}
    return Ranks(
        works=tuple(distinct.values()),
        counts=tuple(counts[key] for key in distinct),
        fabric=fabric,
        batch=question.batch,
        memory_per_byte=max((1 / rate for rate in rates if rate), default=0.0),
        input_s=input_seconds(
            question.input, question.network, question.cluster, batch=question.batch, placed=placed, works=works
        ),
        accumulate=question.strategy.accumulate,
        straggle=straggle_of(placed),
        cores=use[2] if use and fabric.hosts == 1 else None,
        threads=use[1] if use else 1,
        shared_spread=spread,
    )


def _cores(question: Question, rank: Placed) -> int | None:
    """Cores that a rank's compute shares with the other ranks of its host; none on GPUs, emulated or throttled."""
    device = rank.device
    computes = device.kind == "cpu" and device.emulation is None and device.quota == 1
    return question.cluster.hosts[rank.host].cores if computes else None


def _host_use(question: Question, placed: Sequence[Placed]) -> tuple[int, int, int] | None:
    """Ranks, threads of each and cores of the fullest host whose ranks compute on its cores; none without one."""
    local = Counter(rank.host for rank in placed if _cores(question, rank))
    if not local:
        return None
    most = {host: question.cluster.hosts[host].cores or 1 for host in local}
    host = max(local, key=lambda one: local[one] / most[one])
    fair, known = fair_threads(most[host], local[host]), question.profile.host if question.profile else None
    return local[host], question.threads or (min(fair, known.threads) if known else fair), most[host]


def cores_words(question: Question, count: int) -> str | None:
    """How the ranks of this many devices use the cores of the fullest host: `4 ranks share 2 cores, 1 thread each`."""
    use = _host_use(question, place(question.cluster, count))
    return shared_words(*use) if use else None


def shared_works(
    question: Question, placed: Sequence[Placed], works: Sequence[StepWork], *, calibration: Calibration,
    present: Sequence[Placed] = (),
) -> tuple[Sequence[StepWork], float]:  # fmt: skip
    """The work of each rank with the other ranks of its host running, and the standard deviation of the logarithm of
    the change."""
    use = _host_use(question, present or placed)
    if use is None:
        return works, 0.0
    threads, local = use[1], Counter(rank.host for rank in present or placed if _cores(question, rank))
    done: dict[tuple[int, int, int], tuple[StepWork, float]] = {}
    keys = []
    for rank, work in zip(placed, works, strict=True):
        cores = _cores(question, rank) or 0
        keys.append((id(work), local[rank.host], cores))
        if keys[-1] not in done:
            done[keys[-1]] = (
                shared_work(work, local[rank.host], threads, cores=cores, probes=calibration.sharing)
                if cores
                else (work, 0.0)
            )
    return [done[key][0] for key in keys], max(spread for _, spread in done.values())
