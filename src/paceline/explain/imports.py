"""Import of records of other tools: analysis of a job, and a run of the store if the records contain steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from pathlib import Path
from statistics import median
from typing import Any, Literal

from paceline.catalog import shipped_catalog
from paceline.errors import InputError
from paceline.explain.replay import Replay, replay
from paceline.explain.setting import Setting
from paceline.explain.watched import FEWEST_STEPS, StepVerdict, judge_steps
from paceline.measurements.foreign.inspector import LateRank, looks_like_inspector, read_inspector
from paceline.measurements.foreign.log_forms import KNOWN_LINES
from paceline.measurements.foreign.logs import METRICS, TrainingLog, looks_like_log, read_log, refuse_state
from paceline.measurements.foreign.nccl_tests import CollectiveTest, looks_like_nccl_tests, read_nccl_tests, sweep_of
from paceline.measurements.foreign.nsight import looks_like_nsight, scan_nsight
from paceline.measurements.foreign.operations import Operations, looks_like_operations, read_operations
from paceline.measurements.foreign.recorder import Hang, find_hangs, looks_like_dump, read_dump
from paceline.measurements.run import PHASES
from paceline.measurements.store import Store
from paceline.measurements.trace.chakra import looks_like_chakra
from paceline.measurements.trace.formats import TRACE_READERS
from paceline.measurements.trace.job import TracedJob, join_traces, rank_in_name, read_job, traced_job
from paceline.measurements.trace.observed import BATCH_UNKNOWN, Observed, ObservedStep, record
from paceline.measurements.trace.rank_trace import gather_spans
from paceline.measurements.trace.stream import begin_of
from paceline.spec.cluster import Cluster
from paceline.spec.fields import LABEL_WORDS

__all__ = ["IMPORT_KINDS", "Imported", "Labels", "import_files"]

Kind = Literal["trace", "nsight", "operations", "log", "flight-recorder", "nccl-tests", "nccl-inspector"]
IMPORT_KINDS = (
    "flight-recorder",
    "log",
    "nccl-inspector",
    "nccl-tests",
    "nsight",
    "operations",
    *sorted(TRACE_READERS),
)
MOST_FILES = 100_000
EXPORT = "nsys export --type sqlite REPORT writes what `import` reads"
ONE_JOB = "name the files of one job, or a folder that holds no others"
NO_BATCH = f"{BATCH_UNKNOWN} (--batch): one sample for each rank and step"
RECORDS = re.compile(rb"\{[^\n]*\}\r?\n\{\"")
"""Lines of JSON, of which each is whole."""
FRAMEWORKS = {"horovod": "pytorch/horovod"}
"""The framework that a trace implies; others are PyTorch's DDP unless one is named."""


@dataclass(frozen=True)
class Labels:
    """Labels that a record does not contain."""

    name: str | None = None
    network: str = "model"
    framework: str | None = None
    batch: int | None = None
    """Samples per device and step."""
    cluster: str = "local"
    operation: str | None = None
    """Collective of a test that does not name it."""
    partial: bool = False
    """Whether missing ranks are accepted."""


@dataclass(frozen=True)
class Imported:
    """The imported record, and its campaign if it contains steps."""

    kind: Kind
    files: int
    name: str = ""
    campaign: str | None = None
    job: TracedJob | None = None
    judgement: StepVerdict | None = None
    """The verdict on the steps, where there are enough."""
    replay: Replay | None = None
    log: TrainingLog | None = None
    hangs: tuple[Hang, ...] = ()
    dumps: tuple[int, ...] = ()
    """Ranks of the flight recorder's dumps."""
    tests: tuple[CollectiveTest, ...] = ()
    late: LateRank | None = None
    """The rank that enters collectives last, by the NCCL Inspector."""


