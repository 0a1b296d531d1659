"""The result of one launch of one case: Run, Step, Span, Machine, Failure."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from paceline.spec.cluster import Cluster
from paceline.spec.fields import Count, Name, NotNegative, SpecModel
from paceline.spec.strategy import Strategy
from paceline.spec.study import Protocol, case_label

__all__ = [
    "DRIFT_LIMIT",
    "OBSERVED_BY",
    "PASS_PHASES",
    "PHASES",
    "RENAMED",
    "SCHEMA_VERSION",
    "Check",
    "Failure",
    "FailurePhase",
    "FailureReason",
    "Machine",
    "Run",
    "RunData",
    "Span",
    "Step",
    "check_case",
    "counted",
    "with_drift",
]

SCHEMA_VERSION = 3
"""Version of the stored format; readers refuse newer versions. Runs have checksums since version 3."""

RENAMED = {"environment": "machine", "calibration_s": "probe_s"}
"""Current names of renamed fields of schema 1."""

DRIFT_LIMIT: float = Protocol.model_fields["width"].default
"""Drift beyond which a launch counts as drifted, unless the protocol sets another interval width."""

FEWEST_STEADY = 3
"""Minimum number of launches after drifted launches are left out."""

OBSERVED_BY = ("watch", "import")
"""The launchers of runs that no study measured, see `trace.observed`."""

PHASES = ("io", "h2d", "forward", "backward", "aggregate", "update")
"""The phases of a step, in order."""

PASS_PHASES = (
    ("forward", "forward"),
    ("compute", "backward"),
    ("exchange", "aggregate"),
    ("resident", "update"),
    ("copied", "h2d"),
    ("full", "io"),
    ("whole", "other"),
)
"""The partial passes of a launch beside the clean one, and the phase that each adds to those before it (see
`summary.phases_of`); `whole` only where steps were observed, not composed."""


def _file_name(text: str) -> str:
    """The document of a campaign is called like it."""
    if "/" in text or "\0" in text or text.startswith("."):
        raise ValueError("expected the name of a file")
    return text


def _moment(text: str) -> str:
    try:
        datetime.fromisoformat(text).astimezone(UTC)
    except OverflowError:
        raise ValueError("expected a moment of the years 1 to 9999") from None
    return text


class _AskedCase(BaseModel):
    """What readers use of the canonical form of a case; the rest of it only tells cases apart."""

    network: dict[str, Any]
    cluster: Cluster
    strategy: Strategy
    placement: Literal["packed", "spread"] = "packed"
    threads: Count | None = None


@functools.lru_cache(maxsize=256)
def _asked(text: str) -> _AskedCase:
    return _AskedCase.model_validate_json(text)  # launches of one case have one text


FailurePhase = Literal["environment", "launch", "setup", "verify", "measure", "collect"]
FailureReason = Literal[
    "crash", "timeout", "out_of_memory", "killed", "cancelled", "mismatch", "unsupported", "no_output", "unsustained"
]


class Failure(SpecModel):
    """Why a launch has no result: the phase, the reason, and the evidence."""

    phase: FailurePhase
    reason: FailureReason
    message: str
    """A one-line message for tables."""
    rank: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    exit_code: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    log_tail: str = ""
    """The end of the log of the rank that failed first."""


class Check(SpecModel):
    """One check of `paceline doctor`."""

    name: str
    status: Literal["ok", "warn", "bad"]
    saw: str
    expected: str
    fix: str = ""


class Machine(SpecModel):
    """The machine and software of a run."""

    host: str
    cpu: str
    cores: Count
    memory_bytes: Annotated[int, Field(ge=0, le=2**62)]
    os: str
    kernel: str
    python: str
    paceline: str
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of framework packages in the measured process."""
    threads: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """Compute threads of each rank."""
    checks: tuple[Check, ...] = ()
    """Results of `paceline doctor` before the study."""


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
    """A named interval of one rank inside a step, of a layer or bucket where applicable."""

    rank: int
    step: int
    phase: str
    name: str
    start_s: float
    seconds: float
    size_bytes: int | None = None
    source: str = "paceline"


