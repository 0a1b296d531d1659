"""Gloo's all-reduce on a virtual cluster against the ring equation: fit, residuals, and the figure of the docs.

    .venv/bin/python benchmarks/allreduce_fit.py --ranks 2,4,8 --figure docs/explanation/allreduce-fit.svg

Three forms are fitted to the same medians by least relative squares, and the data chooses:

    sum:     t = 2 (P-1) a + 2 (P-1)/P N b
    max:     t = max(2 (P-1) a, 2 (P-1)/P N b)                a bucket's tokens refill while a hop waits
    shared:  t = max(2 (P-1) (a + P c), 2 (P-1)/P N b)        and every hop waits for P ranks to get a core

Needs root and a quiet machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from lib.result import Figure, parser_of, publish
from scipy.optimize import minimize

from paceline.bench.collectives import CollectiveTime, Sweep, collective_times, run_sweep
from paceline.bench.machine import describe_machine
from paceline.bench.sites.virtual import VirtualLauncher
from paceline.spec.cluster import Cluster, Device, Host, Link

SIZES = tuple(2**power for power in range(10, 27, 2))
FORMS: dict[str, Callable[[float, float], float]] = {"sum": lambda one, two: one + two, "max": max, "shared": max}
COLOURS = {2: "#1b6ca8", 4: "#c2571a", 8: "#2f7d32", 16: "#7b3fa0"}


def cluster_of(ranks: int) -> Cluster:
    """Equal hosts on gigabit Ethernet."""
    link, inside = Link(name="1gbe", bandwidth=1.25e8), Link(name="bus", bandwidth=1e14)
    devices = (Device(name="cpu", kind="cpu"),)
    return Cluster(
        name="1gbe", hosts=tuple(Host(name=f"h{n}", devices=devices, inside=inside, link=link) for n in range(ranks))
    )


def measure(ranks: int, dilation: float) -> list[CollectiveTime]:
    """Medians of one sweep."""
    sweep = Sweep(cluster=cluster_of(ranks), ranks=ranks, sizes=SIZES, collectives=("all_reduce",))
    with VirtualLauncher(dilation=dilation) as launcher:
        data = run_sweep(sweep, launcher, describe_machine(()))
    if data.run.failure:
        raise SystemExit(data.run.failure.message)
    return list(collective_times(data.spans, ranks))


def predicted(form: str, item: CollectiveTime, constants: Sequence[float]) -> float:
    """Seconds by one form of the equation; `constants` are a, b and, where cores are shared, c."""
    hops, share = 2 * (item.ranks - 1), 2 * (item.ranks - 1) / item.ranks
    hop = constants[0] + (item.ranks * constants[2] if form == "shared" else 0.0)
    return FORMS[form](hops * hop, share * item.size_bytes * constants[1])


def fit(form: str, items: list[CollectiveTime]) -> tuple[list[float], list[float]]:
    """The form's constants, and the relative residual of every point."""

    def residuals(logs: np.ndarray) -> list[float]:
        return [predicted(form, item, np.exp(logs)) / item.seconds - 1 for item in items]

    more = [3e-5] if form == "shared" else []
    starts = [np.log([latency, 1 / 1.25e8, *more]) for latency in (1e-5, 3e-5, 1e-4, 3e-4)]
    found = [
        minimize(lambda logs: float(np.sum(np.square(residuals(logs)))), start, method="Nelder-Mead")
        for start in starts
    ]
    best = min(found, key=lambda result: float(result.fun))
    return [float(value) for value in np.exp(best.x)], residuals(best.x)


