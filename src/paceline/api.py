"""The public Python interface: functions of `paceline`, each with a typed result that has `.to_pandas()`.

The commands of the same names call these functions. A function imports its dependencies when it is called, so that
`import paceline` is fast.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline.errors import InputError, missing_extra

if TYPE_CHECKING:
    from paceline.measurements.profile import Profile
    from paceline.model.calibration import Calibration
    from paceline.model.question import Question
    from paceline.report.frames import FindingTable, PlanTable, PredictionTable, RunTable, SpanTable
    from paceline.runtime.capture import Capture
    from paceline.spec.cluster import Cluster
    from paceline.spec.network import Network
    from paceline.spec.strategy import Strategy

__all__ = [
    "capture",
    "explain",
    "extrapolate",
    "load_runs",
    "load_trace",
    "outline",
    "plan",
    "predict",
    "profile_of_run",
    "question_about",
]

File = Path | str


def predict(
    network: Network | File | None = None,
    *,
    cluster: Cluster | File,
    batch: int | None = None,
    devices: int | Iterable[int] | None = None,
    framework: str | Sequence[str] = "pytorch",
    profile: Profile | File | None = None,
    calibration: Calibration | File | None = None,
    strategy: Strategy | None = None,
    precision: str | None = None,
    input: Literal["resident", "copied", "files"] = "resident",  # noqa: A002
    changes: Mapping[str, str] | None = None,
    knee: float = 0.5,
    threads: int | None = None,
    samples: int | None = None,
    tokens: int | None = None,
    epochs: float = 1.0,
    price: str | None = None,
    global_batch: int | None = None,
) -> PredictionTable:
    """Predict step time and throughput, with intervals, on each number of devices.

    Either `network` (a catalog name, a .toml file or a `Network`) or `profile` defines the work of a device. `batch` is
    the number of samples per device and step. The default is the batch of the profile, or for a network 64 images or
    8,192 tokens (fewer if memory is too small); label and basis state an assumed batch. `global_batch`, in its place,
    is that of all devices. Several frameworks give one curve each. A catalog cluster of one host is repeated if
    `devices` exceeds its size. Without `devices` the prediction covers 1, 2, 4 and 8 devices, up to the size of the
    cluster. `threads` is the number of threads of each rank on a CPU; by default ranks divide the cores of their host
    evenly. `precision` is float32, tf32, float16, bfloat16 or amp; the default is that of the framework on the device.
    `changes` has the format of `paceline whatif --set`, such as `{"link.bandwidth": "100Gb/s"}`. With `samples` (or
    `tokens`) per epoch and `epochs` the result includes time, cost and energy of a run; `price` is the price of one
    device per hour, such as "2.50 EUR/h".

    >>> import paceline
    >>> answer = paceline.predict(network="resnet50", cluster="dgx-1", batch=64, devices=[1, 8])
    >>> print(answer)  # doctest: +ELLIPSIS, +NORMALIZE_WHITESPACE
    resnet50, pytorch/ddp, batch 64 per device, cluster dgx-1
    devices  step  samples/s  90 %  efficiency  dominant
          1  ...
          8  ...
    """
    from paceline.catalog.clusters import default_counts
    from paceline.model.changes import changed
    from paceline.model.everyday import everyday_curve, job_of
    from paceline.model.scaling import predict_curve, with_global_batch
    from paceline.report.frames import PredictionTable

    names = [framework] if isinstance(framework, str) else list(framework)
    if not names:
        raise InputError("no framework given", hint="for example pytorch, or pytorch and mxnet")
    counts, known = _counts(default_counts(cluster) if devices is None else devices), _calibration(calibration)
    given: dict[str, Any] = {"input": input, "strategy": strategy, "precision": precision, "threads": threads}
    given["devices"] = max(counts, default=1)
    asked = [question_about(network, profile, cluster, batch, framework=name, **given) for name in names]
    if asked[0].assumed:
        asked = [replace(one, batch=min(each.batch for each in asked)) for one in asked]
    changes, said = dict(changes or {}), batch if batch is not None else (changes or {}).get("batch")
    asked = [with_global_batch(changed(question, changes), global_batch, said) for question in asked]
    job = job_of(samples, epochs, price, tokens)
    curves = [predict_curve(one, counts, calibration=known, knee_gain=knee) for one in asked]
    return PredictionTable(tuple(everyday_curve(*pair, job) for pair in zip(curves, asked, strict=True)))


def question_about(
    network: Network | File | None,
    profile: Profile | File | None,
    cluster: Cluster | File,
    batch: int | None,
    *,
    framework: str,
    input: str = "resident",  # noqa: A002
    strategy: Strategy | None = None,
    threads: int | None = None,
    precision: str | None = None,
    devices: int = 1,
) -> Question:
    """The validated question of `predict` and `plan`: names are resolved, files are read, a default batch is assumed.

    A catalog cluster of one host is repeated until it has this many `devices`.
    """
    from paceline import catalog
    from paceline.catalog.clusters import wide_enough
    from paceline.measurements.profile import read_profile
    from paceline.model.question import Question, with_default_batch
    from paceline.spec.strategy import Strategy

    if (network is None) == (profile is None):
        raise InputError("expected one of network and profile", hint="network='resnet50', or profile='my.profile'")
    given = read_profile(Path(profile)) if isinstance(profile, File) else profile
    samples, strategy = batch if batch is not None else given.batch if given else None, strategy or Strategy()
    if precision is None and strategy.precision is None and given is not None and given.precision != "float32":
        precision = given.precision  # of float32 a framework makes what it does by default on a device
    where = _cluster(wide_enough(str(cluster), devices) if isinstance(cluster, File) else cluster)
    question = Question(
        cluster=_with_rates(where) if given is None or given.is_outline else where,
        framework=catalog.framework(framework),
        batch=1 if samples is None else samples,
        network=catalog.network(str(network)) if isinstance(network, File) else network,
        profile=given,
        strategy=strategy if precision is None else _in_precision(strategy, precision),
        input=input,
        threads=threads,
    )
    return question if samples is not None else with_default_batch(question)


def profile_of_run(name: str | None, store: File | None = None) -> Profile:
    """The profile of a stored run, by the name of its study or campaign: of the case with the fewest ranks."""
    from paceline.measurements.results import find_campaign, load_launches
    from paceline.measurements.store import Store, default_store
    from paceline.model.profiles import profile_of

    place = Store(Path(store) if store is not None else default_store())
    campaign = find_campaign(place, name)
    good = [launches for launches in load_launches(place, campaign) if launches.counted]
    if not good:
        raise InputError(f"no launch of {campaign} succeeded", hint="`paceline show --list` lists stored campaigns")
    fewest = min(good, key=lambda launches: launches.first.ranks)
    facts = fewest.first.facts if fewest.first.ranks > 1 else {}
    if facts.get("sharded") or facts.get("staged"):
        had, way = ("were stages of a pipeline", "") if facts.get("staged") else \
            ("had shards of the layers", " with --framework pytorch/fsdp2")  # fmt: skip
        raise InputError(f"{campaign}: its ranks {had}, and waited for each other within a step",
                         hint=f"watch the same training on one rank, then predict --from that run{way}")  # fmt: skip
    return profile_of(place, fewest)


def _in_precision(strategy: Strategy, precision: str) -> Strategy:
    from paceline.spec.strategy import precision_by_alias

    return strategy.model_copy(update={"precision": precision_by_alias(precision)})


def _cluster(cluster: Cluster | File) -> Cluster:
    """A cluster of the catalog or of a file; devices named `host-cpu` get the rates of this machine."""
    from paceline import catalog
    from paceline.bench.machine import HOST_CPU

    found = catalog.cluster(str(cluster)) if isinstance(cluster, File) else cluster
    return found.with_cores(len(os.sched_getaffinity(0)), device=HOST_CPU)


def _with_rates(cluster: Cluster) -> Cluster:
    """The cluster with the rates of this machine's processor where it names `host-cpu`, measured in a second."""
    from paceline.bench.machine import with_rates

    hosts = tuple(h.model_copy(update={"devices": tuple(map(with_rates, h.devices))}) for h in cluster.hosts)
    return cluster.model_copy(update={"hosts": hosts})


