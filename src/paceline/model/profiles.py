"""Profiles of stored one-rank runs: spans give the division of a step over layers, clean passes its duration."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median, median_low

import numpy as np
from pydantic import ValidationError

from paceline.errors import Unsupported
from paceline.measurements.profile import Profile, ProfiledHost, ProfiledLayer
from paceline.measurements.results import Launches, median_phases
from paceline.measurements.run import Run
from paceline.measurements.sql import open_views
from paceline.measurements.store import Store
from paceline.measurements.summary import split_closes
from paceline.measurements.trace.kineto import GRADIENT
from paceline.spec.cluster import Cluster, place

__all__ = ["Row", "alone", "profile_from", "profile_of"]

MOST_JITTER = 0.2
"""More is other load on the machine, not the device."""

WATCH = "watch the same training on one rank (`paceline watch -- python train.py`), then predict --from that"
Row = tuple[str, str, float, float, int | None]


def profile_of(store: Store, launches: Launches) -> Profile:
    """The profile of a case that ran on one rank."""
    runs = [item.id for item in launches.counted]
    profile = profile_from(_one_rank(store, launches, runs), _spans(store, runs), jitter=_jitter(store, runs))
    return profile.model_copy(update={"crowd": _crowd(launches.first)})


def alone(run: Run) -> bool:
    """Whether no rank of the run exchanges anything with another, so that its times are those of one device."""
    return run.ranks == 1 or run.case["strategy"].get("aggregation") == "none"


def _crowd(run: Run) -> int:
    """Ranks on the fullest host."""
    cluster = Cluster.model_validate_json(json.dumps(run.case["cluster"]))
    hosts = [rank.host for rank in place(cluster, run.ranks, spread=run.case.get("placement") == "spread")]
    return max(hosts.count(host) for host in hosts)


def _one_rank(store: Store, launches: Launches, runs: list[str]) -> Launches:
    """The launches with the times of a typical rank, where several computed side by side without waiting."""
    if launches.first.ranks == 1:
        return launches
    with open_views(store, runs) as connection:
        rows = connection.execute(
            "SELECT run, pass_name, median(seconds) FROM steps WHERE NOT warmup GROUP BY run, pass_name"
        ).fetchall()
    passes: dict[str, dict[str, float]] = defaultdict(dict)
    for run, name, seconds in rows:
        passes[run][name] = seconds
    steps = tuple(one["clean"] for one in passes.values())
    return replace(launches, steps=steps, passes=tuple(one for one in passes.values() if len(one) > 1))


def profile_from(launches: Launches, rows: list[Row], *, jitter: float) -> Profile:
    """The profile of spans that are read already: phase, name, median seconds and start, bytes of each."""
    run = launches.first
    if not alone(run) and not run.is_observed:
        raise Unsupported(
            f"{run.id} ran on {run.ranks} ranks, a profile needs one",
            hint='run the case with devices = [1], or with aggregation = "none"',
        )
    if not rows or not launches.passes:
        raise Unsupported(
            f"{run.network} on {run.framework} has no spans of its layers",
            hint=WATCH if run.is_observed else "run it with phase_steps above 0 in the protocol",
        )
    try:
        return _profile(launches, rows, jitter)
    except ValidationError as error:
        first = error.errors()[0]
        what = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        raise Unsupported(f"the layers of {run.id} make no profile: {what}", hint=WATCH) from None
    except ZeroDivisionError:
        raise Unsupported(f"the layers of {run.id} make no profile: they took no time", hint=WATCH) from None


def _profile(launches: Launches, rows: list[Row], jitter: float) -> Profile:
    run = launches.first
    passes = {name: median(p[name] for p in launches.passes if name in p) for name in launches.passes[0]}
    missing = sorted({"forward", "compute", *(("resident", "full") if run.is_observed else ())} - set(passes))
    if missing:
        raise Unsupported(f"{run.id} has no pass {missing[0]!r}, which a profile needs")
    clean = median(launches.steps)
    update = max(0.0, clean - passes["compute"] if not run.is_observed else _own_update(passes, clean))
    forward, backward = _halves(rows, passes)
    within = min(1.0, clean / passes["compute"])  # a part that was timed in a slower moment is not longer than the step
    layers, ready = _layers(rows, within * forward, within * backward)
    work = run.facts.get("work") or {}
    if work:
        nothing = {"kind": "elementwise", "macs": 0.0, "moved": 0.0}
        layers = tuple(layer.model_copy(update=work.get(layer.name, nothing)) for layer in layers)
    return Profile(
        network=run.network,
        device=str(run.case["cluster"]["hosts"][0]["devices"][0]["name"]),
        batch=run.batch,
        layers=layers,
        ready=ready,
        update=update,
        h2d=max(0.0, passes["copied"] - passes["resident"]) if "copied" in passes else 0.0,
        io=max(0.0, passes["full"] - passes["copied"]) if "full" in passes else 0.0,
        host=_host(run),
        precision=run.facts.get("precision") if work else run.case["strategy"].get("precision"),
        jitter=min(MOST_JITTER, jitter),
        uncertainty=min(1.0, _between(launches.steps)),
        source=f"{len(launches.steps)} launches of {run.study}, {run.framework}{_doubt(launches)}",
    )


def _halves(rows: list[Row], passes: dict[str, float]) -> tuple[float, float]:
    """Seconds of forward and backward; spans split compute where other load made the forward pass longer than it."""
    forward, compute = passes["forward"], passes["compute"]
    if forward < compute:
        return forward, compute - forward
    share = sum(row[2] for row in rows if row[0] == "forward") / sum(row[2] for row in rows)
    return share * compute, (1 - share) * compute


def _own_update(passes: dict[str, float], clean: float) -> float:
    """The update, and the user's own code between steps, which nothing hides either."""
    return passes["resident"] - passes.get("exchange", passes["compute"]) + max(0.0, clean - passes["full"])


