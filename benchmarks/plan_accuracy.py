"""Predicted against reached: what the plan says of emulated clusters, and what the runtime then does on them.

    .venv/bin/python benchmarks/plan_accuracy.py          (as root: hosts are network namespaces with shaped links)

Each cluster is planned, the best plan is written to a file, and `paceline train --plan --on virtual` runs it: one group
or several, whatever was chosen. Devices are emulated, gradients are real and cross the links. Printed are samples per
second as predicted and as measured over whole rounds of exchange, and how long a plan for 1,000 unequal devices takes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib import ranks
from lib.result import Figure, parser_of, publish

from paceline import catalog
from paceline.measurements.profile import Profile, ProfiledLayer
from paceline.model.calibration import AS_STATED
from paceline.model.plan.file import write_plan
from paceline.model.plan.make import Plan, make_plan
from paceline.model.plan.search import Candidate
from paceline.model.question import Question
from paceline.spec.cluster import Cluster, Device, Emulation, Host, Link
from paceline.spec.load import dump

GRADIENTS, LAYERS, PER_SAMPLE = 4_000_000, 8, 0.002
"""Bytes, layers, and seconds of a sample on a device of speed 1."""
GIGABIT, SLOW = 1.25e8, 1.25e7
WORKER = Path(__file__).parent / "lib" / "plan_worker.py"
INSIDE = Link(name="bus", bandwidth=1e9, latency=2e-4)
"""About what Gloo reaches between two processes of this machine."""


@dataclass(frozen=True)
class Place:
    """One emulated cluster."""

    speeds: tuple[tuple[float, ...], ...]
    """Of the devices of each host."""
    bandwidth: float = GIGABIT
    step: float = 0.2
    """Seconds of a perfectly balanced step."""

    @property
    def batch(self) -> int:
        """Samples of such a step."""
        return round(self.step * sum(sum(host) for host in self.speeds) / PER_SAMPLE)

    def cluster(self) -> Cluster:
        """As a cluster file would say it; an emulation's times are those of the global batch."""
        seconds = PER_SAMPLE * self.batch
        link = Link(name="way", bandwidth=self.bandwidth)
        hosts = [
            Host(
                name=f"h{index}",
                devices=tuple(
                    Device(
                        name=f"speed-{speed:g}",
                        emulation=Emulation(forward=seconds / 3, backward=seconds * 2 / 3, speed=speed),
                    )
                    for speed in speeds
                ),
                inside=INSIDE,
                link=link,
            )
            for index, speeds in enumerate(self.speeds)
        ]
        return Cluster(name="emulated", hosts=tuple(hosts))

    def plan(self) -> Plan:
        """The best ways to train on it."""
        question = Question(self.cluster(), "paceline", self.batch, profile=profile_of(self))
        return make_plan(question, global_batch=self.batch, calibration=AS_STATED)


def profile_of(place: Place) -> Profile:
    """One step of the whole batch on a device of speed 1."""
    part = PER_SAMPLE * place.batch / LAYERS
    layers = tuple(
        ProfiledLayer(name=f"l{n}", forward=part / 3, backward=part * 2 / 3, gradients=(GRADIENTS / LAYERS,))
        for n in range(LAYERS)
    )
    return Profile(network="emulated", batch=place.batch, layers=layers)


PLACES = (
    Place(((4.0,), (1.0,))),
    Place(((1.0,), (1.0,))),
    Place(((3.0,), (2.0,))),
    Place(((4.0,), (2.0,), (1.0,), (1.0,))),
    Place(((8.0,), (1.0,))),
    Place(((3.0, 3.0), (1.0, 1.0))),
    Place(((1.0,), (1.0,)), bandwidth=SLOW, step=0.1),
    Place(((2.0, 2.0), (1.0, 1.0)), bandwidth=SLOW, step=0.1),
)


def main() -> None:
    """Plan, run and compare every cluster."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", type=int, help="number of one cluster, from 0")
    args = parser.parse_args()
    ranks.interpreter()
    rows = list(compared(PLACES if args.only is None else [PLACES[args.only]]))
    errors = [abs(row["error"]) * 100 for row in rows]
    figures = [
        Figure("largest error of a plan", max(errors), "%", min(errors), max(errors), f"range of {len(rows)} clusters"),
        *(Figure(f"error, speeds {row['speeds']}, {row['link_mb_s']:g} MB/s", row["error"] * 100, "%") for row in rows),
        Figure("a plan for 1,000 devices", seconds_for_a_thousand(), "s"),
    ]
    publish(args, figures, turns=rows)


def compared(places: Any) -> Iterator[dict[str, Any]]:
    """One row for each cluster."""
    for place in places:
        plan = place.plan()
        reached, best = run(place, plan), plan.best
        row = {
            "speeds": place.speeds,
            "link_mb_s": place.bandwidth / 1e6,
            "way": f"{len(best.groups)} groups, H={best.local_steps}, K={best.quorum}",
            "predicted": round(best.predicted_throughput, 1),
            "measured": round(reached, 1),
            "error": round(best.predicted_throughput / reached - 1, 4),
        }
        print(row, file=sys.stderr)
        yield row


def run(place: Place, plan: Plan) -> float:
    """Samples per second of all groups, trained as a user would."""
    with tempfile.TemporaryDirectory(prefix="paceline-plan-") as name:
        folder = Path(name)
        (folder / "cluster.toml").write_text(cluster_text(place), encoding="utf-8")
        write_plan(plan, folder / "plan.toml")
        best = plan.best
        given = [str(place.batch), str(GRADIENTS), str(LAYERS), str(best.local_steps), str(num_steps(best, place))]
        argv = [sys.executable, "-m", "paceline", "train", str(WORKER), "--cluster", str(folder / "cluster.toml")]
        argv += ["--plan", str(folder / "plan.toml"), "--on", "virtual", "--", str(folder), *given]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise SystemExit(f"{place} failed:\n{done.stdout}{done.stderr}")
        return sum(json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("rate-*.json"))


def cluster_text(place: Place) -> str:
    """The cluster as a file of a user has it, where each table is one host."""
    return dump(place.cluster()).replace("[[hosts", "[[host").replace("[hosts.", "[host.")


def num_steps(best: Candidate, place: Place) -> int:
    """Steps of a whole batch that the run takes: some seconds, and some rounds at least."""
    return max(32, best.local_steps * 5, round(4.0 / place.step))


def seconds_for_a_thousand() -> float:
    """How long a plan for 125 hosts of eight devices of eleven kinds takes."""
    link = Link(name="fast", bandwidth=1e10, latency=1e-5)
    kinds = [Device(name=f"kind-{n}", peak={"float32": 1e13 * (1 + n / 3)}, memory_bandwidth=9e11) for n in range(11)]
    hosts = [
        Host(name=f"h{i}", devices=tuple(kinds[(i * 7 + j) % 11] for j in range(8)), inside=link, link=link)
        for i in range(125)
    ]
    cluster = Cluster(name="thousand", hosts=tuple(hosts))
    question = Question(cluster, "paceline", 64, network=catalog.network("resnet50"))
    begin = time.perf_counter()
    make_plan(question, global_batch=65536)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