def _calibration(calibration: Calibration | File | None) -> Calibration:
    from paceline.model.calibration import CATALOG_ONLY, read_calibration

    known = CATALOG_ONLY if calibration is None else calibration
    return read_calibration(Path(known)) if isinstance(known, File) else known


def _counts(devices: int | Iterable[int]) -> tuple[int, ...]:
    counts = (devices,) if isinstance(devices, int) else tuple(devices)
    if not counts or not all(isinstance(count, int) and count >= 1 for count in counts):
        raise InputError(f"devices is {devices!r}, expected numbers of at least 1", hint="devices=[1, 2, 4, 8]")
    return counts


def extrapolate(
    measured: File,
    *,
    at: int | Iterable[int],
    global_batch: float | None = None,
    force: bool = False,
    knee: float = 0.5,
    facts: Mapping[str, str] | None = None,
) -> PredictionTable:
    """Predict throughput on more devices from a CSV file of measured throughputs; one curve for each series.

    The file's columns are those of `paceline predict --measured`. `global_batch` fixes the samples per step of all
    devices. `force` also predicts beyond the supported distance, and marks such predictions as unsupported. Two columns
    are enough: numbers of devices, and a throughput. `facts` adds columns that the file does not have, such as
    `{"network": "resnet50", "link": "25gbe"}`; other missing facts are assumed, and `basis` names them.

    >>> import paceline, pathlib, tempfile
    >>> rows = ["network,framework,device,link,devices_per_host,devices,batch_per_device,samples_per_s"]
    >>> rows += [f"resnet50,pytorch,v100,10gbe,4,{n},64,{rate}" for n, rate in ((1, 350), (4, 1300), (8, 2300))]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     points = pathlib.Path(folder, "points.csv")
    ...     _ = points.write_text("\\n".join(rows))
    ...     answer = paceline.extrapolate(points, at=[16, 32])
    >>> frame = answer.to_pandas()
    >>> bool((frame.samples_per_s_low_90 < frame.samples_per_s).all()), frame.devices.tolist()
    (True, [16, 32])
    """
    from paceline.model.measured.extrapolate import extrapolate_series
    from paceline.model.measured.points import read_points
    from paceline.model.measured.prior import shipped_population
    from paceline.report.frames import PredictionTable

    series = read_points(Path(measured), facts)
    return PredictionTable(
        extrapolate_series(
            series, _counts(at), population=shipped_population(), global_batch=global_batch, force=force, knee_gain=knee
        )
    )


