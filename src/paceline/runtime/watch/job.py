"""Runs the watched command unchanged, and merges the records of its processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline import catalog, variables
from paceline.bench.environments import worker_path
from paceline.bench.machine import HOST_CPU, describe_machine
from paceline.catalog.devices import device_by_alias
from paceline.errors import InputError
from paceline.measurements.run import Span
from paceline.measurements.trace.observed import BATCH_UNKNOWN, Observed, ObservedStep
from paceline.runtime.watch.recorder import ORDER, TRACED_STEPS
from paceline.spec.cluster import Cluster, Device

__all__ = ["name_of_command", "observe", "read_records", "run_watched", "steps_of"]

SITE = Path(__file__).parent / "site"
WARMUP = TRACED_STEPS[-1] + 1
"""Number of steps before the first one that counts; they determine what is to be watched."""
MOST_COLLECTED = 1000
"""Largest number of steps with garbage collection that a run stores."""
OF_FIRST = ("parameters", "ddp", "device", "every", "sharded", "joined", "unit", "units_per_sample", "precision")
"""Facts that a run has from its first rank."""
SHARDED = (
    "FSDP or tensor parallelism: the exchange is what ranks wait for; layers have shards, so do not predict from them"
)
Record = dict[str, Any]


def run_watched(command: Sequence[str], folder: Path, *, every: int, quiet: bool = False) -> int:
    """Run a command whose Python processes write records to a folder; returns the exit code as a shell does.

    SIGINT and SIGTERM are left to the command. With `quiet`, the output of the command goes to standard error.
    """
    paths = [str(SITE), str(worker_path()), os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        variables.WATCH: str(folder.absolute()),
        variables.WATCH_EVERY: str(every),
    }
    try:
        process = subprocess.Popen(list(command), env=env, stdout=2 if quiet else None)
    except OSError as error:
        raise InputError(
            f"cannot run {command[0]}: {error.strerror}",
            hint=f"paceline watch -- python {command[0] if Path(command[0]).is_file() else 'train.py'}",
        ) from None
    with _passed_on(process):
        code = process.wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ignore SIGINT, which the terminal also sends to the command, and forward SIGTERM."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number)),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def name_of_command(command: Sequence[str]) -> str:
    """The name of a run: that of the script."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(script).stem).strip("-._")
    return words[:80] or "watched"


def read_records(folder: Path) -> list[Record]:
    """The records of the training with most steps, by rank; a command may run several trainings, or restart one.

    If several processes have the same rank, the record with most steps is used.
    """
    trainings: dict[tuple[int, int], dict[int, Record]] = defaultdict(dict)
    records = [record for path in sorted(folder.glob("process-*.jsonl")) if (record := _record(path))]
    for record in records:
        found = trainings[record["world"], record["attempt"]]
        if record["steps"] > found.get(record["rank"], {"steps": -1})["steps"]:
            found[record["rank"]] = record
    most = max(trainings.values(), key=lambda found: sum(r["steps"] for r in found.values()), default={})
    return [{**most[rank], "others": len(records) - len(most)} for rank in sorted(most)]


def _record(path: Path) -> Record | None:
    """The last facts of a process, and all of its rows and spans; an incomplete line is ignored."""
    record: Record = {}
    listed: dict[str, list[Any]] = {"rows": [], "spans": [], "work": [], "collected": []}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if event["event"] in listed:
                listed[event["event"]] += event[event["event"]]
            else:
                record = event
    return {**record, **listed} if record else None


def observe(name: str, records: Sequence[Record], *, launcher: str = "watch", labels: tuple[str, ...] = ()) -> Observed:
    """One observed training from the records of its processes."""
    if not any(record["steps"] for record in records):
        passes = sum(record["backwards"] for record in records)
        but = f": {passes} backward passes, but no step() of an optimiser" if passes else ""
        raise InputError(f"no training step was seen{but}", hint=_NOTHING_SEEN)
    ranks, first = max(record["world"] for record in records), records[0]
    missing = sorted(set(range(ranks)) - {record["rank"] for record in records})
    if missing:
        raise InputError(f"rank {missing[0]} of {ranks} left no record of its steps", hint=_NOTHING_SEEN)
    timed = min(sum(row[0] >= WARMUP for row in record["rows"]) for record in records)
    if not timed:
        raise InputError(
            f"{first['steps']} steps are too few: the first {WARMUP} show what is to be watched",
            hint="train for 30 steps or more",
        )
    origin = min(record["wall"] for record in records)
    machine = describe_machine().model_copy(
        update={"threads": first.get("threads"), "versions": first.get("versions", {})}
    )
    return Observed(
        name=name, ranks=ranks, launcher=launcher, network=str(first.get("model", "model")), batch=_batch(records),
        framework=first.get("framework", "pytorch/ddp"), cluster=_cluster(records),
        steps=[step for record in records for step in steps_of(record, record["wall"] - origin)],
        spans=[Span(rank=record["rank"], **span) for record in records for span in record["spans"]],
        warmup=WARMUP, machine=machine, labels=(*labels, *_labels(first)), facts=_facts(records),
    )  # fmt: skip


