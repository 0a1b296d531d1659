"""The verdict on observed steps: where the time goes, which rank, since which step, for how long, and how sure.

A synchronous step is as long as its slowest rank, so ranks are compared by their work: the step without the exposed
exchange, in which they wait for each other. Steps that are much longer than usual are stalls; without them, the level
of a series is divided where it changes (binary segmentation of the running median, in units of its own noise).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paceline.explain.levels import FEWEST_STALLS, NOTICEABLE, excess_of, levels_of, period_of, raised, upper_rows
from paceline.explain.setting import Setting, exchange_reason, setting_of_run
from paceline.measurements.run import PASS_PHASES, PHASES, Step
from paceline.measurements.store import StoredRun
from paceline.measurements.summary import Interval, amount_interval, phases_of
from paceline.measurements.tablefiles import STEPS
from paceline.measurements.trace.observed import ObservedStep, observed_steps

__all__ = ["FEWEST_STEPS", "StepCause", "StepVerdict", "judge_run", "judge_steps"]

FEWEST_STEPS = 20
"""Steps of every rank below which there is no verdict."""
SLOWER_BY = 0.08
"""Smallest lasting change of all ranks' work that is reported."""
STEADY = {"io": 0.05, "aggregate": 0.2, "other": 0.1}
"""Shares of the step from which a phase that is always there is a cause."""
SPREAD = 3
"""Irregular stalls of this number of phases have one cause, which is not in the step: the process itself is held up."""
TOGETHER = 1.5
"""A group of ranks is named if it costs this many times what its members cost one by one."""
COLLECTED = 0.6
"""Share of a stall that garbage collection explains, if it is the cause."""
UPDATING = 0.15
"""Share of the update in a rank's work above which the batch counts as small."""
CROWDED = 1.5
"""Compute threads for each core from which they wait for each other."""
BATCHES = 10
"""Intervals come from the means of this number of consecutive parts of the run, because neighbouring steps are
correlated."""

UNSPLIT = "step"
"""The phase of causes in steps that nothing splits into phases, such as those of a log."""

Floats = NDArray[np.float64]
CauseKind = Literal["slow_rank", "slowdown", "stalls", "io", "aggregate", "other", "collections", "batch", "threads"]


@dataclass(frozen=True)
class StepCause:
    """What lengthens the steps: its cost, the rank and phase, and the steps in which it acts."""

    kind: CauseKind
    phase: str
    """`any`: it may strike in every phase."""
    rank: int | None
    """The rank; None for all ranks."""
    share: Interval
    """Share of the time of the run that it costs."""
    since: int | None
    """First step in which it acts; None: from the beginning."""
    until: int | None
    """Last step; None: to the end."""
    every: int | None = None
    """Distance of its steps, if that is regular."""
    count: int = 0
    """Number of steps in which it acts."""
    num_steps: int = 0
    """Number of steps of the run."""
    ranks: tuple[int, ...] = ()
    """Ranks that are slow together, such as those of one host; `rank` is the first of them."""
    reason: str = ""
    """For an exchange: the setting that exposes it (`setting.exchange_reason`); for a rank: `stages` if it is one."""

    @property
    def pattern(self) -> Literal["persistent", "transient"]:
        """Whether it acts until the end, in most steps."""
        often = self.kind != "stalls" or self.count > self.num_steps / 2
        return "persistent" if often and self.until is None else "transient"


@dataclass(frozen=True)
class StepVerdict:
    """The verdict; without causes, nothing is shown to lengthen the steps."""

    num_steps: int
    """Steps that every rank has."""
    num_ranks: int
    step_s: float
    """Median step, as long as its slowest rank."""
    shares: dict[str, float]
    """Share of each phase and of `other` of the median step, as in the results of a study."""
    waiting: float
    """Share of the time that ranks wait for each other, the mean of all."""
    causes: tuple[StepCause, ...]
    why_not: str = ""
    """Why there is no verdict."""
    replay: Mapping[str, Any] = field(default_factory=dict)
    """The replay of a pipeline, see `explain.replay`."""


@dataclass(frozen=True)
class _Series:
    """The steps that every rank has: times by phase, of ranks x steps."""

    steps: NDArray[np.int64]
    seconds: Floats
    phases: dict[str, Floats]
    collected: Floats
    """Seconds of garbage collection by step."""

    @property
    def step_s(self) -> float:
        return float(self.seconds.max(axis=0).mean())

    @property
    def exchange(self) -> Floats:
        """What every rank has of the exposed exchange: the rest is waiting for each other."""
        least: Floats = self.phases["aggregate"].min(axis=0)
        return least

    @property
    def computes(self) -> bool:
        """Whether it was recorded what an exchange hides behind."""
        return any(bool(self.phases[name].any()) for name in ("forward", "backward"))

    @property
    def work(self) -> Floats:
        rest: Floats = self.seconds - self.phases["aggregate"]
        return rest


