"""Two sides of a comparison: stored launches, files of other tools; compared by launches, or else by their steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from paceline.errors import InputError
from paceline.explain.imports import Labels, import_files
from paceline.measurements.results import Usage, usage_of_group
from paceline.measurements.run import Run
from paceline.measurements.store import Store
from paceline.measurements.summary import Comparison, compare, compare_steps
from paceline.measurements.tables import LaunchRates, clean_steps, throughputs_where
from paceline.measurements.trace.observed import BATCH_UNKNOWN

__all__ = ["ComparedSide", "compare_sides", "side_of"]

ALIKE = ("network", "ranks", "batch", "cluster")
"""Fields whose difference between two sides is noted, because it is not what is compared."""


@dataclass(frozen=True)
class ComparedSide:
    """Launches of one side."""

    name: str
    launches: LaunchRates
    steps: list[list[float]]
    """Seconds of the steps of each launch."""

    @property
    def usage(self) -> Usage | None:
        """The throughput as people count it."""
        return usage_of_group(self.launches)

    @property
    def unknown(self) -> int:
        """Number of launches whose batch is not known."""
        return sum(map(_lacks_batch, self.launches.runs))


def side_of(names: Sequence[str], store: Store) -> ComparedSide:
    """The launches that meet each of these conditions, or else that file or folder, imported for this comparison."""
    found = [_launches(name, store) for name in names]
    rates, rounds = ([one for side in found for one in getattr(side.launches, field)]
                     for field in ("samples_per_s", "rounds"))  # fmt: skip
    runs = [run for side in found for run in side.launches.runs]
    if len({run.id for run in runs}) < len(runs):
        raise InputError(f"{' '.join(names)}: a launch is named twice", hint="name each launch of a side once")
    return ComparedSide(
        " ".join(names), LaunchRates(rates, rounds, runs), [one for side in found for one in side.steps]
    )


def _launches(name: str, store: Store) -> ComparedSide:
    path = Path(name)
    if path.exists() and not (store.root.is_dir() and throughputs_where(store, name).runs):
        with TemporaryDirectory() as folder:
            imported = import_files([path], Store(Path(folder)), Labels())
            if imported.campaign is None:
                raise InputError(f"{path} has no steps to compare: it is of kind {imported.kind}",
                                 hint="give logs or traces of trainings")  # fmt: skip
            return _stored(name, f"campaign={imported.campaign}", Store(Path(folder)))
    return _stored(name, name, store)


def _stored(name: str, conditions: str, store: Store) -> ComparedSide:
    launches = throughputs_where(store, conditions)
    if not launches.runs:
        hint = "`paceline show --list` lists what is stored; or name a log or a trace"
        raise InputError(f"no successful launch matches {name!r}", hint=hint)
    ids = [run.id for run in launches.runs]
    steps = clean_steps(store, ids)
    return ComparedSide(name, launches, [steps.get(run, []) for run in ids])


def compare_sides(sample: ComparedSide, base: ComparedSide, confidence: float) -> tuple[Comparison, list[str]]:
    """The comparison by launches, or by steps where launches are too few; and what to know about it."""
    notes, rates = _notes(sample, base), [side.launches.samples_per_s for side in (sample, base)]
    if sample.unknown:
        tokens = [_tokens_per_s(side) for side in (sample, base)]
        rates = rates if None in tokens else [rate or [] for rate in tokens]
        what = "steps/s, right if all launches have the same batch" if None in tokens else "the tokens/s of the logs"
        notes.insert(0, f"no batch is known: the ratio is that of {what}")
    rounds = (sample.launches.rounds, base.launches.rounds)
    result = compare(*rates, confidence=confidence, rounds=rounds)
    if result.verdict != "too few launches":
        return result, notes
    timed = [list(zip(rate, side.steps, strict=True)) for rate, side in zip(rates, (sample, base), strict=True)]
    by_steps = compare_steps(*timed, confidence=confidence)
    return by_steps or result, notes


def _tokens_per_s(side: ComparedSide) -> list[float] | None:
    """Tokens per second of each launch over all its steps; None if a log does not state them."""
    tokens = [run.facts.get("tokens_per_step", 0.0) * run.facts.get("devices", 1) for run in side.launches.runs]
    return [each / mean(steps) for each, steps in zip(tokens, side.steps, strict=True)] if all(tokens) else None


def _notes(sample: ComparedSide, base: ComparedSide) -> list[str]:
    """Differences between observed sides; raises an error if the batch is known for one side only."""
    runs = [*sample.launches.runs, *base.launches.runs]
    unknown = sample.unknown + base.unknown
    if 0 < unknown < len(runs):
        which = next(filter(_lacks_batch, runs))
        raise InputError(f"the batch of {unknown} of {len(runs)} launches is not known, that of {which.study} for one: "
                         "steps of one cannot be compared with samples of the other",
                         hint="import them again, all with --batch")  # fmt: skip
    differ = [words for field in ALIKE if (words := _differs(field, sample.launches.runs, base.launches.runs))]
    return [f"the sides differ: {'; '.join(differ)}"] if differ and any(run.is_observed for run in runs) else []


def _lacks_batch(run: Run) -> bool:
    return any(label.startswith(BATCH_UNKNOWN) for label in run.labels)


def _differs(field: str, ours: Sequence[Run], theirs: Sequence[Run]) -> str:
    one, other = ({str(getattr(run, field)) for run in runs} for runs in (ours, theirs))
    return "" if one == other else f"{field} {', '.join(sorted(one))} against {', '.join(sorted(other))}"