def figure(items: list[CollectiveTime], form: str, constants: Sequence[float]) -> str:
    """Measured points and the fitted lines, both axes logarithmic, as SVG."""
    left, top, width, height = 70, 20, 560, 360
    low_x, high_x = np.log10(SIZES[0]) - 0.1, np.log10(SIZES[-1]) + 0.1
    low_y = np.log10(min(item.seconds for item in items)) - 0.2
    high_y = np.log10(max(item.seconds for item in items)) + 0.2

    def place(size: float, seconds: float) -> tuple[float, float]:
        x = left + width * (np.log10(size) - low_x) / (high_x - low_x)
        y = top + height * (high_y - np.log10(seconds)) / (high_y - low_y)
        return round(float(x), 1), round(float(y), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 20}" height="{top + height + 50}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#888"/>',
    ]
    for power in range(10, 27, 4):
        x, _ = place(2**power, 1)
        label = f"{2 ** (power - 10)} KiB" if power < 20 else f"{2 ** (power - 20)} MiB"
        parts.append(f'<text x="{x}" y="{top + height + 18}" text-anchor="middle">{label}</text>')
    for power in range(int(np.ceil(low_y)), int(np.floor(high_y)) + 1):
        _, y = place(1024, 10.0**power)
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{10.0 ** (power + 3):g} ms</text>')
        parts.append(f'<line x1="{left}" y1="{y}" x2="{left + width}" y2="{y}" stroke="#ddd"/>')
    for number, ranks in enumerate(sorted({item.ranks for item in items})):
        colour = COLOURS.get(ranks, "#000")
        mine = sorted((item for item in items if item.ranks == ranks), key=lambda item: item.size_bytes)
        line = " ".join(",".join(map(str, place(i.size_bytes, predicted(form, i, constants)))) for i in mine)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}"/>')
        for item in mine:
            x, y = place(item.size_bytes, item.seconds)
            parts.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>')
        parts.append(f'<text x="{left + 15}" y="{top + 22 + 18 * number}" fill="{colour}">{ranks} ranks</text>')
    parts.append(f'<text x="{left + width / 2}" y="{top + height + 38}" text-anchor="middle">bytes of the buffer; ')
    parts.append("points measured, lines fitted</text></svg>")
    return "\n".join(parts) + "\n"


def main() -> int:
    """Measure, fit, print, draw."""
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--dilation", type=float, default=2.0)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--medians", type=Path, help="append medians as lines; with --ranks '' only fit what is there")
    options = parser.parse_args()
    items = [item for ranks in filter(None, options.ranks.split(",")) for item in measure(int(ranks), options.dilation)]
    if options.medians:
        with options.medians.open("a") as file:
            file.writelines(json.dumps(vars(item)) + "\n" for item in items)
        items = [CollectiveTime(**json.loads(line)) for line in options.medians.read_text().splitlines()]
    fits = {form: fit(form, items) for form in FORMS}
    for form, (constants, residuals) in fits.items():
        mean, worst = np.mean(np.abs(residuals)), np.max(np.abs(residuals))
        a, b, *c = constants
        shared = f"c = {1e6 * c[0]:.1f} us, " if c else ""
        print(f"{form}: a = {1e6 * a:.1f} us, {shared}b = {1e9 * b:.3f} ns/B ({8e-9 / b:.3f} Gb/s), ", end="")
        print(f"mean |residual| {100 * mean:.1f} %, largest {100 * worst:.1f} %")
    best = min(fits, key=lambda form: float(np.mean(np.square(fits[form][1]))))
    print(f"\nthe data chooses: {best}\n\n| ranks | size | measured | {best} | residual |\n|---|---|---|---|---|")
    constants, residuals = fits[best]
    for item, residual in zip(items, residuals, strict=True):
        size = f"{item.size_bytes // 1024} KiB"
        expected = predicted(best, item, constants)
        times = f"{1e3 * item.seconds:.3f} ms | {1e3 * expected:.3f} ms"
        print(f"| {item.ranks} | {size} | {times} | {100 * residual:+.1f} % |")
    if options.figure:
        options.figure.write_text(figure(items, best, constants))
    _, off = fits[best]
    a, b, *c = constants
    figures = [
        Figure(
            "mean residual", 100 * float(np.mean(np.abs(off))), "%", 0.0, 100 * float(np.max(np.abs(off))), "largest"
        ),
        *(Figure(f"{name} of {best}", 1e6 * value, "us") for name, value in zip("ac", (a, *c), strict=False)),
        Figure("bandwidth", 8e-9 / b, "Gb/s"),
    ]
    return publish(options, figures, turns=[vars(item) for item in items])


if __name__ == "__main__":
    sys.exit(main())