def import_files(given: Sequence[Path], store: Store, labels: Labels, kind: str | None = None) -> Imported:
    """Read files of one job in any supported format; records with steps become a run of the store."""
    _check_words(labels)
    paths = _files(given)
    found = _family(kind) if kind else _kind(paths)
    if found == "flight-recorder":
        dumps = [read_dump(path, fallback_rank=number) for number, path in enumerate(paths)]
        ranks = [dump.rank for dump in dumps]
        if len(set(ranks)) < len(ranks):
            raise InputError(
                "two dumps are of one rank", hint="one file for each rank, its number at the end of its name"
            )
        return Imported(found, len(paths), hangs=find_hangs(dumps), dumps=tuple(sorted(ranks)))
    if found in ("nccl-tests", "nccl-inspector"):
        return _collectives(found, paths, store, labels)
    name = _checked(labels.name) if labels.name else _name(paths[0])
    named = replace(labels, name=name)
    if found == "log":
        return _log(paths, store, named)
    if found == "operations":
        return _operations(paths, store, named)
    return _trace(paths, store, named, "nsight" if found == "nsight" else kind)


def _collectives(kind: Kind, paths: Sequence[Path], store: Store, labels: Labels) -> Imported:
    """Tests of collectives, or collectives of a job, as sweeps of the cluster."""
    late = None
    if kind == "nccl-tests":
        tests = tuple(read_nccl_tests(path, labels.operation) for path in paths)
    else:
        job = read_inspector(paths)
        tests, late = job.tests, job.late
    for test in tests:
        store.write(sweep_of(test, labels.cluster))
    return Imported(kind, len(paths), name="collectives", tests=tests, late=late)