def judge_steps(steps: Sequence[ObservedStep], setting: Setting | None = None) -> StepVerdict:
    """The verdict on the timed steps of a run with its settings."""
    setting = setting or Setting()
    series = _series(steps, setting)
    num_ranks, num_steps = series.seconds.shape
    if num_steps < FEWEST_STEPS:
        why = f"{num_steps} timed steps are too few for a verdict: at least {FEWEST_STEPS} are needed"
        return StepVerdict(num_steps, num_ranks, _typical(series) if num_steps else 0.0, {}, 0.0, (), why)
    stalls, calm = _stalls(series)
    causes = [
        *stalls,
        *(replace(cause, reason="stages" * setting.staged) for cause in _slow_ranks(calm)),
        *_slowdowns(calm),
        *_steady(calm, setting),
        *_settings(calm, setting, stalls),
    ]
    shown = [cause for cause in causes if cause.share.value >= NOTICEABLE and cause.share.low >= NOTICEABLE / 2]
    ranked = tuple(sorted(shown, key=lambda cause: (cause.kind != "threads", -cause.share.value)))
    return StepVerdict(num_steps, num_ranks, _typical(series), _shares(series), _waiting(series), ranked)


def judge_run(stored: StoredRun) -> StepVerdict:
    """The verdict on a stored run."""
    columns = stored.steps.to_pydict()
    rows = (Step(*row) for row in zip(*(columns[name] for name in STEPS.names), strict=True))
    judgement = judge_steps(observed_steps(rows), setting_of_run(stored.run))
    replay = stored.run.facts.get("replay") or {}
    return replace(judgement, num_ranks=stored.run.ranks, replay=replay)  # a log has the steps of one rank


def _series(steps: Sequence[ObservedStep], setting: Setting) -> _Series:
    by_rank: dict[int, dict[int, ObservedStep]] = {}
    for step in steps:
        by_rank.setdefault(step.rank, {})[step.step] = step
    common = sorted(set.intersection(*(set(found) for found in by_rank.values()))) if by_rank else []
    rows = [[by_rank[rank][number] for number in common] for rank in sorted(by_rank)]
    shape = (len(rows), len(common))
    seconds = np.array([[step.seconds for step in row] for row in rows]).reshape(shape)
    phases = {
        name: np.array([[step.phases.get(name, 0.0) for step in row] for row in rows]).reshape(shape) for name in PHASES
    }
    rest = "other" if any(values.any() for values in phases.values()) else UNSPLIT
    phases[rest] = np.maximum(0.0, seconds - sum(phases.values()))
    collected = np.array([setting.collected.get(number, 0.0) for number in common])
    return _Series(np.array(common, dtype=np.int64), seconds, phases, collected)


def _typical(series: _Series) -> float:
    return float(np.median(series.seconds.max(axis=0)))


def _shares(series: _Series) -> dict[str, float]:
    """Shares of phases as in `measurements.results`: medians of passes, where a step is as long as on its slowest
    rank."""
    if UNSPLIT in series.phases:
        return {}
    passes, reached = {"clean": _typical(series)}, np.zeros_like(series.seconds)
    for name, phase in PASS_PHASES:
        reached = reached + series.phases[phase]
        passes[name] = float(np.median(reached.max(axis=0)))
    passes["whole"] = passes["clean"]
    return {name: seconds / passes["clean"] for name, seconds in phases_of(passes).items()}


def _waiting(series: _Series) -> float:
    exchange = series.phases["aggregate"]
    return float((exchange - exchange.min(axis=0)).mean() / series.seconds.mean())


def _share(seconds: Floats, step_s: float) -> Interval:
    """The mean of an amount by step as a share of the step, with the interval over consecutive parts of the run."""
    parts = [float(part.mean()) / step_s for part in np.array_split(seconds, min(BATCHES, len(seconds)))]
    found, mean = amount_interval(parts), float(seconds.mean()) / step_s
    return Interval(mean, min(found.low, mean), max(found.high, mean))


def _share_of_part(series: _Series, seconds: Floats, begin: int, end: int) -> Interval:
    """The share of what a stretch of steps costs, of the whole run."""
    inside, part = _share(seconds[begin:end], series.step_s), (end - begin) / len(seconds)
    return Interval(part * inside.value, part * inside.low, part * inside.high)


# Stalls: single steps that are much longer than usual.