class Run(SpecModel):
    """The header of a stored run, without the tables of steps and spans."""

    schema_version: Annotated[int, Field(ge=1)] = SCHEMA_VERSION
    id: Name
    campaign: Annotated[Name, AfterValidator(_file_name)]
    study: Name
    case_id: Name
    case: dict[str, Any]
    """Canonical form of the case."""
    network: str
    framework: str
    """Framework and mode, such as `pytorch/ddp`."""
    strategy: str
    """Name of the strategy."""
    cluster: str
    launcher: str = "local"
    ranks: Count
    batch: Count
    """Samples per device and step."""
    scaling: str
    input: str
    launch: Annotated[int, Field(ge=0, le=2**31 - 1)]
    """Number of the launch within its case, from 0."""
    started_at: Annotated[str, AfterValidator(_moment)]
    """UTC, ISO 8601."""
    seconds: NotNegative
    """Duration of the launch, including set-up."""
    outcome: Literal["ok", "failed"]
    failure: Failure | None = None
    machine: Machine
    warmup: dict[str, Annotated[int, Field(ge=0, le=2**31 - 1)]] = Field(default_factory=dict)
    """Number of warm-up steps by pass."""
    timers: dict[str, NotNegative] = Field(default_factory=dict)
    """Seconds per step according to the framework's own timers, mean over the timed steps of rank 0."""
    probe_s: NotNegative | None = None
    """Time of a fixed kernel before the launch; its change is the drift of the machine."""
    drift: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Relative deviation of the probe from the median of all probes of the campaign (`with_drift`)."""
    drift_limit: NotNegative = DRIFT_LIMIT
    """Drift beyond which the launch counts as drifted: the interval width of the protocol."""
    pilot: Count | None = None
    """Launches after which the case could first stop, where their interval decides; None if their number was fixed."""
    dilation: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Factor by which links and compute were slowed; stored times are already divided by it."""
    labels: tuple[str, ...] = ()
    """Notes on all numbers of this run, such as an unsupported combination."""
    facts: dict[str, Any] = Field(default_factory=dict)
    """Further values that the worker reported: losses, clock offsets, queue lengths."""

    @property
    def drifted(self) -> bool:
        """Whether the machine's own speed deviated from its median; `counted` decides whether such a launch counts."""
        return self.drift is not None and abs(self.drift) > self.drift_limit

    @property
    def is_observed(self) -> bool:
        """Whether steps were observed from outside, so that `other` and the work of each rank were measured too."""
        return self.launcher in OBSERVED_BY

    @property
    def label(self) -> str:
        """The label of the case, see `spec.study.case_label`."""
        return case_label(self.network, self.contender, self.batch, self.ranks, self.cluster)

    @property
    def series(self) -> tuple[str | int, ...]:
        """The key of the run's series: all parameters that are equal along a scaling curve."""
        size = self.batch * self.ranks if self.scaling == "strong" else self.batch
        return (self.network, self.cluster, self.framework, self.strategy, self.input, self.scaling, size)

    @property
    def series_label(self) -> str:
        """The label of the run's scaling curve."""
        where = "" if self.cluster == "local" else f", {self.cluster}"
        return f"{self.network} {self.contender}, batch {self.batch}, {self.input} input{where}"

    @property
    def contender(self) -> str:
        """The framework and mode, with the name of the strategy if it is not the default."""
        return self.framework if self.strategy == "default" else f"{self.framework} {self.strategy}"


def check_case(run: Run) -> None:
    """ValueError if readers could not take the case apart. Sweeps of collectives have another one."""
    if run.study == "collectives":
        return
    try:
        asked = _asked(json.dumps(run.case, sort_keys=True))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"case.{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
    if asked.cluster.num_devices < run.ranks and not run.is_observed:
        raise ValueError(f"ranks: {run.ranks} on the {asked.cluster.num_devices} devices of its case")


@dataclass(frozen=True)
class RunData:
    """A run and its tables."""

    run: Run
    steps: tuple[Step, ...] = ()
    spans: tuple[Span, ...] = ()


def with_drift(runs: Sequence[Run]) -> list[Run]:
    """The runs with the drift of each: its probe against the median of all probes of its campaign, the first too."""
    probes: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if run.probe_s:
            probes[run.campaign].append(run.probe_s)
    usual = {campaign: median(seconds) for campaign, seconds in probes.items()}
    return [
        run.model_copy(update={"drift": run.probe_s / usual[run.campaign] - 1}) if run.probe_s else run for run in runs
    ]


def counted(runs: Sequence[Run]) -> list[Run]:
    """The successful launches of one case that count, for the stopping rule and for every result alike.

    Launches that drifted are left out. If fewer than half would remain, the machine has no typical speed; if fewer than
    three would remain, the interval would be useless. In both cases all launches count.
    """
    good = [run for run in runs if run.outcome == "ok"]
    steady = [run for run in good if not run.drifted]
    return steady if len(steady) >= max(FEWEST_STEADY, len(good) / 2) else good
