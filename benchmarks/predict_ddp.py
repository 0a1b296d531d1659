"""Real DDP runs on two ranks here, predicted from what one rank computes alone and a sweep of the all-reduce.

    python benchmarks/predict_ddp.py --store /tmp/ddp                     measure everything (20 min), then report
    python benchmarks/predict_ddp.py --store /tmp/ddp --only resnet20     measure one network
    python benchmarks/predict_ddp.py --store /tmp/ddp --only report       report what is stored
    python benchmarks/predict_ddp.py --store /tmp/lo --on local           over loopback instead of a shaped link

Real compute, real Gloo, real sockets: a virtual cluster of two hosts with a 1 Gb/s link, one core each. A network's
study interleaves, launch by launch, the profile and DDP with three bucket sizes, between two sweeps, so that a drifting
machine touches all alike. The profile is that of a rank that exchanges nothing (`aggregation = "none"`) while the other
computes too, because both share memory and caches. No DDP run is used for the prediction: fixed cost and slowdown come
from the sweep (copies, processor time). Exits with 1 if the mean absolute error of the step exceeds 5 %.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from paceline.measurements.results import Launches, find_campaign, load_launches
from paceline.measurements.store import Store
from paceline.model.calibrate import swept_calibration
from paceline.model.profiles import alone, profile_of
from paceline.model.question import Question
from paceline.model.scaling import predict_curve
from paceline.spec.cluster import Cluster
from paceline.spec.strategy import Strategy

NETWORKS = {"resnet20": 16, "googlenet-64px": 4, "alexnet-64px": 16, "resnet50-64px": 2}
"""Name and batch per rank: from 1 to 98 MiB of gradients."""
BUCKETS = ("1 MiB", "4 MiB", "25 MiB")
TARGET = 0.05
SIZES = "4 KiB,16 KiB,64 KiB,256 KiB,1 MiB,2 MiB,4 MiB,8 MiB,16 MiB,32 MiB,64 MiB"
CLUSTER = """name = "two-1gbe"
[[host]]
name = "host"
count = 2
devices = ["host-cpu"]
inside = "loopback"
link = { name = "1gbe", bandwidth = "1 Gb/s" }
"""
STUDY = """name = "ddp-{network}"
networks = ["{network}"]
frameworks = ["pytorch"]
clusters = ["{cluster}"]
devices = [2]
batch = [{batch}]
[[strategy]]
name = "alone"
aggregation = "none"
{buckets}
[protocol]
launches = {launches}
max_launches = {launches}
warmup = 2
steps = 20
launch_budget = "4 s"
phase_steps = 3
threads = 1
"""


def measure(network: str, store: Path, *, where: str, launches: int) -> None:
    """Sweep, run the network alone and with every bucket size in turn, sweep again."""
    store.mkdir(parents=True, exist_ok=True)
    cluster = "local"
    if where == "virtual":
        cluster = "two-1gbe.toml"
        (store / cluster).write_text(CLUSTER, encoding="utf-8")
    buckets = "".join(f'[[strategy]]\nname = "{size}"\nbucket = "{size}"\n' for size in BUCKETS)
    path = store / f"{network}.toml"
    text = STUDY.format(network=network, batch=NETWORKS[network], buckets=buckets, launches=launches, cluster=cluster)
    path.write_text(text, encoding="utf-8")
    place = ["--on", where, "--store", str(store)]
    sweep = ["bench-collectives", "--ranks", "2", "--collectives", "all_reduce", "--sizes", SIZES, "--seconds", "0.5"]
    named = str(store / cluster) if where == "virtual" else cluster
    for command in ([*sweep, "--cluster", named], ["run", str(path)], [*sweep, "--cluster", named]):
        subprocess.run([str(Path(sys.executable).parent / "paceline"), *command, *place], check=True, timeout=900)


def report(path: Path) -> int:
    """Predicted against measured for every stored network."""
    store = Store(path)
    calibration = swept_calibration(store)
    errors: list[float] = []
    print(f"{'network':14s} {'bucket':>8s} {'measured':>10s} {'predicted':>10s} {'90 %':>20s} {'off':>8s}  terms in ms")
    for name in NETWORKS:
        if store.read_all(study=f"ddp-{name}"):
            found = [item for item in load_launches(store, find_campaign(store, f"ddp-{name}")) if item.steps]
            errors += _network(store, name, found, calibration)
    mean = float(np.mean(np.abs(errors)))
    print(f"mean absolute error {100 * mean:.1f} % over {len(errors)} cases, worst {100 * max(map(abs, errors)):.1f} %")
    return 0 if mean <= TARGET else 1


def _network(store: Store, name: str, found: list[Launches], calibration: object) -> list[float]:
    profile = profile_of(store, next(item for item in found if alone(item.first)))
    errors = []
    for item in sorted(
        (item for item in found if not alone(item.first)), key=lambda i: i.first.case["strategy"]["bucket"]
    ):
        case = item.first.case
        strategy = Strategy.model_validate({**case["strategy"], "name": item.first.strategy})
        cluster = Cluster.model_validate_json(json.dumps(case["cluster"]))
        question = Question(cluster, "pytorch", NETWORKS[name], profile=profile, strategy=strategy)
        found_step = predict_curve(question, (2,), calibration=calibration).predictions[0]
        step, measured = found_step.step_s, float(np.median(item.steps))
        errors.append(step.value / measured - 1)
        interval = "{:.0f}-{:.0f} ms".format(*(1e3 * bound for bound in step.interval_90))
        terms = ", ".join(f"{key} {1e3 * value:.0f}" for key, value in found_step.terms.items() if value > 5e-4)
        print(f"{name:14s} {item.first.strategy:>8s} {1e3 * measured:7.1f} ms {1e3 * step.value:7.1f} ms "
              f"{interval:>20s} {100 * errors[-1]:+6.1f} %  {terms}")  # fmt: skip
    return errors


def main() -> int:
    """Measure what was asked, or everything, then report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--only", choices=["report", *NETWORKS])
    parser.add_argument("--on", choices=["virtual", "local"], default="virtual")
    parser.add_argument("--launches", type=int, default=3)
    asked = parser.parse_args()
    for network in NETWORKS:
        if asked.only in (None, network):
            measure(network, asked.store, where=asked.on, launches=asked.launches)
    return report(asked.store) if asked.only in (None, "report") else 0


if __name__ == "__main__":
    sys.exit(main())
