"""Every kind of input file: sound examples, how to mutate them, and what a command would compute from them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from paceline import api
from paceline.catalog import cluster, network, shipped_catalog
from paceline.errors import InputError, SpecError, Unsupported
from paceline.measurements.profile import Profile, ProfiledLayer
from paceline.measurements.run import Span
from paceline.measurements.trace.chakra import to_chakra
from paceline.measurements.trace.chrome import to_chrome
from paceline.measurements.trace.formats import busy_seconds, read_trace
from paceline.measurements.trace.horovod import to_horovod
from paceline.measurements.trace.kineto import to_kineto
from paceline.model.calibration import Calibration
from paceline.model.plan.file import read_plan, write_plan
from paceline.model.sweep import CollectiveFit
from paceline.model.validation.campaigns import read_campaigns
from paceline.spec.load import dump, load_cases
from tests.property import records
from tests.property.mutations import mutants

EXAMPLES = Path(__file__).parents[2] / "examples"
POINTS = """network,strategy,device,link,devices_per_host,devices,batch_per_device,samples_per_s,spread
ResNet-50,PyTorch 1.4 WFBP,V100,10GbE with TCP/IP,4,1,64,253.1,1.2
ResNet-50,PyTorch 1.4 WFBP,V100,10GbE with TCP/IP,4,4,64,1015,
"My, net",BSP-PS,,,,8,,1796,
"My, net",BSP-PS,,,,2,,500,3
"""
CAMPAIGNS = """source_id,framework,comm,model,hardware,interconnect,nodes,devices,batch_per_device,value,unit,spread
a,PyTorch,NCCL,ResNet-50,4x V100,10GbE,1,4,64,1000,img/s,12
a,PyTorch,NCCL,ResNet-50,4x V100,10GbE,2,8,64,1900,img/s,
"""


@dataclass(frozen=True)
class Kind:
    """One kind of input file."""

    suffix: str
    form: str
    """`toml`, `json`, `csv` or `bytes`: how fields are mutated."""
    texts: Callable[[Path], list[bytes]]
    """Sound examples, made in a folder."""
    use: Callable[[Path], Any]
    """What a command computes from a file."""
    words: tuple[str, ...] = ()
    """A command that reads it; `{}` is the file."""


def _files(*names: str) -> Callable[[Path], list[bytes]]:
    return lambda folder: [path.read_bytes() for name in names for path in sorted(EXAMPLES.glob(name))]


def _profile(folder: Path) -> list[bytes]:
    layers = tuple(ProfiledLayer(name=f"l{n}", forward=1e-3, backward=2e-3, gradients=(4e4, 400.0)) for n in range(3))
    return [
        Profile(network="mine", batch=8, layers=layers, update=1e-3).model_dump_json(by_alias=True, indent=1).encode()
    ]


def _calibration(folder: Path) -> list[bytes]:
    fit = CollectiveFit("all_reduce", 2, "additive", 1e-4, 1e-9, 0.0, 0.05, 1e3, 1e8)
    made = Calibration(source="a sweep", collectives=(fit,), copy_per_byte=1e-10, jitter=0.02)
    return [json.dumps({"schema": "paceline.calibration/1", **asdict(made)}, indent=1).encode()]


def _plan(folder: Path) -> list[bytes]:
    table = api.plan("lenet", cluster="mixed-lab", global_batch=64)
    write_plan(table.plan, folder / "made.toml")
    return [(folder / "made.toml").read_bytes()]


def _spans() -> list[Span]:
    names = (("forward", "conv1", 0.0), ("backward", "conv1", 0.2), ("aggregate", "bucket ALLREDUCE", 0.3))
    return [Span(0, step, phase, name, step + at, 0.1, 1000) for step in range(2) for phase, name, at in names]


def _traces(folder: Path) -> list[bytes]:
    documents = (to_chrome(_spans()), to_kineto(_spans(), rank=0), to_horovod(_spans()))
    return [json.dumps(document, indent=1).encode() for document in documents]


@cache
def _cluster() -> Any:
    return cluster("dgx-1")


def _predicted(**asked: Any) -> Any:
    given = {"cluster": _cluster(), "batch": 8, "devices": [1, 4], **asked}
    if "profile" not in given:
        given.setdefault("network", "lenet")
    return [curve.as_dict() for curve in api.predict(**given).curves]


def _of_cluster(path: Path) -> Any:
    found = cluster(str(path))
    try:
        return _predicted(cluster=found, devices=[1, min(4, found.num_devices)])
    except Unsupported:  # a device whose speed nothing tells
        return []


def _of_points(path: Path) -> Any:
    return [curve.as_dict() for curve in api.extrapolate(path, at=[1, 16]).curves]


def _of_campaigns(path: Path) -> Any:
    return [[one.samples_per_s.tolist(), one.devices.tolist()] for one in read_campaigns(path)]


def _of_trace(path: Path) -> Any:
    return busy_seconds(read_trace(path))


QUESTION = ("--cluster", "dgx-1", "--devices", "1,4", "--json")
KINDS = {
    "study": Kind(".toml", "toml", _files("studies/*.toml"), lambda path: len(load_cases(path, shipped_catalog())[1]),
                  ("run", "--dry-run", "{}", "--json")),
    "cluster": Kind(".toml", "toml", _files("clusters/*.toml"), _of_cluster,
                    ("predict", "--network", "lenet", "--batch", "8", "--devices", "1", "--cluster", "{}", "--json")),
    "network": Kind(".toml", "toml", lambda folder: [dump(network(name)).encode() for name in ("lenet", "gpt2-tiny")],
                    lambda path: _predicted(network=str(path)),
                    ("predict", "--network", "{}", "--batch", "8", *QUESTION)),
    "profile": Kind(".profile", "json", _profile, lambda path: _predicted(profile=path),
                    ("predict", "--profile", "{}", *QUESTION)),
    "calibration": Kind(".json", "json", _calibration, lambda path: _predicted(calibration=path),
                        ("predict", "--network", "lenet", "--batch", "8", "--calibration", "{}", *QUESTION)),
    "plan": Kind(".toml", "toml", _plan, lambda path: read_plan(path).model_dump(), ()),
    "points": Kind(".csv", "csv", lambda folder: [POINTS.encode()], _of_points,
                   ("predict", "--measured", "{}", "--at", "16", "--json")),
    "published": Kind(".csv", "csv", lambda folder: [CAMPAIGNS.encode()], _of_campaigns, ()),
    "trace": Kind(".json", "json", _traces, _of_trace, ()),
    "log": Kind(".log", "bytes", records.logs, records.of_import, ()),
    "nccl-tests": Kind(".txt", "bytes", lambda folder: [records.NCCL.encode()], records.of_import, ()),
    "nccl-json": Kind(".json", "json", records.nccl_json, records.of_import, ()),
    "operations": Kind(".csv", "csv", lambda folder: [records.OPERATIONS.encode()], records.of_import, ()),
    "dump": Kind(".json", "json", records.dumps, records.of_import, ()),
    "pickle": Kind("", "bytes", records.pickles, records.of_import, ()),
    "imported": Kind(".json", "json", records.profile, records.of_import, ()),
    "run": Kind(".json", "json", records.headers, records.of_header, ()),
    "rows": Kind(".json", "json", records.rows, records.of_rows, ()),
    "campaign": Kind(".json", "json", records.campaigns, records.of_campaign, ()),
    "checkpoint": Kind(".json", "json", records.checkpoints, records.of_checkpoint, ()),
    "chakra": Kind(".et", "bytes", lambda folder: [to_chakra(_spans(), rank=0)], _of_trace, ()),
}  # fmt: skip


def nonsense(value: Any, name: str = "") -> Iterator[str]:
    """Every number that no command may print: not finite, or negative."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from nonsense(item, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for item in value:
            yield from nonsense(item, name)
    elif isinstance(value, float | int) and not isinstance(value, bool) and (not math.isfinite(value) or value < 0):
        yield f"{name} = {value}"


def outcome(kind: Kind, path: Path) -> str:
    """`valid`, `refused`, or what went wrong with a file."""
    try:
        result = kind.use(path)
    except SpecError as error:
        return "refused" if error.problems and str(path) in str(error) else f"no file named: {error}"
    except InputError as error:
        return "refused" if error.exit_code == 2 else f"exit {error.exit_code}: {error}"
    except Exception as error:  # noqa: BLE001 - what a user would see as an internal error
        return f"{type(error).__name__}: {error}"
    return next((f"nonsense: {what}" for what in nonsense(result)), "valid")


def fuzz(name: str, count: int, folder: Path, *, seed: int = 0) -> Iterable[tuple[bytes, str]]:
    """Mutants of one kind and their outcomes."""
    kind = KINDS[name]
    folder.mkdir(parents=True, exist_ok=True)
    texts = kind.texts(folder)
    path = folder / f"given{kind.suffix}"
    if name == "study":
        (folder.parent / "clusters").mkdir(exist_ok=True)
        (folder.parent / "clusters" / "unequal.toml").write_bytes((EXAMPLES / "clusters/unequal.toml").read_bytes())
    for data in mutants(texts, count, seed=seed, form=kind.form):
        path.write_bytes(data)
        yield data, outcome(kind, path)
