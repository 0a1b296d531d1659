"""The exchange between GPUs from catalog figures alone, against published all-reduces and training over several hosts.

    .venv/bin/python benchmarks/published_hosts.py

All-reduces: seconds by size (catalog/published/allreduce.toml), beside those of a flat ring with the latencies that
other libraries are assumed to have. Training: what several hosts make of one, that is the throughput on many over that
on one host (on one device where only that was published), so that the speed of a single device does not matter.
Nothing was fitted to these figures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import mean, median

import numpy as np
from lib.device_figures import NETWORKS, network_of
from lib.result import Figure, parser_of, publish
from published_devices import without_memory_limit

from paceline import catalog
from paceline.catalog.published import published
from paceline.cost.collective import Fabric, allreduce, fabric_of
from paceline.model.calibration import CATALOG_ONLY
from paceline.model.measured.names import normal
from paceline.model.question import Question
from paceline.model.scaling import predict_curve
from paceline.spec.cluster import place
from paceline.spec.strategy import Strategy

NICS = {"8x b200 over 400gbe x 4": 8}
"""Ports of a host where its name says one."""
BERT_LARGE = {"bertlarge": "bert-large"}
CAMPAIGNS = {
    "dlperf-v1": {"100Gb IB EDR": "8x v100-sxm2 over infiniband-edr x 4"},
    "hkbu-ddl2020": {"10GbE with TCP/IP": "4x v100-pcie over 10gbe x 4",
                     "100GbIB with RDMA": "4x v100-pcie over infiniband-edr x 4"},
    "csc-ml-benchmarks": {"InfiniBand HDR100": "4x v100-sxm2 over infiniband-edr x 2",
                          "InfiniBand HDR 200Gb": "4x a100-40gb over infiniband-hdr x 2"},
}  # fmt: skip
"""Clusters of a campaign by its links; 100 GbE with TCP has no latency in the catalog, MI250X no network."""
STRATEGIES = {"bspa2a": Strategy(overlap=False), "wfbpa2a": Strategy(bucket=0), "mgwfbp": Strategy()}
PRECISIONS = {"fp32": "float32", "tf32": "tf32"}
HOROVOD = (("inception-v3", 0.90), ("resnet101", 0.90), ("vgg16", 0.68))
"""docs/benchmarks.rst of Horovod, 2017: share of 512 times one GPU, 128 hosts of four Pascal GPUs over 25 Gb RoCE."""


@dataclass(frozen=True)
class Hosts:
    """Rates on one host or device, and on several hosts."""

    campaign: str
    question: Question
    few: int
    many: int
    ratio: float


def series_of(campaign: str) -> Iterator[Hosts]:
    """Every series of a campaign that has one host, several, and a network, a link and a strategy that are known."""
    for series in published(f"throughput-{campaign}")["series"]:
        name = (NETWORKS | BERT_LARGE).get(normal(series["network"]))
        how, batch = normal(series.get("strategy", "")), series.get("batch")
        cluster = CAMPAIGNS[campaign].get(series.get("link", ""))
        if name is None or cluster is None or batch is None or (campaign.startswith("hkbu") and how not in STRATEGIES):
            continue
        asked = STRATEGIES.get(how, Strategy()).model_copy(
            update={"precision": PRECISIONS.get(series.get("precision", "fp32"), "amp")}
        )
        rows = list(zip(series["devices"], series["hosts"], series["samples_per_s"], strict=True))
        one = [row for row in rows if row[1] == 1]
        length = 128 if name == "bert-base" else 512
        question = Question(
            without_memory_limit(catalog.cluster(cluster)), "pytorch/ddp", round(batch),
            network=network_of(name, length if name.startswith("bert") else 0), strategy=asked,
        )  # fmt: skip
        for count, hosts, rate in rows if one else ():
            if hosts > 1 and count <= question.cluster.num_devices:
                yield Hosts(campaign, question, one[-1][0], count, rate / one[-1][2])


def horovod() -> Iterator[Hosts]:
    """The three efficiencies on 512 GPUs."""
    cluster = without_memory_limit(catalog.cluster("4x p100-pcie over 25gbe x 128"))
    for name, efficiency in HOROVOD:
        question = Question(cluster, "horovod/tensorflow", 64, network=catalog.network(name))
        yield Hosts("horovod512", question, 1, 512, 512 * efficiency)


def fabric_like(cluster: str, devices: int) -> Fabric:
    """The fabric of the first devices of a cluster, under NCCL."""
    known = catalog.cluster(cluster)
    ports = [host.model_copy(update={"nics": NICS.get(cluster, host.nics)}) for host in known.hosts]
    known = known.model_copy(update={"hosts": tuple(ports)})
    return fabric_of(known, place(known, devices), nccl=True)


def flat_ring(fabric: Fabric, sizes: np.ndarray) -> np.ndarray:
    """A ring with the latencies of software that libraries other than NCCL are assumed to have."""
    assumed = CATALOG_ONLY
    slow = replace(
        fabric, nccl=None, inside_latency=fabric.inside_latency + assumed.base_latency / 5,
        between_latency=fabric.between_latency + assumed.base_latency,
    )  # fmt: skip
    return allreduce(slow.slowed(assumed.latency.value, 1 / assumed.reach.value), sizes)


def judge_sweeps() -> list[Figure]:
    """Every all-reduce beside what is predicted, as a typical factor between the two."""
    away: dict[str, list[float]] = {"as NCCL runs them": [], "as flat rings": []}
    for sweep in published("allreduce")["sweep"]:
        fabric, sizes = fabric_like(sweep["cluster"], sweep["devices"]), np.array(sweep["bytes"], dtype=float)
        chosen = allreduce(fabric.slowed(1.0, 1 / CATALOG_ONLY.reach.value), sizes, sweep.get("algorithm"))
        factors = [np.abs(np.log(times / sweep["seconds"])) for times in (chosen, flat_ring(fabric, sizes))]
        for name, factor in zip(away, factors, strict=True):
            away[name] += factor.tolist()
        new, old = (float(np.exp(factor.mean())) for factor in factors)
        print(f"all-reduce, {sweep['devices']:4} of {sweep['cluster']:24} factor {new:.2f}, of a flat ring {old:.2f}")
    return [
        Figure(
            f"typical factor between {len(factors)} predicted and published all-reduces {name}",
            float(np.exp(mean(factors))),
        )
        for name, factors in away.items()
    ]


def main() -> int:
    """Judge every figure, and store the result where asked."""
    arguments = parser_of(__doc__).parse_args()
    errors: dict[str, list[float]] = {}
    inside = []
    for one in [*(figure for name in CAMPAIGNS for figure in series_of(name)), *horovod()]:
        few, many = predict_curve(one.question, (one.few, one.many)).predictions
        ratio = many.samples_per_s.value / few.samples_per_s.value
        low, high = (many.speed_up.interval_90[side] / few.speed_up.value for side in (0, 1))
        inside.append(low <= one.ratio <= high)
        errors.setdefault(one.campaign, []).append(ratio / one.ratio - 1)
        print(
            f"{one.question.label[:70]:70} {one.few:3} -> {one.many:3}  published {one.ratio:7.2f}  "
            f"predicted {ratio:7.2f}  {ratio / one.ratio - 1:+.1%}"
        )
    everything = [error for each in errors.values() for error in each]
    figures = [
        *judge_sweeps(),
        Figure(f"mean error of {len(everything)} figures, percent", 100 * mean(map(abs, everything))),
        Figure("median error, percent", 100 * median(map(abs, everything))),
        Figure("largest error, percent", 100 * max(map(abs, everything))),
        Figure("share in the 90 % interval", float(np.mean(inside))),
        *(
            Figure(f"mean error of {name} ({len(each)}), percent", 100 * mean(map(abs, each)))
            for name, each in errors.items()
        ),
    ]
    return publish(arguments, figures, turns=errors)


if __name__ == "__main__":
    sys.exit(main())
