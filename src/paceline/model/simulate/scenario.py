"""Simulation of a question: the cost of stragglers, failures, asynchrony and other jobs on the link. Disturbances are
added one after the other under the same seed, so that the differences are the cost of each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.catalog import Policy, resolve
from paceline.errors import InputError
from paceline.model.calibration import CATALOG_ONLY, Calibration
from paceline.model.question import Question, check_question, ranks_of, works_of
from paceline.model.simulate.training import AsyncRun, Job, SyncRun, simulate_async, simulate_jobs, simulate_sync
from paceline.model.step import NOMINAL, Ranks, exchange_seconds, jitter_of, step_terms

__all__ = ["Disturbance", "Simulated", "simulate_question"]

Floats = NDArray[np.float64]

MOST = {"steps": 100_000, "jobs": 200, "steps between checkpoints": 10**9}
"""Larger numbers would take hours without a benefit."""
MOST_DEVICE_STEPS = 10**8
MOST_FAILURES = 3.0
"""Failures to be expected between two checkpoints, above which training practically never gets ahead."""


@dataclass(frozen=True)
class Disturbance:
    """Disturbances of a run."""

    steps: int = 500
    straggle: float = 0.0
    """Probability that a device's step is slowed."""
    straggle_factor: float = 5.0
    mtbf: float | None = None
    """Mean seconds between failures of one device; none means that nothing fails."""
    restart: float = 300.0
    """Seconds from a failure until training continues."""
    checkpoint_every: int = 100
    jobs: int = 1
    """Equal jobs whose exchanges share the links, this one included."""
    seed: int = 0

    def words(self) -> dict[str, str]:
        """What slows steps, in words, by its name; empty without stragglers."""
        said = f"{self.straggle:.3g} of a device's steps compute {self.straggle_factor:g} times as long"
        return {"stragglers": said} if self.straggle else {}


@dataclass(frozen=True)
class Simulated:
    """The result for one number of devices."""

    devices: int
    synchrony: str
    predicted_step_s: float
    """The step of `paceline predict`: without disturbances."""
    step_s: float
    """Mean seconds of a step (of an update of each worker, where they do not wait) with everything that happens."""
    quantiles: dict[str, float]
    """Seconds of the 50th, 90th and 99th percent of steps; empty for asynchronous workers."""
    samples_per_s: float
    shares: dict[str, float]
    """Shares of time, which sum to one."""
    num_events: int
    staleness: float | None = None
    """Asynchronous: mean number of updates by others between reading weights and updating them."""
    server_busy: float | None = None
    """Asynchronous: share of the time in which the servers were busy."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class _Setting:
    """The setting of a simulation with one number of devices."""

    ranks: Ranks
    compute: Floats
    """Seconds of forward and backward of each device."""
    other: float
    """Seconds of a step in addition to the slowest device's compute."""
    exchange: float
    """Seconds on the link in a step, hidden or not."""
    hidden: float
    """The part that overlaps with compute."""
    jitter: float
    predicted: float
    """The step that `predict_curve` gives, with the time that ranks usually wait for each other."""

    @property
    def calm(self) -> float:
        """A step in which nothing happens."""
        return float(self.compute.max()) + self.other


def simulate_question(
    question: Question, devices: int, trouble: Disturbance, *, calibration: Calibration = CATALOG_ONLY
) -> Simulated:
    """Play the steps of one number of devices."""
    check_question(question, (devices,))
    _check(trouble, devices)
    policy = resolve(question.framework, question.strategy)
    setting = _setting(question, devices, policy, calibration)
    samples = question.batch * question.strategy.accumulate
    if policy.synchrony == "asynchronous" and devices > 1:
        return _asynchronous(setting, policy, trouble, samples=samples, calibration=calibration)
    return _synchronous(setting, trouble, samples=samples)