def _stalls(series: _Series) -> tuple[list[StepCause], _Series]:
    """Stalls by phase, and the series without them."""
    causes, calm, rare = [], dict(series.phases), 0
    for phase, values in series.phases.items():
        if phase == "aggregate":
            values = np.broadcast_to(series.exchange, values.shape) * series.computes
        excess = excess_of(values, series.step_s)
        calm[phase] = series.phases[phase] - excess
        found = _stalls_of(series, phase, excess)
        rare += int(bool(excess.any()) and not found)
        causes += found
    removed: Floats = np.sum([series.phases[name] - calm[name] for name in calm], axis=0)
    regular = [cause for cause in causes if cause.every is not None]
    rest = _without(removed, regular, series.steps)
    if len(causes) - len(regular) + rare >= SPREAD and np.count_nonzero(rest.any(axis=0)) >= 2 * FEWEST_STALLS:
        causes = [*regular, _stall(series, "any", rest, None)]
    return causes, _Series(series.steps, series.seconds - removed, calm, series.collected)


def _without(excess: Floats, regular: Sequence[StepCause], steps: NDArray[np.int64]) -> Floats:
    """The excess of steps without a regular stall."""
    taken = np.zeros(len(steps), dtype=bool)
    for cause in regular:
        taken |= (steps - (cause.since or 0)) % (cause.every or 1) == 0
    rest: Floats = np.where(taken, 0.0, excess)
    return rest


def _stalls_of(series: _Series, phase: str, excess: Floats) -> list[StepCause]:
    """Regular stalls, and the others."""
    cost = excess.max(axis=0)
    every, first = period_of(series.steps, cost)
    causes = []
    if every:
        regular = (series.steps - first) % every == 0
        causes.append(_stall(series, phase, np.where(regular, excess, 0.0), every))
        excess = np.where(regular, 0.0, excess)
    if np.count_nonzero(excess.any(axis=0)) >= FEWEST_STALLS:
        gaps = np.diff(series.steps[np.flatnonzero(excess.any(axis=0))])
        usual = int(np.median(gaps))  # an epoch may shift the place of a period
        causes.append(_stall(series, phase, excess, usual if usual > 1 and np.mean(gaps == usual) >= 0.8 else None))
    return causes


def _stall(series: _Series, phase: str, excess: Floats, every: int | None) -> StepCause:
    """The cost of a stall is the time that the slowest rank adds; a stall belongs to one rank if that rank has nearly
    all of it."""
    cost = excess.max(axis=0)
    places = np.flatnonzero(cost)
    by_rank = excess.sum(axis=1) / float(excess.sum())
    rank = int(by_rank.argmax()) if len(by_rank) > 1 and by_rank.max() > 0.9 else None
    share, first = _share(cost, series.step_s), int(series.steps[places[0]])
    if every:  # parts of the run differ by the place of the period alone
        heights = amount_interval(list(cost[places] / every / series.step_s))
        share = Interval(share.value, min(heights.low, share.value), max(heights.high, share.value))
    kind: CauseKind = "collections" if series.collected[places].sum() >= COLLECTED * cost.sum() else "stalls"
    return StepCause(kind, phase, rank, share, first, None, every, len(places), len(cost))


# Levels: what lasts.


def _slow_ranks(series: _Series) -> list[StepCause]:
    """Ranks that hold up the others, one by one; several of them together if mending one alone would not help."""
    ranks = range(len(series.work)) if len(series.work) > 1 else ()
    alone, group = [lag for rank in ranks for lag in _lags(series, (rank,))], upper_rows(series.work)
    together = _lags(series, group) if len(group) > 1 else []
    members = [lag for lag in alone if lag.rank in group]
    if sum(lag.share.value for lag in together) <= TOGETHER * sum(lag.share.value for lag in members):
        return alone
    return [*together, *(lag for lag in alone if lag not in members)]


def _lags(series: _Series, ranks: tuple[int, ...]) -> list[StepCause]:
    """Stretches in which the others wait for these ranks."""
    work, rank = series.work, ranks[0]
    others = np.delete(work, ranks, axis=0).max(axis=0)
    lag, usual = work[list(ranks)].max(axis=0) - others, work[list(ranks)].mean(axis=0) - others
    causes = []
    for begin, end in raised(levels_of(lag, series.step_s), NOTICEABLE * series.step_s):
        if float(np.mean(usual[begin:end] > 0)) < 0.8:
            continue
        share = _share_of_part(series, lag, begin, end)
        phase, named = _lagging_phase(series, ranks, begin, end), ranks if len(ranks) > 1 else ()
        ends = _ends(series, begin, end)
        causes.append(StepCause("slow_rank", phase, rank, share, *ends, count=end - begin, ranks=named))
    return causes