def plan(
    network: Network | File | None = None,
    *,
    cluster: Cluster | File,
    global_batch: int | None = None,
    framework: str = "paceline",
    profile: Profile | File | None = None,
    calibration: Calibration | File | None = None,
    measured: File | None = None,
    precision: str | None = None,
    changes: Mapping[str, str] | None = None,
    samples: int | None = None,
    tokens: int | None = None,
    epochs: float = 1.0,
    price: str | None = None,
) -> PlanTable:
    """Choose strategy and batch split for a cluster of unequal devices; the best candidate comes first.

    `network` or `profile` defines the work of a device, as in `predict`. `global_batch` is the number of samples per
    step of all devices; by default every device has the batch of the profile, or the default batch of the network.
    `measured` is a CSV file of throughputs of this network on this cluster. `precision`, `changes`, `samples`,
    `tokens`, `epochs` and `price` have the same meaning as in `predict`.

    >>> import paceline
    >>> answer = paceline.plan("resnet50", cluster="mixed-lab", global_batch=512)
    >>> sum(sum(shares) for shares in answer.plan.best.shares)
    512
    """
    from paceline.model.changes import changed
    from paceline.model.everyday import job_of
    from paceline.model.measured.points import read_points
    from paceline.model.plan.make import make_plan
    from paceline.report.frames import PlanTable

    where = _cluster(cluster)
    where = where.with_a_rank_per_core() if where.name == "local" else where  # any number of ranks
    share = None if global_batch is None or profile is not None else max(1, global_batch // where.num_devices)
    asked = question_about(network, profile, where, share, framework=framework, precision=precision)
    question = changed(asked, dict(changes or {}))
    points = read_points(Path(measured)) if measured is not None else ()
    known = _calibration(calibration)
    job = job_of(samples, epochs, price, tokens)
    return PlanTable(make_plan(question, global_batch=global_batch, calibration=known, measured=points, job=job))


def explain(study: str | None = None, *, store: File | None = None) -> FindingTable:
    """Explain the newest campaign of a study, or of all: findings with evidence, predicted gain and the exact change.

    `study` may be a campaign's id. `.explanation` contains the whole explanation, including gains that `paceline
    explain --confirm` measured for this campaign. `paceline run` measures a study first:

        paceline.explain("demo")
    """
    from paceline.explain.confirm import with_stored
    from paceline.explain.explanation import explain_campaign
    from paceline.measurements.results import find_campaign
    from paceline.measurements.store import Store, default_store
    from paceline.report.frames import FindingTable

    place = Store(Path(store) if store is not None else default_store())
    return FindingTable(with_stored(explain_campaign(place, find_campaign(place, study)), place))


def load_runs(store: File | None = None, *, study: str | None = None, campaign: str | None = None) -> RunTable:
    """Stored launches of all studies, of one study or of one campaign, including failed launches: one row each.

    >>> import paceline
    >>> len(paceline.load_runs("no-such-store"))
    0
    """
    from paceline.measurements.tables import launch_table
    from paceline.report.frames import RunTable

    return RunTable(launch_table(store, study=study, campaign=campaign))


def load_trace(path: File, *more: File, format: str | None = None) -> SpanTable:  # noqa: A002
    """The spans of traces of other tools, and how long each rank was busy in each phase.

    Reads traces of `torch.profiler` (kineto), Horovod's timeline, Chakra execution traces, and Chrome events that
    `paceline export` wrote; without `format` the content determines the format. Give one path for each rank's file.

    >>> import json, paceline, pathlib, tempfile
    >>> events = [{"ph": "X", "cat": "forward", "name": "conv1", "pid": 0, "ts": 0, "dur": 2000}]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trace = pathlib.Path(folder, "trace.json")
    ...     _ = trace.write_text(json.dumps({"traceEvents": events}))
    ...     spans = paceline.load_trace(trace)
    >>> spans.breakdown
    {0: {'forward': 0.002}}
    """
    from paceline.measurements.trace.formats import read_trace
    from paceline.report.frames import SpanTable

    return SpanTable(tuple(span for one in (path, *more) for span in read_trace(Path(one), format)))


def outline(
    model: Any,
    inputs: Any,
    *,
    path: File | None = None,
    name: str | None = None,
    batch: int | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """A profile of the layers of a PyTorch model without running a training, for `predict(profile=...)`. Needs torch.

        with torch.device("meta"):                # takes no memory
            model = MyModel()
        paceline.outline(model, torch.empty(8, 2048, dtype=torch.long, device="meta"), path="my.profile")

    One forward pass counts the multiply-adds and bytes of each layer; `inputs` is a tensor, a tuple, or a dict by name.
    The profile, returned as plain data, has no times: predictions from it use the rooflines of devices, and are less
    accurate than from `capture`. Memory is checked for weights, gradients and momentum, not for activations.
    """
    try:
        from paceline.runtime.counting import outline_of, write_outline
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise missing_extra("torch", "torch") from None
    found = outline_of(model, inputs, name=name, batch=batch)
    write_outline(found, Path(path) if path else None, quiet=quiet)
    return found


def capture(
    model: Any,
    optimizer: Any,
    *,
    path: File | None = None,
    name: str | None = None,
    batch: int | None = None,
    quiet: bool = False,
) -> Capture:
    """Profile the steps of a `with` block of any PyTorch loop, for `predict(profile=...)`. Needs torch.

        with paceline.capture(model, optimizer, path="my-run.profile"):
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss_fn(model(inputs), targets).backward()
                optimizer.step()

    The block needs a few steps; 20 give a good profile. At its end it writes `path`, and a summary unless `quiet`.
    """
    try:
        from paceline.runtime.capture import Capture
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise missing_extra("torch", "torch") from None
    return Capture(model, optimizer, path=path, name=name, batch=batch, quiet=quiet)
