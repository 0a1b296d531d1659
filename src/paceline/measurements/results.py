"""Results of a campaign by case: throughput, scaling, phases, failures, with intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from paceline.errors import InputError, UnknownName
from paceline.measurements.run import Run, counted
from paceline.measurements.store import Store
from paceline.measurements.summary import Interval, median_interval, phases_of, speedup_interval, split_closes
from paceline.measurements.tables import PassTime, pass_times

__all__ = [
    "CaseResult",
    "Launches",
    "campaign_results",
    "find_campaign",
    "load_launches",
    "median_phases",
    "results_of",
]


@dataclass(frozen=True)
class Launches:
    """All launches of one case in one campaign."""

    runs: tuple[Run, ...]
    counted: tuple[Run, ...]
    """The launches whose numbers follow: successful and not drifted (`run.counted`)."""
    throughputs: tuple[float, ...]
    """Samples per second of each launch that counts."""
    steps: tuple[float, ...]
    """Median step of each launch that counts, in seconds."""
    passes: tuple[dict[str, float], ...]
    """Median seconds by pass, of each launch that counts and has instrumented passes."""
    num_steps: int

    @property
    def first(self) -> Run:
        """A run of the case, for its parameters."""
        return self.runs[0]

    @property
    def rounds(self) -> tuple[int, ...]:
        """The round of each launch that counts: a round of a campaign launches every case once."""
        return tuple(run.launch for run in self.counted)


@dataclass(frozen=True)
class CaseResult:
    """One row of the results."""

    run: Run
    """A run of the case, for its parameters."""
    num_launches: int
    num_failed: int
    num_drifted: int
    """Number of successful launches that drifted."""
    num_counted: int
    """Number of launches behind the numbers: without those that failed, and without those that drifted."""
    num_steps: int
    throughput: Interval | None
    """Samples per second of all ranks together; None if every launch failed."""
    step_s: Interval | None
    speedup: Interval | None
    """Relative to the base case; None without a base case."""
    base_ranks: int | None
    efficiency: float | None
    phases: dict[str, float]
    """Exposed seconds by phase, median over launches; they sum to the step."""
    instrument_overhead: float | None
    """Relative slowdown of the step in the instrumented pass."""
    native: dict[str, float]
    """Seconds according to the framework's own timers, for comparison."""

    @property
    def closes(self) -> bool:
        """Whether the phases can be trusted: they sum to the step without a large remainder."""
        return split_closes(self.phases)

    @property
    def shares(self) -> dict[str, float]:
        """Phases as shares that sum to one."""
        total = sum(self.phases.values())
        return {name: value / total for name, value in self.phases.items()} if total else {}


def find_campaign(store: Store, study: str | None) -> str:
    """The id of the newest campaign of a study, or of all studies; the id of a campaign is returned unchanged."""
    campaigns = store.read_campaigns()
    if not campaigns:
        raise InputError(f"no runs in {store.root}", hint="`paceline run examples/studies/demo.toml` measures some")
    ids = [str(document["campaign"]) for document in campaigns]
    if study is None:
        return ids[-1]
    if study in ids:
        return study
    of_study = [str(document["campaign"]) for document in campaigns if document["study"] == study]
    if not of_study:
        raise UnknownName("study or campaign", study, {str(document["study"]) for document in campaigns})
    return of_study[-1]


def load_launches(store: Store, campaign: str) -> list[Launches]:
    """The launches of a campaign by case, cases in the order of their first launch."""
    cases: dict[str, list[Run]] = defaultdict(list)
    for run in store.read_all(campaign=campaign):
        cases[run.case_id].append(run)
    good = [run for runs in cases.values() for run in runs if run.outcome == "ok"]
    passes: dict[str, dict[str, PassTime]] = defaultdict(dict)
    for item in pass_times(store, [run.id for run in good]):
        passes[item.run][item.pass_name] = item
    return [_launches(runs, passes) for runs in cases.values()]


