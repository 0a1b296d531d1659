"""Step times of emulated DDP ranks against the closed form of wait-free back-propagation over a ring.

    .venv/bin/python benchmarks/emulated_ddp.py --only 2,1,8 4,10,100

Each case is ranks, link in Gb/s, gradients in MB. Ranks are real processes on a virtual cluster: layers are timed
waits, gradients are real and go through DDP and Gloo; dilation is chosen by Paceline. A run that Paceline itself marks
as not sustained is printed as such and is no result. Needs root and a quiet machine.

    ready[i] = forward + (i + 1) / layers * backward
    end[i]   = max(ready[i], end[i-1]) + 2 (P-1) latency + 2 (P-1) / P * bucket / bandwidth
    step     = end[last]
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from statistics import median
from typing import Any

from lib.result import Figure, parser_of, publish

from paceline.bench.environments import prepare
from paceline.bench.launch import LaunchKey, launch_case
from paceline.bench.machine import describe_machine
from paceline.bench.sites.virtual import VirtualLauncher
from paceline.measurements.run import RunData
from paceline.spec.cluster import Cluster, Device, Emulation, Host, Link
from paceline.spec.layers import Flatten, Linear
from paceline.spec.network import ImageInput, Network
from paceline.spec.strategy import Strategy
from paceline.spec.study import Case, Protocol

LAYERS = 8
COMPUTE = {"slow": (0.04, 0.08), "fast": (0.02, 0.04)}
"""Seconds of forward and backward beside links below and from 100 Gb/s."""
CASES = (
    *("2,1,1", "2,10,32", "2,25,100", "2,100,400", "4,1,8", "4,10,100", "4,25,32", "4,100,400"),
    *("8,1,1", "8,1,8", "8,10,32", "8,100,100", "16,1,1", "16,10,8", "16,25,32", "16,100,8"),
)


def network_of(size: float) -> Network:
    """Equal layers whose gradients are `size` bytes together."""
    width = round(math.sqrt(size / LAYERS / 4))
    layers = tuple(Linear(name=f"layer{n}", features=width, bias=False) for n in range(LAYERS))
    return Network(
        name=f"{LAYERS} layers",
        input=ImageInput(channels=1, height=1, width=width),
        layers=(Flatten(name="flat"), *layers),
    )


def compute_of(gigabits: float) -> tuple[float, float]:
    """Seconds of forward and backward."""
    return COMPUTE["fast" if gigabits >= 100 else "slow"]


def case_of(ranks: int, gigabits: float, megabytes: float) -> Case:
    """Ranks on equal emulated devices, each layer's gradient exchanged by itself."""
    network = network_of(megabytes * 1e6)
    forward, backward = compute_of(gigabits)
    device = Device(name="emulated", emulation=Emulation(forward=forward, backward=backward))
    link, inside = Link(name="way", bandwidth=gigabits * 1e9 / 8), Link(name="bus", bandwidth=1e14)
    hosts = tuple(Host(name=f"h{n}", devices=(device,), inside=inside, link=link) for n in range(ranks))
    return Case(
        network=network,
        cluster=Cluster(name=f"{ranks} x {gigabits:g} Gb/s", hosts=hosts),
        framework="pytorch/ddp",
        strategy=Strategy(bucket=float(network.parameters * 4 // LAYERS)),
        ranks=ranks,
        batch=1,
        scaling="weak",
        placement="packed",
        input="resident",
        threads=1,
    )


def closed_form(case: Case) -> float:
    """Seconds of a step by the equation above."""
    ranks, bucket = case.ranks, case.network.parameters * 4 / LAYERS
    link = case.cluster.hosts[0].link
    exchange = 2 * (ranks - 1) * link.latency + 2 * (ranks - 1) / ranks * bucket / link.bandwidth
    forward, backward = compute_of(link.bandwidth * 8e-9)
    end = 0.0
    for layer in range(LAYERS):
        end = max(forward + (layer + 1) / LAYERS * backward, end) + exchange
    return end


def measured(data: RunData) -> float:
    """Median over steps, each as long as its slowest rank."""
    slowest: dict[int, float] = defaultdict(float)
    for step in data.steps:
        if not step.warmup and step.pass_name == "clean":
            slowest[step.step] = max(slowest[step.step], step.seconds)
    return median(slowest.values())


def main() -> int:
    """Measure the cases and print the table; more than 3 % off, or not sustained, is a failure."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="*", default=CASES, help="ranks,Gb/s,MB")
    parser.add_argument("--dilation", type=float)
    options = parser.parse_args()
    prepare("pytorch", lambda line: None)
    protocol = Protocol(launches=1, warmup=2, steps=8, launch_budget=1.0, phases=False, timeout=230.0)
    machine = describe_machine(())
    rows = []
    with VirtualLauncher(dilation=options.dilation) as launcher:
        for number, words in enumerate(options.only):
            case = case_of(*(int(words.split(",")[0]), *(float(word) for word in words.split(",")[1:])))
            data = launch_case(LaunchKey("bench", "emulated", case, number), protocol, launcher, machine)
            rows.append(show(words, case, data))
    errors = [100 * (row["measured_s"] / row["expected_s"] - 1) for row in rows if row["measured_s"]]
    sizes = [abs(error) for error in errors]
    figures = [Figure(f"of {len(rows)} combinations within 3 %", sum(size <= 3 for size in sizes))]
    if sizes:
        of = f"range of {len(sizes)} combinations"
        figures.insert(0, Figure("largest error", max(sizes), "%", min(errors), max(errors), of))
    return publish(options, figures, turns=rows, passed=figures[-1].value == len(rows))


def show(words: str, case: Case, data: RunData) -> dict[str, Any]:
    """A line of the table, printed and returned."""
    run, expected = data.run, closed_form(case)
    ranks, gigabits, megabytes = words.split(",")
    row: dict[str, Any] = {
        "ranks": int(ranks),
        "gigabits": float(gigabits),
        "megabytes": float(megabytes),
        "dilation": run.dilation,
    }
    row |= {"expected_s": expected, "measured_s": None, "note": run.failure.message if run.failure else ""}
    row |= {"emulation": run.facts.get("emulation", "")}
    if run.outcome == "ok":
        row["measured_s"] = measured(data)
    elif data.steps:
        row["unsustained_s"] = measured(data)
    found = row["measured_s"]
    ratio = (
        f"{1e3 * found:.2f} | {1e3 * expected:.2f} | {found / expected:.4f}"
        if found
        else f"- | {1e3 * expected:.2f} | -"
    )
    print(f"| {ranks} | {gigabits} | {megabytes} | {run.dilation:g} | {ratio} | {row['note']} |", flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