_NOTHING_SEEN = (
    "Paceline sees trainings whose Python reads PYTHONPATH (no -E, -I, -S): steps of optimisers of torch.optim, "
    "batches of Keras's `fit`, calls of functions of jax.jit and tf.function"
)


def steps_of(record: Record, offset: float) -> Iterator[ObservedStep]:
    """The rows of a record, as observed steps."""
    for number, start, seconds, *phases in record["rows"]:
        fits = min(1.0, seconds / max(sum(phases), 1e-12))
        named = {name: fits * value for name, value in zip(ORDER, phases, strict=True)}
        yield ObservedStep(record["rank"], int(number), start + offset, seconds, named)


def _labels(first: Mapping[str, Any]) -> tuple[str, ...]:
    """Labels of the run that state limits of the recording."""
    optimizers, unseen = first.get("optimizers", 1), not first.get("modules", 1) and not first.get("compiled")
    words = {
        first.get("graphs", ""): first.get("graphs"),
        "torch.compile: whole graphs, no layers": first.get("compiled"),
        "no module was called in training: forward is outside of the phases": unseen,
        SHARDED: first.get("sharded"),
        f"{BATCH_UNKNOWN}: no tensor was given to the model; one sample for each rank and step": not first["batch"],
        f"{optimizers} optimisers: a step ends with the one that is called least": optimizers > 1,
        f"{first.get('others')} more processes recorded steps: this is the training with most": first.get("others"),
        f"one of {first['every']} steps watched": first["every"] > 1,
        f"the recording ended early: {first.get('error')}": first.get("error"),
    }
    return tuple(word for word, holds in words.items() if holds)


def _batch(records: Sequence[Record]) -> int:
    """Samples of a rank in a step, the mean of all: Paceline's runtime gives ranks unequal shares."""
    return round(sum(record["batch"] for record in records) / len(records)) or 1


def _cluster(records: Sequence[Record]) -> Cluster | None:
    """The devices on which the ranks computed; None for processors of this machine."""
    name = str(records[0].get("device_name") or HOST_CPU)
    if name == HOST_CPU:
        return None
    counts = Counter(record["host"] for record in records)
    known = device_by_alias(name)
    device = catalog.device(known) if known else Device(name=name[:100])
    local = catalog.cluster("local")
    hosts = tuple(local.hosts[0].model_copy(update={"name": f"host-{number}", "devices": (device,) * count})
                  for number, count in enumerate(counts.values()))  # fmt: skip
    return local.model_copy(update={"name": f"{len(records)}x {device.name}", "hosts": hosts})


def _facts(records: Sequence[Record]) -> dict[str, Any]:
    """Facts other than times: hosts, memory, settings of DistributedDataParallel, garbage collection."""
    return {
        "hosts": [record["host"] for record in records],
        "gc_share": sum(record["gc_s"] for record in records) / sum(r["elapsed"] for r in records),
        "gc_count": sum(record["gc_count"] for record in records),
        "peak_bytes": [record["peak_bytes"] for record in records],
        "peak_memory_bytes": max(record["peak_bytes"] for record in records),
        "gc_steps": _collected(records),
        "work": dict(records[0].get("work", ())),
        "served": all(record.get("served") for record in records) and len({r["parameters"] for r in records}) == 1,
        **{name: records[0][name] for name in OF_FIRST if name in records[0]},
    }


def _collected(records: Sequence[Record]) -> list[tuple[int, float]]:
    """The steps with most garbage collection, with its seconds on the rank with most."""
    most: dict[int, float] = {}
    for step, seconds in (item for record in records for item in record["collected"]):
        most[step] = max(most.get(step, 0.0), seconds)
    return sorted(sorted(most.items(), key=lambda item: -item[1])[:MOST_COLLECTED])
