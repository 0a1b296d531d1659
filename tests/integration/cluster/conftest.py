"""A virtual cluster of three hosts with sshd, Slurm and Ray on them, once for all tests of sites."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from paceline.bench.virtual.lifecycle import VirtualCluster, bring_up, take_down
from paceline.bench.virtual.namespaces import on_host
from paceline.spec.cluster import Cluster, Device, Host, Link
from tests.integration.cluster.services import missing_programs, start_ray, start_slurm, start_sshd

QUICK = Path(__file__).parent.parent / "quick.py"
HOSTS = ("n0", "n1", "n2")
RATE = 2.5e7
"""Bytes per second of a link where its rate is not the subject: 200 Mb/s, which a busy machine plays too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """These tests need root and the engines, which `make test-all` brings, and the machine for themselves.

    Those of sites time nothing: other tests may run beside them.
    """
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.full)
            item.add_marker(pytest.mark.hosts if item.path.stem == "test_sites" else pytest.mark.alone)


@pytest.fixture(scope="session", autouse=True)
def engines() -> None:
    """Root and every program that a test of this folder starts; an error that says what is missing."""
    assert os.geteuid() == 0, "virtual clusters need root: make test-all"
    assert not (missing := missing_programs()), f"not installed: {', '.join(missing)} (make engines installs them)"


def equal_hosts(names: tuple[str, ...], *, name: str = "grounds", bandwidth: float = RATE, **link: float) -> Cluster:
    """Hosts with one plain device each."""
    way = Link(name="way", bandwidth=bandwidth, **link)
    inside = Link(name="bus", bandwidth=1e11)
    devices = (Device(name="cpu", kind="cpu"),)
    return Cluster(name=name, hosts=tuple(Host(name=n, devices=devices, inside=inside, link=way) for n in names))


@dataclass(frozen=True)
class Grounds:
    """Where engines run, and how a user on its first host calls the command line."""

    up: VirtualCluster
    env: dict[str, str]
    folder: Path
    python: list[str] = field(default_factory=lambda: [sys.executable])

    def start(self, store: Path, *args: str, command: Path = QUICK) -> subprocess.Popen[str]:
        """Start `paceline ...` on the first host, or on the machine itself where that plays the hosts."""
        argv = [*self.python, str(command), *args, "--store", str(store)]
        if not {"local", "virtual"} & set(args):
            argv = on_host(self.up.pid_of("n0"), argv, directory=store.parent)
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, env=self.env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)

    def run(self, store: Path, *args: str, code: int = 0) -> str:
        """Run it to its end."""
        process = self.start(store, *args)
        out, err = process.communicate(timeout=200)
        assert process.returncode == code, f"exit {process.returncode}\n{out}\n{err}"
        return out + err


@pytest.fixture(scope="session")
def grounds() -> Iterator[Grounds]:
    up = bring_up(equal_hosts(HOSTS), name=f"grounds-{os.getpid()}", owner=os.getpid())
    try:
        with tempfile.TemporaryDirectory(prefix="paceline-grounds-") as name:
            folder = Path(name)
            folder.chmod(0o755)
            yield _furnished(up, folder)
            take_down(up.home)
    finally:
        take_down(up.home)


def _furnished(up: VirtualCluster, folder: Path) -> Grounds:
    config = start_sshd(up, folder / "ssh")
    programs = folder / "bin"
    programs.mkdir()
    wrapper = programs / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {config} "$@"\n')
    wrapper.chmod(0o755)
    env = start_slurm(up, folder / "slurm")
    env = {**env, "PATH": f"{programs}:{os.environ['PATH']}:/usr/sbin", "COLUMNS": "140", "RAY_AUTH_MODE": "disabled"}
    return Grounds(up, env, folder)


@pytest.fixture(scope="session")
def ray_grounds(grounds: Grounds) -> Grounds:
    """The same with Ray on it, which takes a while to start and is started only where it is needed."""
    python = os.environ.get("PACELINE_RAY_PYTHON")
    assert python, "PACELINE_RAY_PYTHON names no interpreter with Ray: make test-all makes one"
    return replace(grounds, env={**grounds.env, "RAY_ADDRESS": start_ray(grounds.up, Path(python))})


def workers() -> list[psutil.Process]:
    """Ranks and agents that still run, but for those of tests that run beside this one."""
    beside = {worker.pid for worker in psutil.Process(os.getppid()).children()} - {os.getpid()}
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any("quick_worker.py" in word for word in words) or any("import base64,zlib;exec" in word for word in words):
            with contextlib.suppress(psutil.NoSuchProcess):
                if not beside & {parent.pid for parent in process.parents()}:
                    found.append(process)
    return found
