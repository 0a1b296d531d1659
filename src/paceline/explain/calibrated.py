"""The model calibrated with a campaign's own runs: for its curves with all of them, for a residual without its case."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from paceline.explain.evidence import CaseEvidence
from paceline.measurements.profile import Profile
from paceline.measurements.store import Store
from paceline.model.calibrate import fit_distributed, label_of, swept_calibration
from paceline.model.calibration import CATALOG_ONLY, Calibration

__all__ = ["NO_SWEEPS", "Owned", "Sweeps", "own_calibrations", "sweeps_of"]

Sweeps = Mapping[str, Calibration]
NO_SWEEPS: Sweeps = MappingProxyType({})
MOST_HELD_OUT = 24
"""Cases of a group up to which each is predicted by a fit to the others; with more, the catalog says as much."""

MOST_FITTED = 48
"""Cases that a calibration is fitted to, evenly taken from more."""


@dataclass(frozen=True)
class Group:
    """Cases of one cluster and framework on several ranks, and the profiles that they start from."""

    many: tuple[CaseEvidence, ...]
    profiles: dict[str, Profile]
    swept: Calibration

    def fitted(self, cases: Sequence[CaseEvidence], words: str) -> Calibration:
        """Calibrated with these cases; the catalog where there is none."""
        if not cases:
            return self.swept
        collectives = len(self.swept.collectives)
        swept = f", {collectives} swept collectives" if collectives else ""
        start = replace(self.swept, source=f"{words}{swept}")
        return fit_distributed(start, [case.launches for case in cases], self.profiles).calibration


@dataclass(frozen=True)
class Owned:
    """Calibrations by what they may know."""

    groups: dict[tuple[object, ...], Group]
    whole: dict[tuple[object, ...], Calibration] = field(default_factory=dict)

    def everything(self, case: CaseEvidence) -> Calibration:
        """With every case of its group on several ranks."""
        key = _key(case)
        if key not in self.whole:
            every = self.groups[key].many
            many = every[:: max(1, -(-len(every) // MOST_FITTED))]
            some = f"{len(many)} of " if len(many) < len(every) else ""
            words = "this study's own case" if len(every) == 1 else f"{some}this study's own {len(every)} cases"
            self.whole[key] = self.groups[key].fitted(many, f"{words} on several ranks")
        return self.whole[key]

    def without(self, case: CaseEvidence) -> Calibration:
        """Without the case itself."""
        group = self.groups[_key(case)]
        if case not in group.many:
            return self.everything(case)
        others = [item for item in group.many if item is not case] if len(group.many) <= MOST_HELD_OUT else []
        words = "the other case" if len(others) == 1 else f"the other {len(others)} cases"
        return group.fitted(others, f"{words} of this study on several ranks")


def own_calibrations(series: Sequence[tuple[Sequence[CaseEvidence], Profile | str]], sweeps: Sweeps) -> Owned:
    """What each series of a campaign, with its profile, can be calibrated with."""
    many: dict[tuple[object, ...], list[CaseEvidence]] = defaultdict(list)
    profiles: dict[tuple[object, ...], dict[str, Profile]] = defaultdict(dict)
    for cases, profile in series:
        key = _key(cases[0])
        if isinstance(profile, Profile):
            profiles[key][label_of(cases[0].launches)] = profile
            many[key] += [case for case in cases if case.run.ranks > 1 and case.launches.steps]
    known = {key: sweeps.get(str(key[0]), CATALOG_ONLY) for key in profiles}
    return Owned({key: Group(tuple(many[key]), profiles[key], known[key]) for key in profiles})


def _key(case: CaseEvidence) -> tuple[object, ...]:
    run = case.run
    return (run.cluster, run.framework, run.input, run.launcher)


def sweeps_of(store: Store, cases: Sequence[CaseEvidence]) -> Sweeps:
    """What the collective sweeps that the store holds tell of the clusters of these cases."""
    if not store.read_campaigns("collectives"):
        return NO_SWEEPS
    found = {name: swept_calibration(store, name) for name in {case.run.cluster for case in cases}}
    return {name: swept for name, swept in found.items() if swept.collectives}
