"""Predictions from catalog figures alone against published throughputs of GPUs in every precision.

    .venv/bin/python benchmarks/published_devices.py
    .venv/bin/python benchmarks/published_devices.py --fit

Judged are the figures of catalog/published/devices.toml (ResNet, VGG-16, Inception v3, BERT-large, GPT of four sizes;
V100, A100, H100, GTX 1080 Ti, RTX 2080 Ti, RTX 3090; float32, TF32, mixed), to which nothing was fitted. Targets:
the 90 % intervals hold 85 % or more, and the median interval is no wider than a factor of 2 from end to end. Exits with
1 if a target is missed. `--fit` fits the reach of catalog/reach.toml again, to the figures of other campaigns, and with
each campaign left out; `launches` are kernels that a layer starts (STARTS of cost/roofline.py).
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Sequence
from statistics import median

import numpy as np
from lib.device_figures import Fitted, Judged, fitted_figures, judged_figures, kepler_figures, network_of
from lib.result import Figure, parser_of, publish

from paceline import catalog
from paceline.cost.precision import numerics_on
from paceline.cost.roofline import DEFAULT_LAUNCH, STARTS
from paceline.model.compute import roofline_work
from paceline.model.prediction import Prediction
from paceline.model.question import Question
from paceline.model.scaling import predict_curve
from paceline.spec.cluster import Cluster, Device, LayerClass
from paceline.spec.strategy import Strategy

PLACES = {"v100-sxm2": "dgx-1", "a100-80gb": "p4de.24xlarge", "h100-sxm5": "p5.48xlarge"} | {
    name: f"1x {name} over 10gbe x 1" for name in ("gtx-1080-ti", "rtx-2080-ti", "rtx-3090")
}
HELD, WIDE = 0.85, 2.0
Reach = dict[str, float]
START: Reach = {"convolution": 0.7, "convolution_3x3": 0.7, "tensor_convolution": 0.7, "exponent": 0.3, "linear": 0.7,
                "tensor_linear": 0.7, "volta_tensor_linear": 0.7, "elementwise": 0.75, "launches": 1.0}  # fmt: skip
TRIED = [round(0.25 + 0.05 * step, 3) for step in range(16)]
OTHERS = {"exponent": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "launches": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}
"""What is tried for what is no share."""


def without_memory_limit(cluster: Cluster) -> Cluster:
    """The cluster with devices of any memory: what was published did fit (V100 of 32 GB, recomputed activations)."""
    hosts = tuple(
        host.model_copy(
            update={"devices": tuple(device.model_copy(update={"memory": None}) for device in host.devices)}
        )
        for host in cluster.hosts
    )
    return cluster.model_copy(update={"hosts": hosts})


def predicted(figure: Judged) -> Prediction:
    """What `paceline predict` says of a published case."""
    question = Question(
        cluster=without_memory_limit(catalog.cluster(PLACES[figure.device])),
        framework="pytorch/ddp",
        batch=figure.batch,
        network=network_of(figure.network, figure.length),
        strategy=Strategy(precision=figure.precision, accumulate=figure.passes),
    )
    return predict_curve(question, (figure.devices,)).predictions[0]


def judge() -> tuple[list[Figure], bool, list[float]]:
    """Every figure beside its prediction; the share in intervals, their width, and whether both are as wanted."""
    ratios, held, wide = [], [], []
    for figure in judged_figures():
        rate = predicted(figure).samples_per_s
        low, high = rate.interval_90
        ratios.append(rate.value / figure.rate)
        held.append(low <= figure.rate <= high)
        wide.append(high / low)
        what = f"{figure.network}{f' {figure.length}' if figure.length else ''}, {figure.precision}"
        print(
            f"{what:24} {figure.devices} x {figure.device:10} published {figure.rate:9,.1f}  "
            f"predicted {rate.value:9,.1f}  90 % {low:9,.1f} to {high:9,.1f}  {'held' if held[-1] else 'missed'}"
        )
    errors = [abs(ratio - 1) for ratio in ratios]
    share, width = sum(held) / len(held), median(wide)
    figures = [
        Figure(f"share of {len(held)} figures in their 90 % interval", share),
        Figure("median width of the 90 % interval, end to end", width),
        Figure("mean error of the throughput", float(np.mean(errors))),
    ]
    return figures, share >= HELD and width <= WIDE, ratios


def with_reach(device: Device, reach: Reach, precision: str) -> Device:
    """The device at a reach; V100 has its own for linear layers on tensor cores."""
    linear = reach["volta_tensor_linear" if device.name.startswith("v100") else "tensor_linear"]
    gain = device.peak[numerics_on(device, precision).convolution] / device.peak["float32"]
    launch = reach["launches"] / STARTS * (device.launch_overhead or DEFAULT_LAUNCH)
    shares: dict[LayerClass, float] = {
        "convolution": reach["convolution"], "convolution_3x3": reach["convolution_3x3"],
        "tensor_convolution": min(1.0, reach["tensor_convolution"] * (gain / 8) ** -reach["exponent"]),
        "linear": reach["linear"], "attention": reach["linear"], "tensor_linear": linear, "tensor_attention": linear,
        "elementwise": reach["elementwise"],
    }  # fmt: skip
    return device.model_copy(update={"reach": shares, "launch_overhead": launch})


def log_ratio(figures: Fitted, reach: Reach) -> float:
    """Logarithm of predicted over published."""
    device = with_reach(catalog.device(figures.device), reach, figures.precision)
    work = roofline_work(network_of(figures.network, figures.length), device, precision=figures.precision)
    rates = [batch / ((step := work.at(batch)).compute + step.update) for batch, _ in figures.points]
    return float(np.log(figures.ratio(rates)))


def fitted(figures: Sequence[Fitted], rounds: int = 3) -> Reach:
    """The reach of least mean absolute log error, one class after the other; a campaign weighs the root of its size."""
    reach, weight = dict(START), {name: n**-0.5 for name, n in Counter(one.campaign for one in figures).items()}
    for _ in range(rounds):
        for name in reach:
            reach[name] = min(
                OTHERS.get(name, TRIED),
                key=lambda share: sum(
                    weight[one.campaign] * abs(log_ratio(one, {**reach, name: share})) for one in figures
                ),
            )
    return reach


def kepler_reach() -> tuple[float, float]:
    """The reach of K80: one share for layers that multiply, and one for memory, of least mean absolute log error."""
    figures, tried = kepler_figures(), TRIED[::2]

    def away(compute: float, memory: float) -> float:
        reach = {
            **dict.fromkeys(START, compute),
            "elementwise": memory,
            "exponent": 0.0,
            "launches": float(STARTS),
        }
        return sum(abs(log_ratio(one, reach)) for one in figures)

    return min(itertools.product(tried, tried), key=lambda pair: away(*pair))


def fit() -> None:
    """The reach of all campaigns, and what each campaign looks like from the others."""
    figures = fitted_figures()
    reach = fitted(figures)
    print(f"fitted to {len(figures)} groups: {reach}")
    print(f"deviation of log(predicted / published): {np.std([log_ratio(one, reach) for one in figures]):.3f}")
    left_out = []
    for campaign in dict.fromkeys(one.campaign for one in figures):
        others = fitted([one for one in figures if one.campaign != campaign], rounds=2)
        left_out += [log_ratio(one, others) for one in figures if one.campaign == campaign]
    print(f"the same, each campaign left out: {np.std(left_out):.3f}")
    print(f"K80, of compute and of memory bandwidth: {kepler_reach()}")


def main() -> int:
    """Judge, or fit anew."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--fit", action="store_true", default=None, help="fit the reach to other campaigns, and print it"
    )
    args = parser.parse_args()
    if args.fit:
        fit()
        return 0
    figures, passed, ratios = judge()
    return publish(args, figures, turns=ratios, passed=passed)


if __name__ == "__main__":
    sys.exit(main())
