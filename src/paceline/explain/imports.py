"""What other tools recorded of a job, as a run of the store where it has steps, and what it says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

from paceline.errors import InputError
from paceline.explain.replay import Replay, replay
from paceline.explain.watched import FEWEST_STEPS, Judgement, judge_steps
from paceline.measurements.foreign.inspector import LateRank, looks_like_inspector, read_inspector
from paceline.measurements.foreign.logs import TrainingLog, looks_like_log, read_log
from paceline.measurements.foreign.nccl_tests import CollectiveTest, looks_like_nccl_tests, read_nccl_tests, sweep_of
from paceline.measurements.foreign.nsight import looks_like_nsight, scan_nsight
from paceline.measurements.foreign.operations import looks_like_operations, read_operations
from paceline.measurements.foreign.recorder import Hang, find_hangs, looks_like_dump, read_dump
from paceline.measurements.run import PHASES
from paceline.measurements.store import Store
from paceline.measurements.trace.formats import TRACE_READERS
from paceline.measurements.trace.job import TracedJob, join_traces, rank_in_name, read_job, traced_job
from paceline.measurements.trace.observed import Observed, ObservedStep, record
from paceline.measurements.trace.rank_trace import gather_spans
from paceline.measurements.trace.stream import BROKEN, open_trace
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
FRAMEWORKS = {"horovod": "pytorch/horovod"}
"""The framework that a trace implies; others are PyTorch's DDP unless one is named."""


@dataclass(frozen=True)
class Labels:
    """What a record does not say by itself."""

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
    """What was read, and the campaign that holds it if it has steps."""

    kind: Kind
    files: int
    name: str = ""
    campaign: str | None = None
    job: TracedJob | None = None
    judgement: Judgement | None = None
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
    """Read files of one job, whatever tool wrote them; what has steps becomes a run of the store."""
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
        paths += inside or [path]
    if not 0 < len(paths) <= MOST_FILES:
        raise InputError(f"{len(paths)} files", hint=f"expected 1 to {MOST_FILES}")
    return paths


def _family(kind: str) -> Kind:
    if kind not in IMPORT_KINDS:
        raise InputError(f"no kind of file is called {kind!r}", hint=f"known: {', '.join(IMPORT_KINDS)}")
    return "trace" if kind in TRACE_READERS else kind  # type: ignore[return-value]


def _kind(paths: Sequence[Path]) -> Kind:
    """What the first file is; all files of an import are of one kind."""
    first = paths[0]
    if not first.exists():
        raise InputError(f"{first}: No such file or directory", hint="give the files of one job")
    if looks_like_nsight(first):
        return "nsight"
    if looks_like_operations(first):
        return "operations"
    if looks_like_inspector(first):
        return "nccl-inspector"
    if looks_like_dump(first):
        return "flight-recorder"
    if looks_like_nccl_tests(first):
        return "nccl-tests"
    if first.suffix == ".et" or _begins_as_json(first):
        return "trace"
    if looks_like_log(first):
        return "log"
    if _is_text(first):
        raise InputError(f"{first} is no file that `import` knows", hint=f"known: {', '.join(IMPORT_KINDS)}")
    return "trace"


def _is_text(path: Path) -> bool:
    with open_trace(path) as file:
        try:
            begin = file.read(256)
        except BROKEN:
            return False
    return bool(begin) and all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in begin)


def _begins_as_json(path: Path) -> bool:
    with open_trace(path) as file:
        try:
            begin = file.read(256).lstrip()
        except BROKEN:
            return True
    return begin[:1] == b"{" or (begin[:1] == b"[" and begin[1:].lstrip()[:1] in (b"{", b"]", b""))


def _name(path: Path) -> str:
    """The name of a run from that of its first file, without the rank and without suffixes."""
    stem = re.sub(r"rank[-_. ]?\d+", "", path.name.split(".")[0], flags=re.I)
    return re.sub(r"[^A-Za-z0-9]+", "-", stem).strip("-")[:40] or "imported"


