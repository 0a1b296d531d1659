"""Predictions, plans and extrapolations of made clusters and points, compared number by number with those of before.

A change of the model that is meant changes these numbers: `python -m tests.unit.model.test_expected` writes them anew,
and the difference of the file shows what the change does to which term.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import catalog
from paceline.measurements.profile import Profile, ProfiledHost, ProfiledLayer
from paceline.model.calibration import CATALOG_ONLY, Uncertain
from paceline.model.measured.extrapolate import extrapolate_series
from paceline.model.measured.points import series_of_rows
from paceline.model.measured.prior import shipped_population
from paceline.model.plan.make import make_plan
from paceline.model.prediction import Curve
from paceline.model.question import Question
from paceline.model.scaling import predict_curve
from paceline.model.sweep import CollectiveFit
from paceline.model.transformer.shape import Parallel, TransformerShape
from paceline.model.transformer.step import (
    PRIOR,
    features,
    fit_rates,
    iteration_seconds,
    predict_iteration,
    refit_beyond,
)
from paceline.spec.cluster import Cluster, Device, Host
from paceline.spec.strategy import Strategy
from tests.unit.model.clusters import V100, cluster

FILE = Path(__file__).with_name("expected.json")
FRAMEWORKS = ("pytorch/ddp", "pytorch/fsdp2", "horovod", "mxnet/dist_sync", "tensorflow", "caffe-mpi", "cntk")
SLOW = Device(name="old", peak={"float32": 4e12}, memory=12e9, memory_bandwidth=240e9, price=1.0)


def curve(found: Curve) -> dict[str, Any]:
    """The numbers of a curve."""
    rows = [one.as_dict() for one in found.predictions]
    names = ("step_s", "step_s_interval_50", "step_s_interval_90", "samples_per_s", "efficiency", "cost", "terms")
    advised = found.detail.get("measure_next")
    return {"knee": found.knee, "fusion": found.detail.get("fusion"), "notes": found.notes,
            "basis": found.basis[:3] if advised else found.basis[:1],
            "advice": found.advice if advised is None else [[one["kind"], one["value"]] for one in advised],
            "predictions": [{name: row[name] for name in names} for row in rows]}  # fmt: skip


def predicted(framework: str) -> dict[str, Any]:
    """A network on hosts of four devices."""
    asked = Question(cluster(4, 4), framework, 32, network=catalog.network("resnet20"))
    return curve(predict_curve(asked, (1, 4, 16)))


LAYERS = tuple(
    ProfiledLayer(name=f"l{n}", forward=0.004 * n, backward=0.01 * n, gradients=(4e6 * n, 4e3), kind=kind, macs=2e8 * n,
                  moved=1e6)
    for n, kind in enumerate(("convolution", "linear", "attention"), start=1)
)  # fmt: skip
PROFILE = Profile(network="Own", device="cpu", batch=32, layers=LAYERS, io=0.02, h2d=0.003, update=0.002, crowd=2,
                  host=ProfiledHost(cores=8, threads=2, peak=1e11, bandwidth=2e10, thread_gain=1.6))  # fmt: skip
MEASURED = replace(
    CATALOG_ONLY, crowding=0.05, overlap_rate=0.8, slowdown=Uncertain(0.2, 0.3), jitter=0.03,
    collectives=(CollectiveFit("all_reduce", 2, "saturating", 1e-4, 2e-10, 1e-7, 0.05, 1e3, 1e6),),
)  # fmt: skip


def profiled(device: Device, **asked: Any) -> dict[str, Any]:
    """A profile of a processor, on these devices, at another batch."""
    made = cluster(2, 2, device=device)
    hosts = tuple(host.model_copy(update={"cores": 4, "disk": 2e9}) for host in made.hosts)
    question = Question(Cluster(name="made", hosts=hosts), "pytorch/ddp", 64, profile=PROFILE, **asked)
    return curve(predict_curve(question, (1, 2, 4), calibration=MEASURED))


def read_from_files() -> dict[str, Any]:
    """Images from a disk that the devices of a host share, in mixed precision, accumulated."""
    hosts = tuple(host.model_copy(update={"disk": 5e8}) for host in cluster(2, 4).hosts)
    strategy = Strategy(precision="amp", accumulate=2)
    asked = Question(Cluster(name="made", hosts=hosts), "pytorch/ddp", 16, network=catalog.network("resnet50"),
                     strategy=strategy, input="files")  # fmt: skip
    return curve(predict_curve(asked, (1, 8)))


def transformer() -> dict[str, Any]:
    """Iterations of parallel transformers under the rates that are believed first, and under fitted ones."""
    shape = TransformerShape(hidden=2048, heads=16, layers=24, sequence=1024)
    ways = [Parallel(t, p, d, 2, 64, recompute=what) for t, p, d, what in (
        (1, 1, 1, "none"), (2, 1, 2, "selective"), (4, 2, 1, "full"), (2, 2, 2, "none"), (8, 2, 2, "full"),
        (16, 1, 1, "none"))]  # fmt: skip
    case = features([shape] * len(ways), ways)
    believed = iteration_seconds(PRIOR, case)
    inside = {name: values[:4] for name, values in case.items()}
    rates = fit_rates(inside, believed[:4] * np.array([1.2, 0.9, 1.1, 1.3]))
    beyond = refit_beyond(rates, case, believed * 1.3)
    return {"believed": believed.tolist(), "fitted": [one.value for one in predict_iteration(rates, case)],
            "beyond": [one.value for one in predict_iteration(beyond, case)],
            "spread": np.sqrt(np.diag(beyond.covariance) + np.diag(rates.covariance)).tolist()}  # fmt: skip


def extrapolated(rates: dict[int, float], at: int, **more: float) -> dict[str, Any]:
    """Points inside a host of eight, and what they say about more."""
    rows = [
        {"network": "ResNet-50", "framework": "F", "strategy": "DDP", "device": "V100", "link": "10GbE", "spread": 3.0,
         "devices": float(count), "samples_per_s": rate, "devices_per_host": 8.0, "batch_per_device": 64.0}
        for count, rate in rates.items()
    ]  # fmt: skip
    series = series_of_rows(rows, "points")
    return curve(extrapolate_series(series, [at], population=shipped_population(), force=True, **more)[0])


def planned() -> dict[str, Any]:
    """Unequal hosts, and the strategies that are best on them."""
    usual, other = cluster(1, 2).hosts[0], cluster(1, 2, device=SLOW, gigabits=1.0).hosts[0]
    hosts: tuple[Host, ...] = (usual, other.model_copy(update={"name": "h1"}))
    asked = Question(Cluster(name="mixed", hosts=hosts), "paceline", 1, network=catalog.network("alexnet"))
    plan = make_plan(asked, global_batch=256, shown=4)
    names = ("kind", "groups", "shares", "local_steps", "quorum", "predicted_throughput", "staleness", "efficiency",
             "interval_90")  # fmt: skip
    return {"ranked": [{name: getattr(one, name) for name in names} for one in plan.ranked]}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    **{f"predict {name}": (lambda name=name: predicted(name)) for name in FRAMEWORKS},
    "inside a host": lambda: extrapolated({1: 100.0, 2: 190.0, 4: 340.0}, 8),
    "first crossing": lambda: extrapolated({1: 100.0, 2: 190.0, 4: 340.0}, 32),
    "one crossing known": lambda: extrapolated({1: 100.0, 4: 340.0, 8: 600.0, 16: 900.0}, 64),
    "more crossings known": lambda: extrapolated({1: 100.0, 8: 600.0, 16: 900.0, 32: 1500.0, 64: 2600.0}, 256),
    "batch changes": lambda: extrapolated({1: 100.0, 2: 190.0, 4: 340.0}, 8, global_batch=128.0),
    "plan": planned,
    "profile on processors": lambda: profiled(Device(name="cpu", kind="cpu", memory_bandwidth=2e10), input="files"),
    "profile moved to a GPU": lambda: profiled(V100),
    "files": read_from_files,
    "transformer": transformer,
}


def alike(found: Any, wanted: Any) -> bool:
    """Whether two documents have the same numbers, up to rounding of fits."""
    if isinstance(wanted, dict):
        return set(found) == set(wanted) and all(alike(found[name], wanted[name]) for name in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(alike, found, wanted))
    if isinstance(wanted, float) and isinstance(found, float):
        return bool(found == pytest.approx(wanted, rel=2e-4, abs=1e-12))
    return bool(found == wanted)


def plain(document: dict[str, Any]) -> Any:
    """As it comes back from its file: numbers of seven digits."""
    return json.loads(json.dumps(document), parse_float=lambda text: float(f"{float(text):.7g}"))


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_those_of_before(name: str) -> None:
    found, wanted = plain(CASES[name]()), json.loads(FILE.read_text(encoding="utf-8"))[name]
    assert alike(found, wanted), json.dumps(found)


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(plain(case()))}" for name, case in CASES.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
