"""How often intervals called 95 % hold the truth: simulated launches of known truth, through the product itself.

    .venv/bin/python benchmarks/interval_coverage.py                      20,000 trials of each line (15 min)
    .venv/bin/python benchmarks/interval_coverage.py --trials 2000        a quick look

The truth is the median throughput of launches on a machine at its usual speed, after warm-up. Launches vary by 1 %.

normal           launches are log-normal
slow outliers    every tenth launch is slower, by 5 % on average (exponential); often: every fifth by 5 to 20 %
drift            one launch in ten runs on a machine that is 3 to 10 % slower; its probe is off by 0.5 %
warm-up          steps begin 20 % too slow and approach their time over 30 steps; single steps vary by 1, 2 or 5 %
stopping         n launches, then more until the interval is 2 % wide or 20 ran; launches vary by 0.5 to 3 %
ratio            two cases with n launches each; rounds: both share a disturbance of 5 % in every round

The last lines are not judged. If every fifth launch drifts, half of ten do in one campaign of thirty, and then the
machine has no usual speed. If launches vary by 5 %, the limit of 20 ends every case, and its interval is a little too
wide. And no interval of a few launches can hold the mean of launches with outliers: most samples of five contain none.
Exits with 1 unless every other line holds 93 to 97 %.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from lib.result import Figure, parser_of, publish
from numpy.typing import NDArray

from paceline.bench import campaign
from paceline.bench.frameworks import harness
from paceline.measurements.run import Run, counted, with_drift
from paceline.measurements.summary import Interval, median_interval, speedup_interval
from paceline.spec.study import Protocol

Floats = NDArray[np.float64]
Generator = np.random.Generator
Trial = Callable[[Generator, int], Interval]
"""The interval that one campaign of n launches reports."""

LAUNCHES = (3, 5, 10)
HELD = (0.93, 0.97)
NOISE = 0.01
POOL = 600
"""Simulated launches with warm-up, from which campaigns draw: a launch takes hundreds of simulated steps."""
JOB = {"warmup": 10, "tolerance": Protocol().width / 2, "launch_budget": 1e9, "input": "resident", "phases": False,
       "passes": [], "phase_steps": 0}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    name: str
    trial: Trial
    truth: float = 1.0
    judged: bool = True


def normal(rng: Generator, count: int) -> Interval:
    """Log-normal launches."""
    return median_interval(np.exp(rng.normal(0, NOISE, count)).tolist())


def _outliers(rng: Generator, count: int, *, often: bool = False) -> Floats:
    hit = rng.random(count) < (0.2 if often else 0.1)
    slower = rng.uniform(0.05, 0.2, count) if often else rng.exponential(0.05, count)
    return np.asarray(np.exp(rng.normal(0, NOISE, count) - hit * slower))


def slow_outliers(rng: Generator, count: int, *, often: bool = False) -> Interval:
    """Some launches are disturbed, and nothing but their throughput shows it."""
    return median_interval(_outliers(rng, count, often=often).tolist())


def drift(rng: Generator, count: int, *, share: float = 0.1) -> Interval:
    """Some launches run on a slower machine, and the probe before them shows it."""
    slower = (rng.random(count) < share) * rng.uniform(0.03, 0.1, count)
    rates = np.exp(rng.normal(0, NOISE, count) - slower)
    probes = np.exp(slower + rng.normal(0, 0.005, count))
    fields: dict[str, Any] = {"campaign": "simulated", "outcome": "ok", "drift": None, "drift_limit": Protocol().width}
    runs = [Run.model_construct(launch=k, probe_s=float(probe), **fields) for k, probe in enumerate(probes)]
    return median_interval([float(rates[run.launch]) for run in counted(with_drift(runs))])


class Steps(harness.Session):
    """A framework whose steps become faster: the harness times them by the simulated clock."""

    def __init__(self, rng: Generator, noise: float) -> None:
        self.now = 0.0
        self._times = iter(1 + 0.2 * np.exp(-np.arange(1000) / 30) + rng.normal(0, noise, 1000))

    def step(self, upto: str) -> None:
        """One step takes its time."""
        self.now += float(next(self._times))


@contextlib.contextmanager
def simulated_clock(session: Steps) -> Iterator[None]:
    """The harness reads the time of the session."""
    real = harness.time
    harness.time = SimpleNamespace(perf_counter=lambda: session.now)  # type: ignore[assignment]
    try:
        yield
    finally:
        harness.time = real


def launched(rng: Generator, noise: float) -> float:
    """Throughput of one launch of 100 timed steps after warm-up, as the harness measures it."""
    session, alone = Steps(rng, noise), harness.ControlChannel(0, [])
    with simulated_clock(session):
        harness._warm_up(JOB, session, alone, "resident")
        rows, _ = harness._alternate(JOB, session, alone, (100, 0), math.inf)
    return len(rows) / sum(seconds for _, seconds in rows)


def warm_up(noise: float, pool: int) -> Trial:
    """Campaigns of launches that all begin too slow."""
    launches = [launched(np.random.default_rng(seed), noise) for seed in range(pool)]
    return lambda rng, count: median_interval(
        (rng.choice(launches, count) * np.exp(rng.normal(0, NOISE, count))).tolist()
    )


def stopping(noise: float, rates: Callable[[Generator, int], Floats] | None = None) -> Trial:
    """Campaigns whose own interval decides how many launches there are."""

    def trial(rng: Generator, count: int) -> Interval:
        protocol = Protocol(launches=count)
        most = protocol.max_launches
        all_rates = (rates(rng, most) if rates else np.exp(rng.normal(0, noise, most))).tolist()
        for number in range(count, most + 1):
            state: Any = SimpleNamespace(failures=0, unsustained=0, launched=number)
            if campaign._stop_reason(state, all_rates[:number], protocol):
                break
        return median_interval(all_rates[:number], pilot=count)

    return trial


def ratio(rng: Generator, count: int) -> Interval:
    """Two cases of other noise, one of them 1.5 times as fast."""
    ours, theirs = 1.5 * np.exp(rng.normal(0, NOISE, count)), np.exp(rng.normal(0, 3 * NOISE, count))
    return speedup_interval(ours.tolist(), theirs.tolist())


def rounds(rng: Generator, count: int) -> Interval:
    """The same, launched in rounds that share their disturbances."""
    shared, numbers = rng.normal(0, 0.05, count), range(count)
    ours, theirs = 1.5 * np.exp(shared + rng.normal(0, NOISE, count)), np.exp(shared + rng.normal(0, NOISE, count))
    return speedup_interval(ours.tolist(), theirs.tolist(), rounds=(numbers, numbers))


def coverage(line: Line, count: int, trials: int, *, seed: int = 0) -> float:
    """Share of trials whose interval holds the truth."""
    rng = np.random.default_rng([seed, count])
    intervals = (line.trial(rng, count) for _ in range(trials))
    return sum(interval.low <= line.truth <= interval.high for interval in intervals) / trials


def lines(pool: int = POOL) -> list[Line]:
    """The table."""
    rng = np.random.default_rng(1)
    few, many = _outliers(rng, 1_000_000), _outliers(rng, 1_000_000, often=True)
    often: Trial = lambda rng, count: slow_outliers(rng, count, often=True)  # noqa: E731
    return [
        Line("normal", normal),
        Line("slow outliers", slow_outliers, float(np.median(few))),
        Line("slow outliers, often", often, float(np.median(many))),
        Line("drift", drift),
        *(Line(f"warm-up, steps vary by {noise:.0%}", warm_up(noise, pool)) for noise in (0.01, 0.02, 0.05)),
        *(Line(f"stopping, launches vary by {noise:.1%}", stopping(noise)) for noise in (0.005, 0.01, 0.02, 0.03)),
        Line("stopping, slow outliers", stopping(NOISE, _outliers), float(np.median(few))),
        Line("ratio", ratio, 1.5),
        Line("ratio, rounds", rounds, 1.5),
        Line("drift of every fifth launch", lambda rng, count: drift(rng, count, share=0.2), judged=False),
        Line("stopping, launches vary by 5.0%", stopping(0.05), judged=False),
        Line("mean of launches with slow outliers", slow_outliers, float(np.exp(np.log(few).mean())), judged=False),
        Line("the same, often", often, float(np.exp(np.log(many).mean())), judged=False),
    ]


def main() -> int:
    """Print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--trials", type=int, default=20_000)
    args = parser.parse_args()
    figures, passed = [], True
    for line in lines():
        held = {count: coverage(line, count, args.trials) for count in LAUNCHES}
        figures += [Figure(f"{line.name}, n = {count}", 100 * share, "%") for count, share in held.items()]
        passed &= not line.judged or all(HELD[0] <= share <= HELD[1] for share in held.values())
    return publish(args, figures, turns=[], passed=passed)


if __name__ == "__main__":
    sys.exit(main())
