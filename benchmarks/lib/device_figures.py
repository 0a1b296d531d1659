"""Published throughputs of one accelerator: those that the reach was fitted to, and those that judge it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from paceline import catalog
from paceline.catalog.networks.transformers import Size, bert, gpt2
from paceline.catalog.published import published
from paceline.model.measured.names import normal
from paceline.spec.network import Network

__all__ = ["Fitted", "Judged", "fitted_figures", "judged_figures", "kepler_figures", "network_of"]

SIZES = {
    "gpt-125m": Size(50368, 2048, 768, 12, 12),
    "gpt-350m": Size(50368, 2048, 1024, 16, 24),
    "gpt-760m": Size(50368, 2048, 1536, 12, 24),
    "gpt-1b": Size(50368, 2048, 2048, 16, 24),
    "bert-large": Size(30522, 512, 1024, 16, 24),
}
CAMPAIGNS = (
    "csc-ml-benchmarks",
    "dlperf-v1",
    "lambda-pt",
    "lambda-tf",
    "nv-dle",
    "nv-dle-bert-strong",
    "pt-ddp-bench",
    "tf2017",
)
DEVICES = {"v100": "v100-sxm2", "a10080gb": "a100-80gb", "a100": "a100-40gb", "h10080gbpcie": "h100-pcie",
           "h100": "h100-sxm5", "p100": "p100-sxm2", "rtxa6000": "rtx-a6000", "rtx6000ada": "rtx-6000-ada",
           "rtx4090": "rtx-4090", "rtx3090": "rtx-3090", "rtx2080ti": "rtx-2080-ti", "gtx1080ti": "gtx-1080-ti",
           "a10": "a10"}  # fmt: skip
"""How campaigns call devices, by normalised beginning, the more exact name first."""
NETWORKS = {"resnet50v15": "resnet50", "resnet50": "resnet50", "bertbase": "bert-base", "inceptionv3": "inception-v3",
            "inception3": "inception-v3", "vgg16": "vgg16", "alexnet": "alexnet", "resnet101": "resnet101",
            "resnet152": "resnet152"}  # fmt: skip
ASSUMED_BATCH = {"lambda-pt": {}, "lambda-tf": {"alexnet": 512}}
"""Batches of campaigns that state none: as given, else 128 (lambda-pt) and 64 (lambda-tf)."""


@dataclass(frozen=True)
class Judged:
    """One published figure."""

    source: str
    network: str
    length: int
    device: str
    precision: str
    batch: int
    passes: int
    devices: int
    rate: float


@dataclass(frozen=True)
class Fitted:
    """The figures of one campaign for a network on a device in a precision: batches and rates of one device."""

    campaign: str
    network: str
    length: int
    device: str
    precision: str
    points: tuple[tuple[int, float], ...]

    def ratio(self, predicted: list[float]) -> float:
        """Median of predicted over published rates."""
        return median(one / rate for one, (_, rate) in zip(predicted, self.points, strict=True))


def network_of(name: str, length: int) -> Network:
    """A network of the catalog, or a transformer of a published size at a sequence length."""
    if name not in SIZES:
        return catalog.network(name)
    size = SIZES[name]
    return bert(name, size, length=length) if name.startswith("bert") else gpt2(name, replace(size, positions=length))


def judged_figures() -> list[Judged]:
    """The figures that nothing was fitted to."""
    return [Judged(*row) for row in published("devices")["figures"]["rows"]]


def fitted_figures() -> list[Fitted]:
    """The figures of one device of the campaigns of the catalog, one entry for each network, device and precision."""
    groups: dict[tuple[str, str, int, str, str], list[tuple[int, float]]] = {}
    for campaign in CAMPAIGNS:
        for key, point in _points(campaign):
            groups.setdefault((campaign, *key), []).append(point)
    return [Fitted(*key, points=tuple(points)) for key, points in groups.items()] + _by_batch("volta", "v100-sxm2")


def kepler_figures() -> list[Fitted]:
    """The figures of one K80 that its reach is fitted to; they are of another campaign than those that judge it."""
    return _by_batch("kepler", "k80")


def _by_batch(table: str, device: str) -> list[Fitted]:
    """One entry for each batch."""
    return [
        Fitted("mxnet-1.2", network, 0, device, "float32", ((batch, rate),))
        for network, batch, rate in published("devices")[table]["rows"]
    ]


def _points(campaign: str) -> Iterator[tuple[tuple[str, int, str, str], tuple[int, float]]]:
    for entry in published(f"throughput-{campaign}")["series"]:
        label = normal(entry["device"])
        device = next((name for word, name in DEVICES.items() if word in label), None)
        if device is None:
            continue
        half = any(word in entry.get("precision", "").lower() for word in ("amp", "fp16"))
        peak = catalog.device(device).peak
        precision = "amp" if half else "tf32" if "tf32" in peak else "float32"
        if half and "float16" not in peak:
            continue
        if campaign == "nv-dle-bert-strong":  # eight devices that accumulate for long: an eighth of them is one
            length = 128 if "128" in entry["network"] else 512
            batch = 128 if length == 128 else 16
            yield ("bert-large", length, device, precision), (batch, entry["samples_per_s"][0] / entry["devices"][0])
            continue
        network = NETWORKS.get(normal(entry["network"]))
        if network is None or 1 not in entry["devices"]:
            continue
        at = entry["devices"].index(1)
        batch = entry.get("batch") or (entry["batches"][at] if "batches" in entry else _assumed(campaign, network))
        if batch:
            yield (network, 0, device, precision), (int(batch), float(entry["samples_per_s"][at]))


def _assumed(campaign: str, network: str) -> int | None:
    if campaign not in ASSUMED_BATCH:
        return None
    return ASSUMED_BATCH[campaign].get(network, 128 if campaign == "lambda-pt" else 64)