def _ends(series: _Series, begin: int, end: int) -> tuple[int | None, int | None]:
    since = int(series.steps[begin]) if begin else None
    return since, int(series.steps[end - 1]) if end < len(series.steps) else None


def _lagging_phase(series: _Series, ranks: tuple[int, ...], begin: int, end: int) -> str:
    """The phase in which the ranks lose most against the others."""
    lost = {
        name: float(values[list(ranks), begin:end].mean() - np.delete(values, ranks, axis=0)[:, begin:end].mean())
        for name, values in series.phases.items()
        if name != "aggregate"
    }
    return max(lost, key=lambda name: lost[name])


def _slowdowns(series: _Series) -> list[StepCause]:
    """Stretches in which the work of every rank is longer than it was before."""
    least = series.work.min(axis=0)
    levels = levels_of(least, series.step_s)
    causes = []
    for begin, end in raised(levels[1:], (1 + SLOWER_BY) * levels[0][2]):
        change = {
            name: float((values[:, begin:end].mean(axis=1) - values[:, : levels[0][1]].mean(axis=1)).min())
            for name, values in series.phases.items() if name != "aggregate"
        }  # fmt: skip
        share = _share_of_part(series, least - levels[0][2], begin, end)
        rank = None if len(series.work) > 1 else 0
        phase = max(change, key=lambda name: change[name])
        causes.append(StepCause("slowdown", phase, rank, share, *_ends(series, begin, end), count=end - begin))
    return causes


def _exchange_rises(series: _Series, setting: Setting) -> tuple[list[StepCause], Floats]:
    """Stretches in which the exchange lengthens the steps more than in the others; and the exchange without that."""
    values, whole, reason = series.exchange, series.seconds.max(axis=0), exchange_reason(setting)
    levels = levels_of(values, series.step_s) if series.computes else []
    usual = min((level for _, _, level in levels), default=0.0)
    causes, rest = [], values.copy()
    for begin, end in raised(levels, usual + SLOWER_BY * series.step_s):
        inside = np.isin(np.arange(len(values)), np.arange(begin, end))
        longer = float(whole[inside].mean() - whole[~inside].mean())
        if longer < 0.5 * float(values[inside].mean() - usual):
            continue  # what hid the exchange became shorter
        share, ends = _share_of_part(series, values - usual, begin, end), _ends(series, begin, end)
        causes.append(StepCause("aggregate", "aggregate", None, share, *ends, count=end - begin, reason=reason))
        rest[inside] = np.minimum(rest[inside], usual)
    return causes, rest


# Causes that are present in all steps.


def _steady(series: _Series, setting: Setting) -> list[StepCause]:
    causes, exchange = _exchange_rises(series, setting)
    for phase, limit in STEADY.items():
        if phase != "io" and not series.computes:
            continue
        values = exchange if phase == "aggregate" else series.phases[phase].min(axis=0)
        share = _share(values, series.step_s)
        needless = phase == "aggregate" and setting.searches  # a search that finds nothing is a cause at any cost
        if share.value >= (NOTICEABLE if needless else limit):
            kind: CauseKind = "io" if phase == "io" else "aggregate" if phase == "aggregate" else "other"
            why = exchange_reason(setting) if phase == "aggregate" else ""
            causes.append(StepCause(kind, phase, None, share, None, None, count=len(series.steps), reason=why))
    return causes


def _settings(series: _Series, setting: Setting, stalls: Sequence[StepCause]) -> list[StepCause]:
    """Costs of the settings in every step: a small batch, too many threads, garbage collection without stalls."""
    causes, work, update = [], series.work.min(axis=0), series.phases["update"].min(axis=0)
    if float(update.mean()) >= UPDATING * float(work.mean()):
        waits = setting.staged or setting.sharded  # their exchanges do not become rarer with larger batches
        exchange = 0.0 if waits else series.phases["aggregate"].min(axis=0)
        each = _share(update + exchange, series.step_s)
        causes.append(StepCause("batch", "update", None, each, None, None, count=len(work)))
    if setting.crowding >= CROWDED:  # what of the compute it costs, one setting does not tell
        compute = _share(series.phases["forward"].min(axis=0) + series.phases["backward"].min(axis=0), series.step_s)
        causes.append(StepCause("threads", "any", None, compute, None, None, count=len(work)))
    if setting.collecting >= NOTICEABLE and not any(cause.kind == "collections" for cause in stalls):
        found = Interval(setting.collecting, setting.collecting, setting.collecting)
        causes.append(StepCause("collections", "other", None, found, None, None))
    return causes