def _host(run: Run) -> ProfiledHost | None:
    """The processor that computed, with the rates that the worker measured; none for other devices."""
    device = run.case["cluster"]["hosts"][0]["devices"][0]
    if device["kind"] != "cpu" or device.get("emulation") or not run.machine.threads:
        return None
    found = run.facts.get("host") or {}
    rates = {name: found[name] for name in ("peak", "bandwidth", "thread_gain") if found.get(name)}
    return ProfiledHost(cores=run.machine.cores, threads=run.machine.threads, **rates)


def _doubt(launches: Launches) -> str:
    """Notes for users of the profile."""
    phases = median_phases(launches.passes)
    closes = launches.first.is_observed or (split_closes(phases) and phases["backward"] > 0)
    return "" if closes else "; their phases do not close within 5 % of the step: not to be trusted"


def _spans(store: Store, runs: list[str]) -> list[Row]:
    with open_views(store, runs) as connection:
        rows: list[Row] = connection.execute(
            """SELECT phase, name, median(seconds), median(start_s), max(size_bytes) FROM spans
               WHERE rank = 0 AND phase IN ('forward', 'backward') GROUP BY phase, name"""
        ).fetchall()
        if not rows or any(row[1] not in (row[0], GRADIENT) for row in rows):
            return rows
        exchanges = connection.execute(
            """SELECT run, step, lower(name), start_s, size_bytes FROM spans
               WHERE rank = 0 AND (phase = 'aggregate' OR name = ?) ORDER BY run, step, start_s""",
            [GRADIENT],
        ).fetchall()
    return _bucket_rows(exchanges, begin=min(row[3] for row in rows if row[0] == "backward"))


def _bucket_rows(exchanges: list[tuple[str, int, str, float, int | None]], begin: float) -> list[Row]:
    """A trace without layers: each gradient, or the gradients of each all-reduce, as a layer, whose backward ends when
    it is ready or sent."""
    steps: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
    for run, step, name, start, size in exchanges:
        if "all_gather" in name or "allgather" in name or "reduce_scatter" in name or "reducescatter" in name:
            raise Unsupported("the ranks of this trace had shards of the layers", hint=WATCH)
        if ("all_reduce" in name or "allreduce" in name or name == GRADIENT) and size:
            steps[run, step].append((start, size))
    if not steps:
        raise Unsupported(
            "this trace does not contain the layers and the sizes of their gradients",
            hint=f"torch.profiler.profile(record_shapes=True, ...) states the sizes; or {WATCH}",
        )
    count = median_low(len(found) for found in steps.values())
    usual = [found for found in steps.values() if len(found) == count]
    sent = [median(found[place][0] for found in usual) for place in range(count)]
    seconds = [max(1e-6, late - early) for early, late in pairwise([begin, *sent])]
    forward: list[Row] = [("forward", f"bucket {n}", seconds[n], float(-n), None) for n in range(count)]
    sizes = [median_low(found[place][1] for found in usual) for place in range(count)]
    return [*forward, *(("backward", f"bucket {n}.gradients", seconds[n], sent[n], sizes[n]) for n in range(count))]


def _jitter(store: Store, runs: list[str]) -> float:
    """Standard deviation of a step about its launch's mean, as a share of it; robust to single long steps."""
    with open_views(store, runs) as connection:
        rows = connection.execute(
            """SELECT quantile_cont(seconds, 0.75) - quantile_cont(seconds, 0.25), median(seconds) FROM steps
               WHERE pass_name = 'clean' AND NOT warmup GROUP BY run"""
        ).fetchall()
    return float(median(width / 1.349 / middle for width, middle in rows)) if rows else 0.01


def _between(steps: Sequence[float]) -> float:
    """Standard error of the mean over launches; large for a single launch."""
    if len(steps) < 2:
        return 0.05
    return float(max(0.005, np.std(steps, ddof=1) / np.mean(steps) / np.sqrt(len(steps))))


def _layers(rows: list[Row], forward: float, backward: float) -> tuple[tuple[ProfiledLayer, ...], tuple[str, ...]]:
    """Layers in forward order, scaled to the clean passes, and their names in the order of readiness."""
    ahead = sorted((row for row in rows if row[0] == "forward"), key=lambda row: row[3])
    behind = sorted((row for row in rows if row[0] == "backward"), key=lambda row: row[3])
    gradients: dict[str, list[Row]] = defaultdict(list)
    for row in behind:
        gradients[row[1].rpartition(".")[0]].append(row)
    scale_f = forward / sum(row[2] for row in ahead)
    scale_b = backward / sum(row[2] for row in behind)
    names = [row[1] for row in ahead]
    missing = [name for name in gradients if name not in names]
    seconds = {row[1]: row[2] * scale_f for row in ahead}
    layers = tuple(
        ProfiledLayer(
            name=name,
            forward=seconds.get(name, 0.0),
            backward=sum(row[2] for row in gradients.get(name, [])) * scale_b,
            gradients=tuple(float(row[4] or 0) for row in gradients.get(name, [])),
        )
        for name in [*names, *missing]
    )
    plain = [layer.name for layer in reversed(layers) if layer.name not in gradients]
    return layers, (*plain, *gradients)
