"""Results of a campaign by case: throughput, scaling, phases, failures, with intervals."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pydantic import ValidationError

from paceline import catalog
from paceline.catalog.frameworks import Policy, resolve
from paceline.cost.roofline import input_unit, macs_of, peak_share
from paceline.errors import InputError, UnknownName, Unsupported
from paceline.measurements.run import Run, counted
from paceline.measurements.store import Store
from paceline.measurements.summary import Interval, median_interval, phases_of, speedup_interval, split_closes
from paceline.measurements.tables import LaunchRates, PassTime, pass_times
from paceline.spec.cluster import Cluster, LayerClass, place
from paceline.spec.network import Network
from paceline.spec.strategy import Strategy

__all__ = [
    "CaseResult",
    "Launches",
    "Usage",
    "campaign_results",
    "cluster_of",
    "find_campaign",
    "load_launches",
    "median_phases",
    "policy_of",
    "results_of",
    "strategy_of",
    "usage_of",
    "usage_of_group",
]


def strategy_of(run: Run) -> Strategy:
    """The strategy of the run's case."""
    return Strategy.model_validate_json(json.dumps(run.case.get("strategy", {})))


def policy_of(run: Run) -> Policy | None:
    """The policy of the framework under the run's strategy; None if the framework is not in the catalog."""
    try:
        return resolve(run.framework, strategy_of(run))
    except (UnknownName, ValidationError):
        return None


def cluster_of(run: Run) -> Cluster | None:
    """The cluster of the run's case."""
    try:
        return Cluster.model_validate_json(json.dumps(run.case.get("cluster", {})))
    except ValidationError:
        return None


@dataclass(frozen=True)
class Usage:
    """A throughput as people count it."""

    unit: str
    """`tokens`, `images`, or `samples` of a network that the catalog does not have."""
    per_s: float
    mfu: float | None
    """Share of the devices' peak that the network's own multiply-adds need; None where a peak is not known."""


def usage_of(run: Run, rate: float) -> Usage:
    """Tokens or images per second of this many samples per second of a run, and the share of its devices' peak."""
    network = _network_of(run)
    unit, each = input_unit(network) if network else _watched_unit(run)
    stated, mfu = run.facts.get("tokens_per_s"), run.facts.get("mfu")  # of one device, by an imported log
    if network is None and run.is_observed and (stated or mfu):
        devices = run.facts.get("devices", run.ranks)
        return Usage("tokens", stated * devices, mfu) if stated else Usage(unit, rate, mfu)
    macs = macs_of(network) if network else _counted(run)
    return Usage(unit, rate * each, _mfu(run, macs, rate, run.facts.get("precision")))


def usage_of_group(group: LaunchRates) -> Usage | None:
    """Usage at the median of launches; None if they have different networks or devices."""
    alike = {(run.network, run.cluster, run.ranks, run.framework, run.strategy) for run in group.runs}
    return usage_of(group.runs[0], median(group.samples_per_s)) if len(alike) == 1 else None


def _network_of(run: Run) -> Network | None:
    """The catalog's network of the run, if it is still the same."""
    if run.network not in catalog.network_names():
        return None
    named, asked = catalog.network(run.network), run.case.get("network")
    return named if isinstance(asked, dict) and asked.get("digest") == named.digest else None


def _watched_unit(run: Run) -> tuple[str, int]:
    """Unit and number of units of a sample, by the tensor that the watched model was given."""
    return str(run.facts.get("unit") or "samples"), int(run.facts.get("units_per_sample", 1))


def _counted(run: Run) -> dict[LayerClass, float]:
    """Multiply-adds of a sample by kind of layer, as `paceline watch` counted them."""
    found: dict[LayerClass, float] = defaultdict(float)
    for layer in (run.facts.get("work") or {}).values():
        found[layer["kind"]] += layer["macs"]
    return found


def _mfu(run: Run, macs: Mapping[LayerClass, float], rate: float, precision: str | None) -> float | None:
    cluster, policy = cluster_of(run), policy_of(run)
    if not macs or cluster is None or policy is None or cluster.num_devices < run.ranks:
        return None
    devices = [item.device for item in place(cluster, run.ranks, spread=run.case.get("placement") == "spread")]
    try:
        return peak_share(macs, devices, rate, precision or policy.precision)
    except Unsupported:
        return None


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

    @property
    def by_round(self) -> dict[int, float]:
        """Samples per second of each launch that counts, by its round."""
        return dict(zip(self.rounds, self.throughputs, strict=True))


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
    """Number of launches that count: without failed and without drifted launches."""
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
    usage: Usage | None = None
    """The throughput in tokens or images, and as a share of the peak; None if every launch failed."""

    @property
    def closes(self) -> bool:
        """Whether the phases can be trusted: they sum to the step without a large remainder, or it was measured."""
        return self.run.is_observed or split_closes(self.phases)

    @property
    def shares(self) -> dict[str, float]:
        """Phases as shares that sum to one."""
        total = sum(self.phases.values())
        return {name: value / total for name, value in self.phases.items()} if total else {}


def find_campaign(store: Store, study: str | None) -> str:
    """The id of the newest campaign of a study, or of all studies; the id of a campaign is returned unchanged."""
    campaigns = store.read_campaigns()
    if not campaigns:
        raise InputError(
            f"no runs in {store.root}", hint="`paceline demo` measures some; --store names another directory"
        )
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
    throughput = median_interval(item.throughputs, confidence=confidence, pilot=pilot) if good else None
    return CaseResult(
        run=next(iter(item.counted), item.first),
        num_launches=len(item.runs),
        num_failed=sum(run.outcome == "failed" for run in item.runs),
        num_drifted=sum(run.drifted for run in item.runs if run.outcome == "ok"),
        num_counted=len(item.counted),
        num_steps=item.num_steps,
        throughput=throughput,
        step_s=median_interval(item.steps, confidence=confidence, pilot=pilot) if good else None,
        speedup=speedup,
        base_ranks=base_ranks,
        efficiency=efficiency,
        phases=median_phases(item.passes),
        instrument_overhead=_overhead(item.passes),
        native=_median_timers(item.counted),
        usage=usage_of(item.first, throughput.value) if throughput else None,
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
    repeated = [(next((item[name] for name in last if name in item), None), item["clean"]) for item in passes]
    ratios = [whole / clean - 1 for whole, clean in repeated if whole is not None]
    return median(ratios) if ratios else None


def _median_timers(runs: tuple[Run, ...]) -> dict[str, float]:
    names = {name for run in runs for name in run.timers}
    return {name: median(run.timers[name] for run in runs if name in run.timers) for name in sorted(names)}
