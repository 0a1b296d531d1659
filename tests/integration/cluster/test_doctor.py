"""A host whose link is throttled is found on a real Slurm allocation, and named in the form that srun takes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.bench.virtual.layout import INTERFACE
from tests.integration.cluster.conftest import HOSTS, Grounds
from tests.integration.cluster.services import on

HOST = """
[[host]]
name = "{name}"
devices = [{{ name = "plain", kind = "{kind}" }}]
inside = "loopback"
link = {{ name = "way", bandwidth = "200 Mb/s" }}
"""
STAND_IN = """#!/bin/sh
[ "$SLURM_PROCID" = 0 ] || exit 0
echo "# Collective test starting: all_reduce_perf"
rank=0
for host in $(scontrol show hostnames "$SLURM_STEP_NODELIST"); do
  echo "#  Rank  $rank Group  0 Pid 1 on $host device  0 [0000:04:00] stand-in"
  rank=$((rank + 1))
done
echo "#       size         count      type   redop    root     time   algbw   busbw #wrong"
case "$SLURM_STEP_NODELIST" in *2*) rate=0.004;; *) rate=0.024;; esac
echo "  1073741824     268435456     float     sum      -1     1e6   $rate   $rate      0"
"""
"""nccl-tests needs GPUs; what Slurm starts on which nodes, and what is read from it, is real."""


@pytest.fixture
def throttled(grounds: Grounds) -> Iterator[Grounds]:
    """The third host sends at 30 % of what its link states."""
    limits = ["rate", "60mbit", "burst", "16kb", "limit", "512kb"]
    shown = on(grounds.up, "n2", ["tc", "-r", "qdisc", "show", "dev", INTERFACE]).stdout
    on(grounds.up, "n2", ["tc", "qdisc", "replace", "dev", INTERFACE, "root", "tbf", *limits])
    yield grounds
    from paceline.bench.virtual.lifecycle import reshape

    reshape(grounds.up, dilation=1.0)
    assert on(grounds.up, "n2", ["tc", "-r", "qdisc", "show", "dev", INTERFACE]).stdout.split()[:2] == shown.split()[:2]


@pytest.fixture
def stated(tmp_path: Path) -> Path:
    path = tmp_path / "stated.toml"
    path.write_text('name = "stated"\n' + "".join(HOST.format(name=name, kind="cpu") for name in HOSTS))
    return path


def test_a_throttled_host_is_named(throttled: Grounds, stated: Path, tmp_path: Path, pytorch: Path) -> None:
    said = throttled.run(tmp_path / "store", "doctor", "--on", "slurm", "--cluster", str(stated), code=1)
    assert said.startswith("FAIL: all_reduce of 3 ranks on 3 hosts by gloo")
    assert "expected at least 70.0 %" in said
    assert "exclude: --exclude=n2" in said
    (line,) = [line.split() for line in said.splitlines() if line.startswith("FAIL ")]
    assert line[1] == "n2"
    assert float(line[-4]) < 35
    sound = [line.split() for line in said.splitlines() if line.startswith("PASS ")]
    assert [row[1] for row in sound] == ["n0", "n1"]
    assert all(float(row[-4]) > 70 for row in sound)


def test_nccl_tests_are_started_by_srun(grounds: Grounds, tmp_path: Path) -> None:
    program = grounds.folder / "bin" / "all_reduce_perf"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    stated = tmp_path / "gpus.toml"
    stated.write_text('name = "gpus"\n' + "".join(HOST.format(name=name, kind="gpu") for name in HOSTS))
    argv = ("doctor", "--on", "slurm", "--cluster", str(stated), "--engine", "--mpi=none", "--json")
    try:
        found = json.loads(grounds.run(tmp_path / "store", *argv, code=1))
    finally:
        os.unlink(program)
    assert (found["exclude"], found["collective"]["bus_bandwidth"]) == (["n2"], 0.004e9)
    assert {host["host"]: host["bandwidth"] for host in found["hosts"]} == {"n0": 0.024e9, "n1": 0.024e9, "n2": 0.004e9}