def _check(trouble: Disturbance, devices: int) -> None:
    counts = {"steps": trouble.steps, "jobs": trouble.jobs, "steps between checkpoints": trouble.checkpoint_every}
    for name, value in counts.items():
        if not 1 <= value <= MOST[name]:
            raise InputError(f"{name}: got {value}, expected at least 1, at most {MOST[name]:,}")
    if trouble.steps * devices > MOST_DEVICE_STEPS:
        most = max(1, MOST_DEVICE_STEPS // devices)
        raise InputError(f"steps: got {trouble.steps}, expected at most {most:,} on {devices} devices")
    if not 0 <= trouble.seed < 2**63:
        raise InputError(f"seed: got {trouble.seed}, expected 0 or more, below 2^63")
    if not 0 <= trouble.straggle <= 1:
        raise InputError(f"straggle: got {trouble.straggle}, expected a probability", hint="for example 0.01")
    if not 1 <= trouble.straggle_factor <= 1e6:
        raise InputError(
            f"straggle factor: got {trouble.straggle_factor}, expected 1 to 1e6: a straggler is not faster"
        )
    if trouble.mtbf is not None and trouble.mtbf <= 0:
        raise InputError(
            f"mean time between failures: got {trouble.mtbf:g} s, expected more than 0", hint="for example '1000 h'"
        )
    if trouble.restart < 0:
        raise InputError(f"restart: got {trouble.restart:g} s, expected 0 or more", hint="for example '5 min'")


def _setting(question: Question, devices: int, policy: Policy, calibration: Calibration) -> _Setting:
    works = works_of(question)
    ranks = ranks_of(question, devices, calibration, works)
    terms = {name: float(values[0]) for name, values in step_terms(ranks, policy, calibration, NOMINAL).items()}
    compute = np.repeat([work.compute * ranks.accumulate for work in ranks.works], ranks.counts)
    other = sum(value for name, value in terms.items() if name not in ("forward", "backward", "waiting"))
    exchange = exchange_seconds(ranks, policy, calibration) if devices > 1 else 0.0
    hidden = max(0.0, exchange - terms["aggregate"])
    return _Setting(
        ranks, compute, other, exchange, hidden, jitter_of(ranks, calibration), predicted=sum(terms.values())
    )


def _synchronous(setting: _Setting, trouble: Disturbance, *, samples: int) -> Simulated:
    contention = _contention(setting, trouble)
    calm = SyncRun(setting.compute, setting.other, trouble.steps)
    shared = replace(calm, aggregate=setting.other + contention)
    jittered = replace(shared, jitter=setting.jitter if len(setting.compute) > 1 else 0.0)
    straggling = replace(jittered, straggle=trouble.straggle, straggle_factor=trouble.straggle_factor)
    failing = _with_failures(straggling, trouble)
    ends = [simulate_sync(run, seed=trouble.seed) for run in (calm, shared, jittered, straggling, failing)]
    totals = [float(end[-1]) for end in ends]
    names = ("other jobs", "jitter", "stragglers", "failures")
    costs = {name: max(0.0, after - before) for name, before, after in zip(names, totals, totals[1:], strict=False)}
    count = len(setting.compute)
    return Simulated(
        devices=count,
        synchrony="synchronous",
        predicted_step_s=setting.predicted,
        step_s=totals[-1] / trouble.steps,
        quantiles=_quantiles(ends[-2]),
        samples_per_s=samples * count * trouble.steps / totals[-1],
        shares=_shares(setting, trouble.steps, costs),
        num_events=trouble.steps,
    )


def _shares(setting: _Setting, steps: int, costs: dict[str, float]) -> dict[str, float]:
    parts = {"compute": float(setting.compute.max()) * steps, "exchange and rest": setting.other * steps, **costs}
    total = sum(parts.values())
    return {name: seconds / total for name, seconds in parts.items() if seconds > 0 or name == "compute"}


def _quantiles(ends: Floats) -> dict[str, float]:
    """Quantiles of single steps without restarts after failures."""
    steps = np.diff(ends, prepend=0.0)
    return {str(percent): float(np.quantile(steps, percent / 100)) for percent in (50, 90, 99)}


def _with_failures(run: SyncRun, trouble: Disturbance) -> SyncRun:
    if trouble.mtbf is None:
        return run
    every = trouble.checkpoint_every
    between = every * (float(run.compute.max()) + run.aggregate)
    expected = between * len(run.compute) / trouble.mtbf
    if expected > MOST_FAILURES:
        raise InputError(
            f"{len(run.compute)} devices fail {expected:.1f} times between two checkpoints, so training gets nowhere",
            hint=f"checkpoint more often than every {every} steps, or use fewer devices",
        )
    return replace(run, failures_per_s=1 / trouble.mtbf, restart=trouble.restart, checkpoint_every=every)


def _contention(setting: _Setting, trouble: Disturbance) -> float:
    """Seconds by which a step grows because equal jobs, begun at random moments, share the link."""
    if trouble.jobs == 1 or not setting.exchange:
        return 0.0
    own = min(setting.exchange, setting.calm)
    starts = np.random.default_rng(trouble.seed).uniform(0.0, setting.calm, trouble.jobs)
    jobs = [Job(setting.calm - own, own, 100, start=float(start)) for start in starts]
    ends = simulate_jobs(jobs, 1.0)
    return max(0.0, float(np.mean((ends - starts) / 100)) - setting.calm)


def _asynchronous(
    setting: _Setting, policy: Policy, trouble: Disturbance, *, samples: int, calibration: Calibration
) -> Simulated:
    """Asynchronous workers, which share only the queue of the servers."""
    count, iterations = len(setting.compute), trouble.steps
    worker, service = _server_times(setting.ranks, policy, calibration)
    worker = max(0.0, worker - setting.hidden)
    run = AsyncRun(
        setting.compute,
        exchange=worker,
        service=service * trouble.jobs,
        iterations=iterations,
        jitter=setting.jitter,
        straggle=trouble.straggle,
        straggle_factor=trouble.straggle_factor,
    )
    if trouble.mtbf is not None:
        run = replace(run, leave_at=np.random.default_rng(trouble.seed + 1).exponential(trouble.mtbf, count))
    result = simulate_async(run, seed=trouble.seed)
    if not result.updates:
        raise InputError("every worker failed before its first update", hint="a longer mean time between failures")
    step = count / result.updates_per_s
    compute = float(setting.compute.mean()) / step
    travel = min(worker / step, 1 - compute)
    return Simulated(
        devices=count,
        synchrony="asynchronous",
        predicted_step_s=setting.predicted,
        step_s=step,
        quantiles={},
        samples_per_s=samples * result.updates_per_s,
        shares={"compute": compute, "exchange and rest": travel, "queue and stragglers": 1 - compute - travel},
        num_events=result.num_events,
        staleness=result.staleness,
        server_busy=result.server_busy,
    )


def _server_times(ranks: Ranks, policy: Policy, calibration: Calibration) -> tuple[float, float]:
    """Seconds from a worker to the servers and back, and seconds that all servers are busy with one worker."""
    fabric = ranks.fabric.slowed(calibration.latency.value, 1 / calibration.reach.value)
    size = max(work.total_bytes for work in ranks.works) * ranks.element_share
    many = fabric.hosts > 1
    per_byte, latency = (
        (fabric.between_per_byte, fabric.between_latency) if many else (fabric.inside_per_byte, fabric.inside_latency)
    )
    servers = policy.servers or fabric.hosts
    service = 2 * size * per_byte / servers
    own = 2 * size * per_byte * (fabric.local if many else 1)
    return max(0.0, own - service) + 2 * latency, service
