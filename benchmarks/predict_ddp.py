"""Real DDP runs on two ranks here, predicted from one-rank profiles and a sweep of the collective.

    python benchmarks/predict_ddp.py --store /tmp/ddp                 measure everything (8 min), then report
    python benchmarks/predict_ddp.py --store /tmp/ddp --only report   report what is stored

Three networks x three bucket sizes. A network is predicted from its own one-rank profile, the sweep, and the costs of
being distributed (fixed, slowdown, crowding) that the *other* networks' runs show: its own runs on two ranks are never
used. Exits with 1 if the mean absolute error of the step exceeds 5 %.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from paceline import catalog
from paceline.measurements.results import Launches, find_campaign, load_launches
from paceline.measurements.store import Store
from paceline.model.calibrate import BLANK, fit_distributed, stored_sweeps
from paceline.model.profiles import profile_of
from paceline.model.question import Question
from paceline.model.scaling import predict_curve
from paceline.spec.strategy import Strategy

NETWORKS = {"resnet20": 8, "alexnet-64px": 8, "gpt2-tiny": 4}
"""Name and batch per rank: steps of some tens of milliseconds on one core."""
BUCKETS = ("1 MiB", "4 MiB", "25 MiB")
TARGET = 0.05
STUDY = """name = "ddp-{network}"
networks = ["{network}"]
frameworks = ["pytorch"]
devices = {devices}
batch = [{batch}]
{strategies}
[protocol]
launches = {launches}
max_launches = {launches}
warmup = 3
steps = 20
launch_budget = "3 s"
phase_steps = 5
threads = 1
"""


def measure(network: str, store: Path, launches: int) -> None:
    """Run the network on one rank, and on two with every bucket size; what is stored already is kept."""
    buckets = "".join(f'[[strategy]]\nname = "{size}"\nbucket = "{size}"\n' for size in BUCKETS)
    for devices, strategies in (("[1]", ""), ("[2]", buckets)):
        path = store / f"{network}-{devices[1]}.toml"
        if Store(store).read_all(study=f"ddp-{network}-{devices[1]}"):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        fields = {"network": network, "devices": devices, "batch": NETWORKS[network], "launches": launches}
        text = STUDY.format(strategies=strategies, **fields)
        path.write_text(text.replace(f'"ddp-{network}"', f'"ddp-{network}-{devices[1]}"'), encoding="utf-8")
        subprocess.run([_paceline(), "run", str(path), "--store", str(store)], check=True, timeout=600)


def sweep(store: Path) -> None:
    """Sweep the all-reduce over two ranks."""
    command = [_paceline(), "bench-collectives", "--ranks", "2", "--collectives", "all_reduce", "--store", str(store)]
    subprocess.run(command, check=True, timeout=600)


def _paceline() -> str:
    return str(Path(sys.executable).parent / "paceline")


def _launches(store: Store, network: str, ranks: int) -> list[Launches]:
    found = load_launches(store, find_campaign(store, f"ddp-{network}-{ranks}"))
    return [item for item in found if item.steps]


def report(path: Path) -> int:
    """Predict every network from the others' costs and print predicted against measured."""
    store = Store(path)
    start = replace(BLANK, source="sweep and other networks", collectives=stored_sweeps(store))
    profiles = {name: profile_of(store, _launches(store, name, 1)[0]) for name in NETWORKS}
    many = {name: _launches(store, name, 2) for name in NETWORKS}
    labels = {f"{name} pytorch/ddp batch {batch}": profiles[name] for name, batch in NETWORKS.items()}
    errors = []
    print(f"{'network':14s} {'bucket':>8s} {'measured':>10s} {'predicted':>10s} {'90 %':>22s} {'off':>7s}")
    for name in NETWORKS:
        others = [item for other in NETWORKS if other != name for item in many[other]]
        calibration = fit_distributed(start, others, labels).calibration
        for item in many[name]:
            strategy = Strategy.model_validate({**item.first.case["strategy"], "name": item.first.strategy})
            question = Question(
                catalog.cluster("local"), "pytorch", NETWORKS[name], profile=profiles[name], strategy=strategy
            )
            step = predict_curve(question, (2,), calibration=calibration).predictions[0].step_s
            measured = float(np.median(item.steps))
            errors.append(abs(step.value / measured - 1))
            interval = "{:.1f}-{:.1f} ms".format(*(1e3 * bound for bound in step.interval_90))
            print(f"{name:14s} {item.first.strategy:>8s} {1e3 * measured:8.1f} ms {1e3 * step.value:8.1f} ms "
                  f"{interval:>22s} {100 * (step.value / measured - 1):+6.1f} %")  # fmt: skip
    print(f"mean absolute error {100 * float(np.mean(errors)):.1f} % over {len(errors)} cases")
    return 0 if float(np.mean(errors)) <= TARGET else 1


def main() -> int:
    """Measure what was asked, or everything, then report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--only", choices=["sweep", "report", *NETWORKS])
    parser.add_argument("--launches", type=int, default=3)
    asked = parser.parse_args()
    if asked.only in (None, "sweep"):
        sweep(asked.store)
    for network in NETWORKS:
        if asked.only in (None, network):
            measure(network, asked.store, asked.launches)
    return report(asked.store) if asked.only in (None, "report") else 0


if __name__ == "__main__":
    sys.exit(main())
