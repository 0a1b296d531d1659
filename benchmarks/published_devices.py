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
from dataclasses import dataclass
from functools import cache
from statistics import median

import numpy as np
from lib.device_figures import Fitted, Judged, fitted_figures, judged_figures, kepler_figures, network_of
from lib.result import Figure, parser_of, publish
from numpy.typing import NDArray

from paceline import catalog
from paceline.cost.precision import numerics_on
from paceline.cost.roofline import (
    DEFAULT_LAUNCH,
    STARTS,
    WINOGRAD_FLOP,
    WINOGRAD_TRAFFIC,
    device_times,
    layer_class,
    update_seconds,
)
from paceline.model.prediction import Prediction
from paceline.model.question import Question
from paceline.model.scaling import predict_curve
from paceline.spec.cluster import Cluster, LayerClass
from paceline.spec.strategy import Strategy

PLACES = {"v100-sxm2": "dgx-1", "a100-80gb": "p4de.24xlarge", "h100-sxm5": "p5.48xlarge"} | {
    name: f"1x {name} over 10gbe x 1" for name in ("gtx-1080-ti", "rtx-2080-ti", "rtx-3090")
}
HELD, WIDE = 0.85, 2.0
Floats = NDArray[np.float64]
Reach = dict[str, float]
START: Reach = {"convolution": 0.7, "convolution_3x3": 0.7, "tensor_convolution": 0.7, "exponent": 0.3, "linear": 0.7,
                "tensor_linear": 0.7, "volta_tensor_linear": 0.7, "elementwise": 0.75, "launches": 1.0}  # fmt: skip
TRIED = [round(0.25 + 0.025 * step, 3) for step in range(31)]
OTHERS = {"exponent": [round(0.05 * step, 2) for step in range(13)], "launches": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}
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


@dataclass(frozen=True)
class FullRates:
    """What one sample of a group takes where every share is 1: seconds of each layer's forward pass."""

    units: tuple[LayerClass, ...]
    compute: Floats
    memory: Floats
    fixed: Floats
    start: float
    """Of all layers, at one launch for each."""
    update: tuple[float, float]
    """Memory traffic of the update, and its start."""
    squares: NDArray[np.bool_]
    """Layers that Winograd's algorithm suits."""
    gain: float
    """Rate of convolutions over that of float32."""


@cache
def full_rates(one: Fitted) -> FullRates:
    """The roofline at full rates, without Winograd's algorithm."""
    network, device = network_of(one.network, one.length), catalog.device(one.device)
    numerics = numerics_on(device, one.precision)
    units = tuple(numerics.unit(layer_class(layer)) for layer in network.layers)
    shares: dict[LayerClass, float] = {**dict.fromkeys(units, 1.0), "convolution": 1.0, "elementwise": 1.0,
                                       "convolution_3x3": 1e-9}  # fmt: skip
    launch = DEFAULT_LAUNCH if device.launch_overhead is None else device.launch_overhead
    plain = device.model_copy(update={"reach": shares, "launch_overhead": 0.0})
    times = device_times(network, plain, precision=one.precision)
    update = update_seconds(network.parameters, plain, precision=one.precision)
    gain = device.peak[numerics.convolution] / device.peak["float32"]
    squares = np.array([unit == "convolution_3x3" for unit in units])
    return FullRates(
        units, times.compute[0], times.memory[0], times.fixed[0], len(units) * launch, (update, launch), squares, gain
    )


def shares_of(device: str, reach: Reach, gain: float) -> dict[str, float]:
    """The share of every kind of layer; V100 has its own for linear layers on tensor cores."""
    linear = reach["volta_tensor_linear" if device.startswith("v100") else "tensor_linear"]
    return {
        "convolution": reach["convolution"], "convolution_3x3": reach["convolution"],
        "tensor_convolution": min(1.0, reach["tensor_convolution"] * (gain / 8) ** -reach["exponent"]),
        "linear": reach["linear"], "attention": reach["linear"], "tensor_linear": linear, "tensor_attention": linear,
        "elementwise": 1.0,
    }  # fmt: skip


def seconds_of(one: Fitted, reach: Reach) -> list[float]:
    """Seconds of a step at every batch of a group: the roofline of cost/roofline.py at a reach."""
    full, shares = full_rates(one), shares_of(one.device, reach, full_rates(one).gain)
    memory, launches = 1 / reach["elementwise"], reach["launches"] / STARTS
    compute = full.compute / np.array([shares[unit] for unit in full.units])
    tiles = WINOGRAD_TRAFFIC * full.memory * memory
    fast = np.maximum(full.compute / (WINOGRAD_FLOP * reach["convolution_3x3"]), tiles)
    compute = np.where(full.squares, np.minimum(compute, fast), compute)
    outside = 3 * reach["launches"] * full.start + full.update[0] * memory + launches * full.update[1]
    return [
        3 * float(np.maximum(compute * batch, (full.memory * batch + full.fixed) * memory).sum()) + outside
        for batch, _ in one.points
    ]


def log_ratio(one: Fitted, reach: Reach) -> float:
    """Logarithm of predicted over published."""
    rates = [batch / seconds for (batch, _), seconds in zip(one.points, seconds_of(one, reach), strict=True)]
    return float(np.log(one.ratio(rates)))


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


def kepler_reach() -> tuple[float, float, float]:
    """The reach of K80: of layers that multiply, of 3 x 3 convolutions, of memory, by least mean absolute log error."""
    figures, tried = kepler_figures(), TRIED[::2]

    def away(compute: float, square: float, memory: float) -> float:
        reach = dict.fromkeys(START, compute) | {
            "convolution_3x3": square, "elementwise": memory, "exponent": 0.0, "launches": float(STARTS),
        }  # fmt: skip
        return sum(abs(log_ratio(one, reach)) for one in figures)

    return min(itertools.product(tried, tried, tried), key=lambda shares: away(*shares))


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
    print(f"K80, of layers that multiply, of 3 x 3 convolutions, of memory bandwidth: {kepler_reach()}")


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