def _checked(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise InputError(f"--name {name[:60]!r}: expected {LABEL_WORDS}", hint="for example --name my-run")
    return name


def _trace(paths: Sequence[Path], store: Store, labels: Labels, kind: str | None) -> Imported:
    if kind == "nsight":
        found = [
            trace for n, path in enumerate(paths) for trace in scan_nsight(path, fallback_rank=rank_in_name(path, n))
        ]
        job = join_traces(kind, found, partial=labels.partial)
    else:
        job = read_job(paths, format=kind, partial=labels.partial)
    steps = _observed_steps(job)
    judgement = judge_steps(steps) if len(job.steps) >= FEWEST_STEPS else None
    campaign = _recorded(job, steps, store, labels)
    return Imported("trace", len(paths), str(labels.name), campaign, job=job, judgement=judgement)


def _operations(paths: Sequence[Path], store: Store, labels: Labels) -> Imported:
    if len(paths) > 1:
        raise InputError(f"{len(paths)} tables of operations", hint="one table holds all ranks of a job")
    operations = read_operations(paths[0])
    answer = replay(operations)
    job = traced_job("operations", gather_spans(operations.path, operations.spans(), "operations"))
    campaign = _recorded(job, _observed_steps(job), store, labels)
    return Imported("operations", 1, str(labels.name), campaign, job=job, replay=answer)


def _observed_steps(job: TracedJob) -> tuple[ObservedStep, ...]:
    places = {rank: place for place, rank in enumerate(job.ranks)}
    return tuple(
        ObservedStep(rank=places[one.rank], step=one.step, start_s=one.start_s - job.starts[one.rank],
                     seconds=one.seconds, phases={p: s for p, s in one.exposed.items() if p in PHASES})
        for one in job.shares
    )  # fmt: skip


def _recorded(job: TracedJob, steps: tuple[ObservedStep, ...], store: Store, labels: Labels) -> str:
    framework = labels.framework or FRAMEWORKS.get(job.format, "pytorch/ddp")
    observed = Observed(
        name=str(labels.name), network=labels.network, framework=framework, batch=labels.batch or 1,
        ranks=len(job.ranks), steps=steps, spans=job.spans(), launcher="import", labels=job.notes,
        facts={"source": job.format, "files": [trace.path for trace in job.traces][:64], "ranks": list(job.ranks)},
    )  # fmt: skip
    return record(observed, store)


def _log(paths: Sequence[Path], store: Store, labels: Labels) -> Imported:
    if len(paths) > 1:
        raise InputError(f"{len(paths)} logs", hint="import one log at a time, that of rank 0")
    log = read_log(paths[0])
    ranks = sorted({step.rank or 0 for step in log.steps})
    places = {rank: place for place, rank in enumerate(ranks)}
    clock, steps = dict.fromkeys(ranks, 0.0), []
    for step in log.steps:
        rank, seconds = step.rank or 0, float(step.seconds or 0.0)
        steps.append(ObservedStep(rank=places[rank], step=step.step, start_s=clock[rank], seconds=seconds, phases={}))
        clock[rank] += seconds
    samples = [step.samples for step in log.steps if step.samples]
    batch = labels.batch or (max(1, round(median(samples) / log.ranks)) if samples else 1)
    figures = {name: median(values) for name in ("tokens_per_s", "mfu", "tflops")
               if (values := [v for step in log.steps if (v := getattr(step, name)) is not None])}  # fmt: skip
    observed = Observed(
        name=str(labels.name), network=labels.network, framework=labels.framework or "pytorch/ddp", batch=batch,
        ranks=len(ranks), steps=tuple(steps), launcher="import",
        facts={"source": log.form, "files": [log.path], "devices": log.ranks, **figures},
    )  # fmt: skip
    return Imported("log", 1, str(labels.name), record(observed, store), log=log)
