"""The same work by torchft and hivemind, from PyPI, beside Paceline in one run on one machine.

    python benchmarks/beside.py --what utilisation --speeds 4,1 --step 0.2 --json
    python benchmarks/beside.py --what kill --repeats 10 --json

`utilisation` is achieved throughput over the sum of what each device does alone, as in benchmarks/utilisation.py.
`kill` takes two ranks, kills one at a random moment (SIGKILL) and starts it again: seconds from the kill to the next
step of the other, and from the call that joins to the first step of both. torchft runs twice: with its defaults, and
with its lighthouse told to miss a heartbeat after 1 s in place of 5. Each has an environment of its own, made on first
use from the versions in benchmarks/locks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ranks
from beside_workers import WORKERS
from fault_jobs import Job

from paceline.bench.environments import RECIPES, environment_python, prepare, worker_path
from paceline.bench.launchers.local import free_ports
from paceline.bench.recipes import Recipe

HERE = Path(__file__).parent
PEERS = {
    "torchft": ("torch==2.13.0", "numpy", "torchft==0.2.0"),
    "hivemind": ("torch==2.13.0", "numpy", "hivemind==1.1.12"),
}


def main() -> None:
    """Compare what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("utilisation", "kill"), default="utilisation")
    parser.add_argument("--peers", default="paceline,torchft,hivemind")
    parser.add_argument("--speeds", default="4,1")
    parser.add_argument("--step", type=float, default=0.2, help="seconds of a perfectly balanced step")
    parser.add_argument("--gradients", type=float, default=4e6)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        WORKERS[args.worker](args)
    found = utilisations(args) if args.what == "utilisation" else kills(args)
    if args.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:22} {value}")


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment, made now if it is not there."""
    if peer == "paceline":
        return Path(sys.executable)
    lock = HERE / "locks" / f"{peer}.txt"
    RECIPES.setdefault(peer, Recipe(name=peer, requirements=PEERS[peer], lock=lock, smoke=f"import {peer}"))
    return environment_python(prepare(peer, lambda line: print(line, file=sys.stderr)))


def utilisations(args: argparse.Namespace) -> dict[str, Any]:
    """Of every peer, in one run."""
    speeds = [float(speed) for speed in args.speeds.split(",")]
    with ThreadPoolExecutor() as pool:  # emulated devices leave the host idle, so they can be alone at once
        alone = sum(pool.map(lambda speed: rate(args, "paceline", [speed]), speeds))
    found = {peer: round(rate(args, peer, speeds) / alone, 3) for peer in args.peers.split(",")}
    return {**found, "speeds": speeds, "step_s": args.step}


def rate(args: argparse.Namespace, peer: str, speeds: list[float]) -> float:
    """Samples per second of all ranks together."""
    given = ["--worker", f"{peer}-rate", "--speeds", ",".join(map(str, speeds)), "--step", str(args.step)]
    given += ["--gradients", str(args.gradients), "--steps", str(args.steps)]
    base = {**ranks.environment(len(speeds)), **_own_path(peer)}
    with tempfile.TemporaryDirectory() as folder, lighthouse(peer, len(speeds), []) as told:
        argv = [str(python_of(peer)), __file__, *given, "--folder", folder]
        processes = [
            subprocess.Popen(argv, env={**base, **told, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
            for rank in range(len(speeds))
        ]
        outputs = [process.communicate(timeout=240)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{peer} failed")
    return max(float(json.loads(output.splitlines()[-1])) for output in outputs)


def _own_path(peer: str) -> dict[str, str]:
    return {} if peer == "paceline" else {"PYTHONPATH": str(worker_path())}


@contextlib.contextmanager
def lighthouse(peer: str, least: int, options: list[str]) -> Iterator[dict[str, str]]:
    """torchft's coordinator, while it is needed; what its workers are told."""
    if peer != "torchft":
        yield {}
        return
    (port,) = free_ports(1)
    program = python_of(peer).with_name("torchft_lighthouse")
    words = ["--min_replicas", str(least), "--bind", f"127.0.0.1:{port}", "--quorum_tick_ms", "50", *options]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([str(program), *words], stdout=quiet, stderr=quiet)
    try:
        yield {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
    finally:
        process.kill()
        process.wait()


class PairJob(Job):
    """Two ranks by one of the peers."""

    def __init__(self, folder: Path, peer: str, told: dict[str, str]) -> None:
        super().__init__(folder, size=2)
        self._peer, self._told = peer, told

    def command(self, name: str, argv: Any) -> list[str]:
        """The peer's own worker."""
        worker = ["--worker", f"{self._peer}-kill", "--folder", str(self.folder)]
        return [str(python_of(self._peer)), __file__, *worker]

    def environment(self, name: str) -> dict[str, str]:
        """What its rank is told."""
        return {**super().environment(name), **self._told, **_own_path(self._peer)}


def kills(args: argparse.Namespace) -> dict[str, Any]:
    """What a kill and a return cost with each peer that survives one."""
    found = {}
    for name, peer, options in (
        ("paceline", "paceline", []),
        ("torchft", "torchft", []),
        ("torchft, 1 s heartbeat", "torchft", ["--heartbeat_timeout_ms", "1000"]),
    ):
        if peer in args.peers.split(","):
            found[name] = kill_rounds(peer, options, args.repeats)
    return found


def kill_rounds(peer: str, options: list[str], repeats: int) -> dict[str, Any]:
    """One pair of ranks, killed again and again."""
    generator = random.Random(7)
    with (
        tempfile.TemporaryDirectory() as name,
        lighthouse(peer, 1, options) as told,
        contextlib.closing(PairJob(Path(name), peer, told)) as job,
    ):
        job.begin()
        costs = [kill_round(job, generator) for _ in range(repeats)]
    parts = zip(*costs, strict=True)
    keys = ("kill_to_next_step_s", "join_to_both_s")
    return {
        key: {"median": round(statistics.median(values), 3), "max": round(max(values), 3)}
        for key, values in zip(keys, parts, strict=True)
    }


def kill_round(job: Job, generator: random.Random) -> tuple[float, float]:
    """One kill and one return."""
    time.sleep(generator.uniform(0.3, 0.8))
    victim = generator.choice(job.names)
    at = time.monotonic()
    job.processes[victim].kill()
    alone = job.until(lambda record: record["size"] == 1, since=at, without=[victim])["at"]
    job.processes[victim].wait()
    time.sleep(generator.uniform(0.1, 0.4))
    begun = job.start(victim, late=True)
    both = max(
        job.until(lambda record: record["size"] == 2, since=begun, only=[name], timeout=90)["at"] for name in job.names
    )
    return alone - at, both - job.joined(victim)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
