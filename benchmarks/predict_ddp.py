"""Real DDP runs on two ranks here, predicted from what one rank computes alone and a sweep of the all-reduce.

    .venv/bin/python benchmarks/predict_ddp.py                      measure everything (20 min), then report
    .venv/bin/python benchmarks/predict_ddp.py --only resnet20      measure one network, then report
    .venv/bin/python benchmarks/predict_ddp.py --only report        report what --store (results/predict-ddp) holds
    .venv/bin/python benchmarks/predict_ddp.py --on local           over loopback instead of a shaped link

Real compute, real Gloo, real sockets: a virtual cluster of two hosts with a 1 Gb/s link, one core each. In every round
the link is swept and each network is profiled and then run by DDP with three bucket sizes, so that a drifting machine
touches all alike. Of each case the median over its launches counts, and both sides use the same number of launches:
those of the newest rounds in which both were measured. The profile is that of ranks that exchange nothing
(`aggregation = "none"`) while
the other computes too, because both share memory and caches. No DDP run is used for the prediction: fixed cost and
slowdown come from the sweep (copies, processor time). Exits with 1 if the mean absolute error exceeds 5 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from lib.result import Figure, parser_of, publish

from paceline.measurements.profile import Profile
from paceline.measurements.results import Launches, load_launches
from paceline.measurements.store import Store
from paceline.model.calibrate import swept_calibration
from paceline.model.calibration import Calibration
from paceline.model.profiles import profile_of
from paceline.model.question import Question
from paceline.model.scaling import predict_curve
from paceline.spec.cluster import Cluster
from paceline.spec.strategy import Strategy

NETWORKS = {"resnet20": 16, "googlenet-64px": 8, "alexnet-64px": 16}
"""Name and batch per rank: 1, 25 and 93 MiB of gradients."""
BUCKETS = ("1 MiB", "4 MiB", "25 MiB")
TARGET = 0.05
SIZES = "4 KiB,16 KiB,64 KiB,256 KiB,1 MiB,4 MiB,16 MiB,32 MiB,64 MiB"
CLUSTER = """name = "two-1gbe"
[[host]]
name = "host"
count = 2
devices = ["host-cpu"]
inside = "loopback"
link = { name = "1gbe", bandwidth = "1 Gb/s" }
"""
STUDY = """name = "{kind}-{network}"
networks = ["{network}"]
frameworks = ["pytorch"]
clusters = ["{cluster}"]
devices = [2]
batch = [{batch}]
{strategies}
[protocol]
launches = 1
max_launches = 1
warmup = 2
steps = 20
launch_budget = "3 s"
phases = {phases}
phase_steps = 4
threads = 1
"""
ALONE = '[[strategy]]\nname = "alone"\naggregation = "none"\n'


def measure(networks: list[str], store: Path, *, where: str, rounds: int) -> None:
    """In each round sweep, then profile each network and run it with every bucket size; what is stored stays."""
    store.mkdir(parents=True, exist_ok=True)
    (store / "two-1gbe.toml").write_text(CLUSTER, encoding="utf-8")
    cluster = str(store / "two-1gbe.toml") if where == "virtual" else "local"
    sweep = ["bench-collectives", "--ranks", "2", "--collectives", "all_reduce", "--cluster", cluster]
    sweep += ["--sizes", SIZES, "--seconds", "0.4"]
    turns = [["run", str(path)] for network in networks for path in _studies(network, store, cluster)]
    for command in [sweep, *turns] * rounds:
        words = [str(Path(sys.executable).parent / "paceline"), *command, "--on", where, "--store", str(store)]
        done = subprocess.run(words, timeout=900, stdout=subprocess.DEVNULL)
        if done.returncode:
            print(f"paceline {command[0]} ended with {done.returncode}: that part of the round is missing", flush=True)


def _studies(network: str, store: Path, cluster: str) -> list[Path]:
    """Files of the profile and of the runs."""
    buckets = "".join(f'[[strategy]]\nname = "{size}"\nbucket = "{size}"\n' for size in BUCKETS)
    paths = []
    for kind, strategies, phases in (("alone", ALONE, "true"), ("buckets", buckets, "false")):
        paths.append(store / f"{kind}-{network}.toml")
        fields = {"network": network, "batch": NETWORKS[network], "cluster": cluster, "kind": kind}
        paths[-1].write_text(STUDY.format(strategies=strategies, phases=phases, **fields), encoding="utf-8")
    return paths


def launches(store: Store, study: str) -> list[list[Launches]]:
    """Every case of a study, each with its successful rounds, the oldest first."""
    cases: dict[str, list[Launches]] = defaultdict(list)
    for campaign in store.read_campaigns():
        if campaign["study"] == study:
            for item in load_launches(store, str(campaign["campaign"])):
                if item.steps:
                    cases[item.first.case_id].append(item)
    return list(cases.values())


def merged(rounds: list[Launches]) -> Launches:
    """The launches of several rounds as those of one."""
    return Launches(
        runs=tuple(run for item in rounds for run in item.runs),
        counted=tuple(run for item in rounds for run in item.counted),
        throughputs=tuple(value for item in rounds for value in item.throughputs),
        steps=tuple(value for item in rounds for value in item.steps),
        passes=tuple(value for item in rounds for value in item.passes),
        num_steps=sum(item.num_steps for item in rounds),
    )


def report(args: argparse.Namespace) -> int:
    """Predicted against measured for every stored network."""
    store = Store(args.store)
    calibration = swept_calibration(store)
    rows: list[dict[str, Any]] = []
    print(f"{'network':14s} {'bucket':>8s} {'measured':>10s} {'predicted':>10s} {'90 %':>20s} {'off':>8s}  terms in ms")
    for name in NETWORKS:
        alone, buckets = launches(store, f"alone-{name}"), launches(store, f"buckets-{name}")
        if alone and buckets:
            count = min(len(rounds) for rounds in [*alone, *buckets])
            profile = profile_of(store, merged(alone[0][-count:]))
            rows += _network(profile, [merged(rounds[-count:]) for rounds in buckets], calibration)
    errors = [100 * abs(row["error"]) for row in rows]
    mean = statistics.fmean(errors)
    of = f"range of {len(rows)} cases"
    figures = [
        Figure("mean absolute error", mean, "%", min(errors), max(errors), of),
        *(Figure(f"error, {row['network']}, {row['bucket']}", 100 * row["error"], "%") for row in rows),
    ]
    return publish(args, figures, turns=rows, passed=mean <= 100 * TARGET)


def _network(profile: Profile, found: list[Launches], calibration: Calibration) -> list[dict[str, Any]]:
    rows = []
    for item in sorted(found, key=lambda item: float(item.first.case["strategy"]["bucket"])):
        case = item.first.case
        strategy = Strategy.model_validate({**case["strategy"], "name": item.first.strategy})
        cluster = Cluster.model_validate_json(json.dumps(case["cluster"]))
        question = Question(cluster, "pytorch", profile.batch, profile=profile, strategy=strategy)
        prediction = predict_curve(question, (2,), calibration=calibration).predictions[0]
        step, measured = prediction.step_s, statistics.median(item.steps)
        error = step.value / measured - 1
        interval = "{:.0f}-{:.0f} ms".format(*(1e3 * bound for bound in step.interval_90))
        terms = ", ".join(f"{key} {1e3 * value:.0f}" for key, value in prediction.terms.items() if value > 5e-4)
        print(f"{profile.network:14s} {item.first.strategy:>8s} {1e3 * measured:7.1f} ms {1e3 * step.value:7.1f} ms "
              f"{interval:>20s} {100 * error:+6.1f} %  {terms}")  # fmt: skip
        row = {"network": profile.network, "bucket": item.first.strategy, "measured_s": item.steps, "error": error}
        rows.append({**row, "predicted_s": step.value, "interval_90_s": step.interval_90})
    return rows


def main() -> int:
    """Measure what was asked, or everything, then report."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--store", type=lambda text: Path(text).resolve(), default=Path("results/predict-ddp").resolve()
    )
    parser.add_argument("--only", nargs="+", choices=["report", *NETWORKS], default=list(NETWORKS))
    parser.add_argument("--on", choices=["virtual", "local"], default="virtual")
    parser.add_argument("--rounds", type=int, default=4)
    asked = parser.parse_args()
    if asked.only != ["report"]:
        measure([name for name in asked.only if name in NETWORKS], asked.store, where=asked.on, rounds=asked.rounds)
    return report(asked)


if __name__ == "__main__":
    sys.exit(main())
