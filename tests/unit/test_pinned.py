"""What commands answer to the same questions does not change unnoticed.

The numbers in pinned.json are what the model said when they were written, not what is true: other tests compare with
closed forms and with published measurements. After a change that is meant to move them, write them anew, and look at
the difference: `.venv/bin/python -m tests.unit.test_pinned`.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.cli import program
from paceline.measurements.profile import Profile, ProfiledLayer, write_profile
from tests.made import Made, write

SAME = 5e-5
"""Relative difference that fits may have on another processor, whose linear algebra rounds otherwise."""
FILE = Path(__file__).with_name("pinned.json")
PINNED: dict[str, list[Any]] = json.loads(FILE.read_text(encoding="utf-8"))
"""What each command answered; a new one is added with an empty list, then written."""
HEAD = "network,framework,device,link,devices_per_host,devices,batch_per_device,samples_per_s\n"
POINTS = HEAD + "".join(f"ResNet-50,PyTorch 1.4 WFBP,V100,10GbE with TCP/IP,4,{n},64,{rate}\n"
                        for n, rate in ((1, 253), (4, 1015), (8, 1796)))  # fmt: skip
SERVERS = HEAD + "".join(
    f"VGG16,MXNet parameter server,K80,1GbE,1,{n},32,{rate}\n" for n, rate in ((1, 40), (2, 50), (4, 71))
)
BASE = Made(aggregate=0.05, update=0.01, h2d=0.002, io=0.03, input="files", exchanges=((0.06, 0.03), (0.11, 0.05)))
MADE = [
    BASE, replace(BASE, ranks=4, aggregate=0.09, rank_factors=(1.0, 1.0, 1.3, 1.0)), replace(BASE, ranks=1, batch=64),
    Made(ranks=2, batch=8, backward=0.005, aggregate=0.008, gradients=50, strategy={"bucket": 0.0}),
    Made(network="resnet50", aggregate=0.2, catalog_cluster="v100-10gbe-8x4", aggregate_by_launch=(0.2, 0.24, 0.21)),
]  # fmt: skip
GAPS = [
    Made(aggregate=0.1, strategy={"overlap": False}), Made(forward=0.03, aggregate=0.02, framework="mxnet/kvstore"),
    Made(aggregate=0.06, framework="tensorflow/mirrored", update=0.004), Made(batch=64, aggregate=0.07),
]  # fmt: skip


LAYERS = (
    ProfiledLayer(
        name="body", forward=0.02, backward=0.05, gradients=(3e7, 4e3), kind="convolution", macs=4e8, moved=2e6
    ),
    ProfiledLayer(name="head", forward=0.004, backward=0.007, gradients=(8e6,), kind="linear", macs=2e6, moved=4e3),
)
PROFILE = Profile(
    network="mine",
    device="v100-sxm2",
    batch=16,
    ready=("head", "body"),
    update=0.002,
    io=0.001,
    jitter=0.03,
    layers=LAYERS,
)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Numbers and names of an answer in order; texts for people, and what names files, are left out."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, f"{path}.{key}")
    elif isinstance(value, str):
        if value.isidentifier():
            yield path, value
    elif value is not None:
        yield path, float(f"{value:.7g}") if isinstance(value, float) else value


def answer(command: str) -> list[tuple[str, Any]]:
    """Of a command in the current directory."""
    done = CliRunner().invoke(program, [*shlex.split(command), "--json"])
    assert done.exit_code == 0, f"{command}: {done.output} {done.exception!r}"
    return list(leaves(json.loads(done.stdout)))


def prepare(folder: Path) -> None:
    (folder / "points.csv").write_text(POINTS)
    (folder / "servers.csv").write_text(SERVERS)
    write_profile(PROFILE, folder / "mine.profile")
    write(folder / "results", MADE)
    write(folder / "results", GAPS, study="gaps", campaign="gaps-1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("pinned")
    prepare(found)
    return found


@pytest.mark.parametrize("command", PINNED)
def test_an_answer_is_what_it_was(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PACELINE_STORE", str(folder / "results"))
    expected, found = PINNED[command], answer(command)
    differs = [
        f"{path}: {new}, was {old}"
        for (path, new), old in zip(found, expected, strict=False)
        if new != (pytest.approx(old, rel=SAME, abs=1e-12) if isinstance(old, float) else old)
    ]
    assert differs == []
    assert len(found) == len(expected)


def main() -> None:
    """Write all answers anew."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        prepare(Path(folder))
        patch.chdir(folder)
        patch.setenv("PACELINE_STORE", f"{folder}/results")
        lines = [f"{json.dumps(one)}: {json.dumps([value for _, value in answer(one)])}" for one in PINNED]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
