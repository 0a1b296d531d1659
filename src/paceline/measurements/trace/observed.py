"""Steps that were not timed by a study, as a run: steps from `paceline watch` and `paceline import`.

An observed step has the exposed seconds of its phases. They become the passes of a run, each with one more phase than
the previous pass, so that results, explanations, reports and SQL work as for runs of a study.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

import paceline
from paceline.catalog import shipped_catalog
from paceline.errors import InputError
from paceline.measurements.run import PASS_PHASES, PHASES, Machine, Run, RunData, Span, Step
from paceline.measurements.store import Store
from paceline.spec.cluster import Cluster
from paceline.spec.fields import LABEL_WORDS, Label
from paceline.spec.strategy import Strategy

__all__ = ["BATCH_UNKNOWN", "Observed", "ObservedStep", "check_name", "exposed_steps", "observed_steps", "record"]

UNKNOWN_MACHINE = Machine(
    host="unknown", cpu="unknown", cores=1, memory_bytes=0, os="unknown", kernel="unknown", python="unknown",
    paceline=paceline.__version__,
)  # fmt: skip
BATCH_UNKNOWN = "the batch is not known"
"""How the note of a run begins whose samples are counted as one for each rank and step."""
COUNTED_FIRST = ("forward", "backward", "update", "aggregate", "h2d", "io")
"""Time that two phases cover counts for the first of them: an exchange during compute is hidden."""
Stretch = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ObservedStep:
    """One step of one rank; time outside of all phases is the rest."""

    rank: int
    step: int
    start_s: float
    seconds: float
    phases: Mapping[str, float]
    """Exposed seconds by phase; those that are missing are zero."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """A training that was watched or imported."""

    name: str
    """The study's name, by which every command finds the run."""
    ranks: int
    steps: Sequence[ObservedStep]
    launcher: str
    """One of `run.OBSERVED_BY`."""
    network: str = "model"
    framework: str = "pytorch/ddp"
    batch: int = 1
    """Samples per rank and step."""
    alike: bool = False
    """Whether ranks without steps did the same as those with steps: a log of one rank tells the steps of all."""
    spans: Sequence[Span] = ()
    warmup: int = 0
    """First steps of each rank that do not count."""
    cluster: Cluster | None = None
    """Default: this machine."""
    machine: Machine = UNKNOWN_MACHINE
    started_at: str = ""
    """UTC, ISO 8601; default: now."""
    labels: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def record(observed: Observed, store: Store) -> str:
    """Store the observed steps as one run of a campaign of its own, and return the id of the campaign."""
    _check(observed)
    now = observed.started_at or datetime.now(UTC).isoformat(timespec="milliseconds")
    case = _case(observed)
    case_id = hashlib.sha256(json.dumps(case, sort_keys=True).encode()).hexdigest()[:16]
    campaign = f"{observed.name}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"
    document = {"campaign": campaign, "study": observed.name, "title": "", "digest": case_id, "started_at": now,
                "launcher": observed.launcher, "text": "", "cases": [case_id]}  # fmt: skip
    run = Run(
        id=f"{campaign}-{case_id}-000", campaign=campaign, study=observed.name, case_id=case_id, case=case,
        network=observed.network, framework=observed.framework, strategy="default", cluster=case["cluster"]["name"],
        launcher=observed.launcher, ranks=observed.ranks, batch=observed.batch, scaling="weak", input=case["input"],
        launch=0, started_at=now, seconds=max(step.start_s + step.seconds for step in observed.steps), outcome="ok",
        machine=observed.machine, warmup={"clean": observed.warmup}, labels=observed.labels, facts=dict(observed.facts),
    )  # fmt: skip
    store.write_campaign(campaign, document)
    store.write(RunData(run, tuple(_passes(observed)), tuple(observed.spans)))
    return campaign


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a run."""
    try:
        TypeAdapter(Label).validate_python(name)
    except ValidationError:
        raise InputError(f"{name!r} is no name for a run", hint=f"expected {LABEL_WORDS}") from None


def _check(observed: Observed) -> None:
    check_name(observed.name)
    if not observed.steps:
        raise InputError("no step was observed", hint="a run has at least one step of every rank")
    ranks = {step.rank for step in observed.steps}
    missing = next((rank for rank in range(0 if observed.alike else observed.ranks) if rank not in ranks), None)
    if missing is not None or max(ranks) >= observed.ranks:
        what = f"a step of rank {max(ranks)}" if missing is None else f"no step of rank {missing}"
        raise InputError(f"{what}, where {observed.ranks} ranks took part", hint="give the steps of every rank")
    wrong = next((step for step in observed.steps if not _sound(step)), None)
    if wrong is not None:
        raise InputError(
            f"step {wrong.step} of rank {wrong.rank} lasts {wrong.seconds} s, its phases {dict(wrong.phases)}",
            hint="expected finite times, none negative, and no more in the phases than in the step",
        )
    if not any(step.step >= observed.warmup for step in observed.steps):
        raise InputError(f"all steps are among the {observed.warmup} of the warm-up", hint="give more steps")


def _sound(step: ObservedStep) -> bool:
    times = (step.start_s, step.seconds, *step.phases.values())
    finite = all(math.isfinite(time) for time in times) and min(step.seconds, *step.phases.values(), 0.0) >= 0
    return finite and step.step >= 0 and sum(step.phases.values()) <= step.seconds * (1 + 1e-6) + 1e-9


def _case(observed: Observed) -> dict[str, Any]:
    """The canonical form of the case; the network is known by its name alone."""
    cluster = observed.cluster or shipped_catalog().cluster("local")
    strategy = Strategy().model_dump(mode="json", exclude={"name"})
    digest = hashlib.sha256(observed.network.encode()).hexdigest()[:16]
    return {
        "network": {"name": observed.network, "digest": digest}, "cluster": cluster.model_dump(mode="json"),
        "framework": observed.framework, "strategy": strategy, "ranks": observed.ranks, "batch": observed.batch,
        "scaling": "weak", "placement": "packed", "input": "files", "threads": None,
    }  # fmt: skip


def _passes(observed: Observed) -> Iterable[Step]:
    """The clean pass, and one for each phase; a log that does not split its steps has the clean one alone."""
    seen = {phase for step in observed.steps for phase, seconds in step.phases.items() if seconds > 0}
    exchanges = observed.ranks > 1 or "aggregate" in seen  # one rank of several may have been recorded
    names = [item for item in PASS_PHASES if seen and (exchanges or item[0] != "exchange")]
    for step in observed.steps:
        warmup, reached = step.step < observed.warmup, 0.0
        yield Step("clean", step.rank, step.step, warmup, step.start_s, step.seconds)
        for name, phase in names:
            reached = step.seconds if phase == "other" else reached + step.phases.get(phase, 0.0)
            yield Step(name, step.rank, step.step, warmup, step.start_s, min(reached, step.seconds))


def observed_steps(rows: Iterable[Step]) -> tuple[ObservedStep, ...]:
    """The observed steps of a stored run, from its passes; warm-up is left out."""
    found: dict[tuple[int, int], dict[str, Step]] = defaultdict(dict)
    for row in rows:
        if not row.warmup:
            found[row.step, row.rank][row.pass_name] = row
    steps = []
    for (step, rank), passes in sorted(found.items()):
        phases, reached = {}, 0.0
        for name, phase in PASS_PHASES:
            if phase in PHASES and name in passes:
                phases[phase], reached = passes[name].seconds - reached, passes[name].seconds
        steps.append(ObservedStep(rank, step, passes["clean"].start_s, passes["clean"].seconds, phases))
    return tuple(steps)


def exposed_steps(
    spans: Iterable[Span], bounds: Mapping[tuple[int, int], Stretch] | None = None
) -> tuple[ObservedStep, ...]:
    """The steps of spans of one clock: exposed seconds by phase of each rank and step.

    `bounds` has start and seconds of steps by rank and step; by default a step lasts from its first span to its last.
    """
    groups: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for span in spans:
        groups[span.rank, span.step].append(span)
    known = bounds if bounds is not None else {key: _hull(group) for key, group in groups.items()}
    return tuple(
        ObservedStep(rank, step, start, seconds, _exposed(groups.get((rank, step), []), start, start + seconds))
        for (rank, step), (start, seconds) in sorted(known.items(), key=lambda item: (item[0][1], item[0][0]))
    )


def _hull(spans: Sequence[Span]) -> Stretch:
    start = min(span.start_s for span in spans)
    return start, max(span.start_s + span.seconds for span in spans) - start


def _exposed(spans: Sequence[Span], start: float, end: float) -> dict[str, float]:
    """Seconds of each phase that no phase before it in `COUNTED_FIRST` covers, between start and end."""
    covered: list[Stretch] = []
    exposed = {}
    for phase in COUNTED_FIRST:
        before = _length(covered)
        mine = [(max(s.start_s, start), min(s.start_s + s.seconds, end)) for s in spans if s.phase == phase]
        covered = _union([*covered, *(part for part in mine if part[1] > part[0])])
        exposed[phase] = max(0.0, _length(covered) - before)
    return exposed


def _union(stretches: list[Stretch]) -> list[Stretch]:
    """The union of stretches: ordered, without overlap."""
    joined: list[Stretch] = []
    for begin, end in sorted(stretches):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def _length(stretches: list[Stretch]) -> float:
    return sum(end - begin for begin, end in stretches)
