"""What one launch of one case left behind: Run, Step, Span, Machine, Failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from paceline.spec.fields import Noun
from paceline.spec.protocol import Protocol
from paceline.spec.study import case_label

__all__ = [
    "DRIFT_LIMIT",
    "PASSES",
    "PHASES",
    "RENAMED",
    "SCHEMA_VERSION",
    "Check",
    "Failure",
    "Machine",
    "Run",
    "RunData",
    "Span",
    "Step",
]

SCHEMA_VERSION = 2
"""Raised when a stored run changes its shape; readers refuse what is newer than they are."""

RENAMED = {"environment": "machine", "calibration_s": "probe_s"}
"""Fields of schema 1 by their names today."""

DRIFT_LIMIT: float = Protocol.model_fields["width"].default
"""Drift beyond which a launch counts as drifted, unless the protocol asks for another interval width."""

PHASES = ("io", "h2d", "forward", "backward", "aggregate", "update")
"""The phases of a step, in order, everywhere."""

PASSES = ("clean", "forward", "compute", "exchange", "resident", "copied", "full")
"""What a launch times: the clean pass for throughput, the others to split the step (see `summary.phases_of`)."""


class Failure(Noun):
    """Why a case has no result: where it was, what went wrong, and the evidence."""

    phase: Literal["environment", "launch", "setup", "verify", "measure", "collect"]
    reason: Literal[
        "crash",
        "timeout",
        "out_of_memory",
        "killed",
        "cancelled",
        "mismatch",
        "unsupported",
        "no_output",
        "unsustained",
    ]
    message: str
    """One line for a table."""
    rank: int | None = None
    exit_code: int | None = None
    log_tail: str = ""
    """The end of the log of the rank that failed first."""


class Check(Noun):
    """One thing the doctor looked at."""

    name: str
    status: Literal["ok", "warn", "bad"]
    saw: str
    expected: str
    fix: str = ""


class Machine(Noun):
    """The machine and software of a run."""

    host: str
    cpu: str
    cores: int
    memory_bytes: int
    os: str
    kernel: str
    python: str
    paceline: str
    versions: dict[str, str] = Field(default_factory=dict)
    """Framework packages inside the measured process."""
    threads: int | None = None
    """Compute threads of each rank."""
    checks: tuple[Check, ...] = ()
    """What the doctor saw before the study."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank. Times are seconds on the rank's clock since the pass's common start."""

    pass_name: str
    rank: int
    step: int
    warmup: bool
    start_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Span:
    """A named stretch of one rank's time inside a step; a layer or a bucket where it belongs to one."""

    rank: int
    step: int
    phase: str
    name: str
    start_s: float
    seconds: float
    size_bytes: int | None = None
    source: str = "paceline"


class Run(Noun):
    """The header of a stored run: everything but the tables of steps and spans."""

    schema_version: int = SCHEMA_VERSION
    id: str
    campaign: str
    study: str
    case_id: str
    case: dict[str, Any]
    """The case's canonical form."""
    network: str
    framework: str
    """Framework and mode, such as `pytorch/ddp`."""
    strategy: str
    """The strategy's label."""
    cluster: str
    launcher: str = "local"
    ranks: int
    batch: int
    """Per device."""
    scaling: str
    input: str
    launch: int
    """Number of the launch within its case, from 0."""
    started_at: str
    """UTC, ISO 8601."""
    seconds: float
    """From start to end of the launch, set-up included."""
    outcome: Literal["ok", "failed"]
    failure: Failure | None = None
    machine: Machine
    warmup: dict[str, int] = Field(default_factory=dict)
    """Steps dropped per pass until its spread settled."""
    timers: dict[str, float] = Field(default_factory=dict)
    """Seconds per step by the framework's own timers, mean over the timed steps of the slowest rank."""
    probe_s: float | None = None
    """Time of a fixed kernel just before the launch; its change is the machine's drift."""
    drift: float | None = None
    """Relative distance of the probe from the campaign's median so far."""
    drift_limit: float = DRIFT_LIMIT
    """Drift beyond which the launch counts as drifted: the interval width that the protocol asked for."""
    dilation: float = 1.0
    """Factor by which links and compute were slowed; stored times are already divided by it."""
    labels: tuple[str, ...] = ()
    """Warnings that belong to every number of this run, such as an unsupported combination."""
    facts: dict[str, Any] = Field(default_factory=dict)
    """Whatever else the worker reported: losses, clock offsets, queue lengths."""

    @property
    def drifted(self) -> bool:
        """Whether the machine's own speed was off: the launch stays in the sample, but does not let its case stop."""
        return self.drift is not None and abs(self.drift) > self.drift_limit

    @property
    def label(self) -> str:
        """The case's label, see `spec.study.case_label`."""
        return case_label(self.network, self._named_framework, self.batch, self.ranks, self.cluster)

    @property
    def series(self) -> tuple[str | int, ...]:
        """What stays equal along a scaling curve: the key of the run's series."""
        size = self.batch * self.ranks if self.scaling == "strong" else self.batch
        return (self.network, self.cluster, self.framework, self.strategy, self.input, self.scaling, size)

    @property
    def series_label(self) -> str:
        """What tells the run's scaling curve from others."""
        where = "" if self.cluster == "local" else f", {self.cluster}"
        return f"{self.network} {self._named_framework}, batch {self.batch}, {self.input} input{where}"

    @property
    def _named_framework(self) -> str:
        return self.framework if self.strategy == "default" else f"{self.framework} {self.strategy}"


@dataclass(frozen=True)
class RunData:
    """A run and its tables."""

    run: Run
    steps: tuple[Step, ...] = ()
    spans: tuple[Span, ...] = ()