def _launches(runs: list[Run], passes: dict[str, dict[str, PassTime]]) -> Launches:
    used = [run for run in counted(runs) if "clean" in passes.get(run.id, {})]
    clean = [passes[run.id]["clean"] for run in used]
    split = [passes[run.id] for run in used if len(passes[run.id]) > 1]
    return Launches(
        runs=tuple(runs),
        counted=tuple(used),
        throughputs=tuple(item.samples_per_s for item in clean),
        steps=tuple(item.median_s for item in clean),
        passes=tuple({name: item.median_s for name, item in launch.items()} for launch in split),
        num_steps=sum(item.num_steps for item in clean),
    )


def campaign_results(store: Store, campaign: str, *, confidence: float = 0.95) -> list[CaseResult]:
    """One row per case; cases that differ in the number of ranks only are adjacent, fewest ranks first."""
    return results_of(load_launches(store, campaign), confidence=confidence)


def results_of(cases: Iterable[Launches], *, confidence: float = 0.95) -> list[CaseResult]:
    """One row per case of the given launches."""
    launches = sorted(cases, key=lambda item: (*item.first.series, item.first.ranks))
    bases: dict[tuple[object, ...], Launches] = {}
    for item in launches:
        if item.throughputs:
            bases.setdefault(item.first.series, item)
    return [_result(item, bases.get(item.first.series), confidence) for item in launches]


def _result(item: Launches, base: Launches | None, confidence: float) -> CaseResult:
    good, pilot = bool(item.throughputs), item.first.pilot
    speedup = _speedup(item, base, confidence) if good and base else None
    base_ranks = base.first.ranks if base else None
    efficiency = speedup.value * base_ranks / item.first.ranks if speedup and base_ranks else None
    return CaseResult(
        run=next(iter(item.counted), item.first),
        num_launches=len(item.runs),
        num_failed=sum(run.outcome == "failed" for run in item.runs),
        num_drifted=sum(run.drifted for run in item.runs if run.outcome == "ok"),
        num_counted=len(item.counted),
        num_steps=item.num_steps,
        throughput=median_interval(item.throughputs, confidence=confidence, pilot=pilot) if good else None,
        step_s=median_interval(item.steps, confidence=confidence, pilot=pilot) if good else None,
        speedup=speedup,
        base_ranks=base_ranks,
        efficiency=efficiency,
        phases=median_phases(item.passes),
        instrument_overhead=_overhead(item.passes),
        native=_median_timers(item.counted),
    )


def _speedup(item: Launches, base: Launches, confidence: float) -> Interval:
    """Against the base, paired by round; against itself exactly one."""
    if item is base:
        return Interval(1.0, 1.0, 1.0)
    rounds = (item.rounds, base.rounds)
    pilot = item.first.pilot
    return speedup_interval(item.throughputs, base.throughputs, confidence=confidence, rounds=rounds, pilot=pilot)


def median_phases(passes: Sequence[dict[str, float]]) -> dict[str, float]:
    """Phases of the median step, from the median ratio of each pass to the clean step of its launch.

    The differences are taken after the medians: negative differences of two noisy passes are set to zero, so medians of
    differences would sum to more than the step.
    """
    if not passes:
        return {}
    step = median(item["clean"] for item in passes)
    names = {name for item in passes for name in item}
    shares = {name: median(item[name] / item["clean"] for item in passes if name in item) for name in names}
    return phases_of({name: share * step for name, share in shares.items()})


def _overhead(passes: tuple[dict[str, float], ...]) -> float | None:
    last = ("whole", "full", "copied", "resident")
    ratios = [item[next(name for name in last if name in item)] / item["clean"] - 1 for item in passes]
    return median(ratios) if ratios else None


def _median_timers(runs: tuple[Run, ...]) -> dict[str, float]:
    names = {name for run in runs for name in run.timers}
    return {name: median(run.timers[name] for run in runs if name in run.timers) for name in sorted(names)}
