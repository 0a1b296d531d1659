from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.environments import environment_python, prepare, worker_path
from paceline.bench.sites.local import free_ports

WORKER = Path(__file__).with_name("worker.py")


class Ranks:
    """The processes of one job."""

    def __init__(
        self, python: Path, folder: Path, scenario: str, options: dict[str, Any], size: int, env: dict[str, str]
    ) -> None:
        self._env, self._python, self.folder, self.scenario, self.options, self.size = (
            env,
            python,
            folder,
            scenario,
            options,
            size,
        )
        self.secret = secrets.token_hex(16)
        self.port = free_ports(1)[0]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for rank in range(size):
            self.start(rank)

    def start(self, rank: int, *, late: bool = False) -> subprocess.Popen[bytes]:
        env = {
            **os.environ,
            "PYTHONPATH": str(worker_path()),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "PACELINE_JOIN": f"127.0.0.1:{self.port}",
            "PACELINE_SECRET": self.secret,
            "PACELINE_ROSTER": str(self.folder / "roster.json"),
            **self._env,
            **({"PACELINE_LATE": "1"} if late else {}),
        }
        worker = WORKER.with_name(f"{self.scenario}_worker.py")
        script = worker if worker.exists() else WORKER
        argv = [str(self._python), str(script), self.scenario, json.dumps(self.options), str(self.result_path(rank))]
        with (self.folder / f"rank-{rank}.log").open("ab") as log:
            self.processes[rank] = subprocess.Popen(argv, env=env, stdout=log, stderr=log)
        return self.processes[rank]

    def result_path(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.json"

    def log(self, rank: int) -> str:
        return (self.folder / f"rank-{rank}.log").read_text(errors="replace")

    def steps(self, rank: int) -> list[dict[str, Any]]:
        path = self.result_path(rank).with_suffix(".steps")
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]

    def wait(self, *ranks: int, timeout: float = 90.0) -> list[dict[str, Any]]:
        found = []
        for rank in ranks or range(self.size):
            code = self.processes[rank].wait(timeout)
            assert code == 0, f"rank {rank} ended with {code}:\n{self.log(rank)}"
            found.append(json.loads(self.result_path(rank).read_text()))
        return found

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture(scope="session")
def torch_python() -> Path:
    return environment_python(prepare("pytorch"))


@pytest.fixture
def ranks(torch_python: Path, tmp_path: Path) -> Any:
    jobs: list[Ranks] = []

    def run(scenario: str, size: int, env: dict[str, str] | None = None, **options: Any) -> Ranks:
        folder = tmp_path / str(len(jobs))
        folder.mkdir()
        jobs.append(Ranks(torch_python, folder, scenario, options, size, env or {}))
        return jobs[-1]

    yield run
    for job in jobs:
        job.stop()


StartRanks = Callable[..., Ranks]


class Syncers:
    """The shards of a syncer."""

    def __init__(self, python: Path, folder: Path, shards: int, policy: dict[str, Any]) -> None:
        self._python, self.folder = python, folder
        self.secret = secrets.token_hex(16)
        self.ports = free_ports(shards)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for index, port in enumerate(self.ports):
            settings = {"index": index, "folder": str(folder), "address": "127.0.0.1", "port": port, **policy}
            (folder / f"shard-{index}.json").write_text(json.dumps(settings))
            self.start(index)

    def start(self, index: int) -> None:
        argv = [str(self._python), "-m", "paceline.runtime.syncer.shard", str(self.folder / f"shard-{index}.json")]
        env = {**os.environ, "PYTHONPATH": str(worker_path()), "PACELINE_SECRET": self.secret}
        with (self.folder / f"shard-{index}.log").open("ab") as log:
            self.processes[index] = subprocess.Popen(argv, env=env, stdout=log, stderr=log)

    def env(self, group: str, **more: Any) -> dict[str, str]:
        return {
            "PACELINE_SYNCER": ",".join(f"127.0.0.1:{port}" for port in self.ports),
            "PACELINE_SYNCER_SECRET": self.secret,
            "PACELINE_GROUP": group,
            **{name: str(value) for name, value in more.items()},
        }

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def syncers(torch_python: Path, tmp_path: Path) -> Any:
    made: list[Syncers] = []

    def run(shards: int, **policy: Any) -> Syncers:
        folder = tmp_path / f"syncer-{len(made)}"
        folder.mkdir()
        made.append(Syncers(torch_python, folder, shards, policy))
        return made[-1]

    yield run
    for item in made:
        item.stop()


StartSyncers = Callable[..., Syncers]