def _files(given: Sequence[Path]) -> list[Path]:
    paths = []
    for path in given:
        inside = (
            sorted(one for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
            if path.is_dir()
            else []
        )
        if path.is_dir() and not inside:
            raise InputError(f"{path} holds no file", hint="give the folder of the dumps or traces")
        tables = [one for one in inside if one.suffix == ".parquet"]
        paths += tables if len(tables) == 1 else inside or [path]  # its folder also describes and analyses the job
    if not 0 < len(paths) <= MOST_FILES:
        raise InputError(f"{len(paths)} files", hint=f"expected 1 to {MOST_FILES}")
    return paths


def _family(kind: str) -> Kind:
    if kind not in IMPORT_KINDS:
        raise InputError(f"no kind of file is called {kind!r}", hint=f"known: {', '.join(IMPORT_KINDS)}")
    return "trace" if kind in TRACE_READERS else kind  # type: ignore[return-value]


def _kind(paths: Sequence[Path]) -> Kind:
    """The format of the first file; all files of an import have one format."""
    first = paths[0]
    if not begin_of(first, 1 << 16).strip():
        raise InputError(f"{first} is empty", hint="give the files of one job as their tool wrote them")
    refuse_state(first)
    found = next((kind for kind, looks_like in SIGNS if looks_like(first)), None)
    if found is None:
        known = f"known: {', '.join(IMPORT_KINDS)}; of a log, {KNOWN_LINES}"
        hint = EXPORT if first.suffix in (".nsys-rep", ".qdrep") else f"{ONE_JOB}; {known}" if len(paths) > 1 else known
        raise InputError(f"{first} is no file that `import` knows", hint=hint)
    other = next((path for path in paths[1:] if begin_of(path, 256).strip() and not dict(SIGNS)[found](path)), None)
    if other is not None:
        raise InputError(f"{first} is of kind {found}, and {other} is not", hint=ONE_JOB)
    return found


def _looks_like_trace(path: Path) -> bool:
    """JSON, or Chakra; `{'` begins the text of a table of Python, and a record in each line is a log."""
    begin = begin_of(path, 1 << 14).lstrip()
    metrics = METRICS.match(begin[:256].decode("utf-8", errors="replace")) or RECORDS.match(begin)
    json = begin[:1] == b"{" and begin[1:2] != b"'" and not metrics
    listed = begin[:1] == b"[" and begin[1:].lstrip()[:1] in (b"{", b"]", b"")
    return json or listed or looks_like_chakra(path)


SIGNS: tuple[tuple[Kind, Callable[[Path], bool]], ...] = (
    ("nsight", looks_like_nsight),
    ("operations", looks_like_operations),
    ("nccl-inspector", looks_like_inspector),
    ("flight-recorder", looks_like_dump),
    ("nccl-tests", looks_like_nccl_tests),
    ("trace", _looks_like_trace),
    ("log", looks_like_log),
)
"""Tests of the format of a file, in this order."""


def _name(path: Path) -> str:
    """The name of a run from that of its first file, without the rank and without suffixes."""
    stem = re.sub(r"rank[-_. ]?\d+", "", path.name.split(".")[0], flags=re.I)
    return re.sub(r"[^A-Za-z0-9]+", "-", stem).strip("-")[:40] or "imported"


def _checked(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise InputError(f"--name {name[:60]!r}: expected {LABEL_WORDS}", hint="for example --name my-run")
    return name


def _check_words(labels: Labels) -> None:
    if not (labels.network.isprintable() and 0 < len(labels.network.strip()) <= 200):
        raise InputError(f"--network {labels.network[:60]!r}: expected a name of one line, at most 200 characters",
                         hint="for example --network my-model")  # fmt: skip
    if labels.framework is not None and not re.fullmatch(r"[\w.-]{1,50}/[\w.-]{1,50}", labels.framework):
        raise InputError(f"--framework {labels.framework[:60]!r}: expected a framework and its mode",
                         hint="for example --framework pytorch/ddp")  # fmt: skip


def _trace(paths: Sequence[Path], store: Store, labels: Labels, kind: str | None) -> Imported:
    if kind == "nsight":
        found = [
            trace for n, path in enumerate(paths) for trace in scan_nsight(path, fallback_rank=rank_in_name(path, n))
        ]
        job = join_traces(kind, found, partial=labels.partial)
    else:
        job = read_job(paths, format=kind, partial=labels.partial)
    steps = _observed_steps(job)
    facts: dict[str, Any] = {name: True for name in ("staged", "sharded") if job.arrangement == name}
    setting = Setting(staged="staged" in facts, sharded="sharded" in facts)
    judgement = judge_steps(steps, setting) if len(job.steps) >= FEWEST_STEPS else None
    campaign = _recorded(job, steps, store, labels, facts)
    return Imported("trace", len(paths), str(labels.name), campaign, job=job, judgement=judgement)


def _operations(paths: Sequence[Path], store: Store, labels: Labels) -> Imported:
    if len(paths) > 1:
        raise InputError(f"{len(paths)} tables of operations", hint="one table holds all ranks of a job")
    operations = read_operations(paths[0])
    notes = _missing_stages(operations, partial=labels.partial)
    job = traced_job("operations", gather_spans(operations.path, operations.spans(), "operations"), notes, fewest=1)
    answer = replay(operations)
    campaign = _recorded(job, _observed_steps(job), store, labels, {"replay": answer.document})
    return Imported("operations", 1, str(labels.name), campaign, job=job, replay=answer)


def _missing_stages(operations: Operations, *, partial: bool) -> list[str]:
    """A note on stages that some replica lacks, which is an error unless it is accepted."""
    there = set(zip(operations.dp_rank.tolist(), operations.stage.tolist(), strict=True))
    first, last = min(stage for _, stage in there), max(stage for _, stage in there)
    if len(there) > MOST_FILES or last > MOST_FILES:
        return []
    missing = sorted({(replica, stage) for replica, _ in there for stage in range(min(first, 1), last + 1)} - there)
    if not missing:
        return []
    named = ", ".join(f"stage {stage} of data-parallel rank {replica}" for replica, stage in missing[:4])
    what = f"operations of {len(missing)} ranks are missing: {named}{' ...' if len(missing) > 4 else ''}"
    if not partial:
        raise InputError(what, hint="record every stage; --partial replays what is there, in which those who wait for "
                         "a missing stage seem slow themselves")  # fmt: skip
    return [f"{what}; those who wait for them seem slow themselves"]


def _observed_steps(job: TracedJob) -> tuple[ObservedStep, ...]:
    places = {rank: place for place, rank in enumerate(job.ranks)}
    return tuple(
        ObservedStep(rank=places[one.rank], step=one.step, start_s=one.start_s - job.starts[one.rank],
                     seconds=one.seconds, phases={p: s for p, s in one.exposed.items() if p in PHASES})
        for one in job.shares
    )  # fmt: skip


def _recorded(
    job: TracedJob,
    steps: tuple[ObservedStep, ...],
    store: Store,
    labels: Labels,
    facts: Mapping[str, Any] | None = None,
) -> str:
    framework = labels.framework or FRAMEWORKS.get(job.format, "pytorch/ddp")
    observed = Observed(
        name=str(labels.name), network=labels.network, framework=framework, batch=labels.batch or 1,
        ranks=len(job.ranks), steps=steps, spans=job.spans(), launcher="import",
        labels=(*job.notes, *(() if labels.batch else (NO_BATCH,))),
        cluster=_cluster(labels),
        facts={"source": job.format, "files": [trace.path for trace in job.traces][:64], "ranks": list(job.ranks),
               **(facts or {})},
    )  # fmt: skip
    return record(observed, store)


def _cluster(labels: Labels) -> Cluster | None:
    """The cluster of the job; by default this machine."""
    return None if labels.cluster == "local" else shipped_catalog().cluster(labels.cluster)


def _shape(log: TrainingLog, labels: Labels) -> tuple[int, int | None]:
    """Ranks and samples of each: devices, unless they share samples (tensor parallel, stages of a pipeline)."""
    if labels.batch or not log.samples:
        return log.ranks, labels.batch
    ranks = gcd(log.ranks, log.samples)
    return ranks, log.samples // ranks


def _log(paths: Sequence[Path], store: Store, labels: Labels) -> Imported:
    if len(paths) > 1:
        raise InputError(f"{len(paths)} logs", hint="import one log at a time, that of rank 0")
    log = read_log(paths[0])
    ranks, batch = _shape(log, labels)
    found = {step.rank or 0 for step in log.steps}
    chosen = found if max(found) < ranks else {min(found)}  # a stage or a shard does not process samples independently
    clock, steps = dict[int, float](), []
    for step in (one for one in log.steps if (one.rank or 0) in chosen):
        rank, seconds = (step.rank or 0) % ranks, float(step.seconds or 0.0)
        start = clock.get(rank, 0.0)
        steps.append(ObservedStep(rank=rank, step=step.step, start_s=start, seconds=seconds, phases={}))
        clock[rank] = start + seconds
    figures = {name: median(values) for name in ("tokens_per_s", "mfu", "tflops")
               if (values := [v for step in log.steps if (v := getattr(step, name)) is not None])}  # fmt: skip
    if tokens := [step.tokens_per_s * step.seconds for step in log.steps if step.tokens_per_s and step.seconds]:
        figures["tokens_per_step"] = median(tokens)
    observed = Observed(
        name=str(labels.name), network=labels.network, framework=labels.framework or "pytorch/ddp", batch=batch or 1,
        ranks=ranks, alike=True, steps=tuple(steps), launcher="import", cluster=_cluster(labels),
        labels=() if batch else (NO_BATCH,),
        facts={"source": log.form, "files": [log.path], "devices": log.ranks, **figures},
    )  # fmt: skip
    judgement = judge_steps(steps) if len(steps) >= FEWEST_STEPS * len(clock) else None
    return Imported("log", 1, str(labels.name), record(observed, store), log=log, judgement=judgement)
