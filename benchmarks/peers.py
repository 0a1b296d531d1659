"""The same work by torchft and hivemind, from PyPI, beside Paceline in one run on one machine.

    .venv/bin/python benchmarks/peers.py --what utilisation --speeds 4,1 --step 0.2
    .venv/bin/python benchmarks/peers.py --what kill --repeats 10

`utilisation` is achieved throughput over the sum of what each device does alone, as in benchmarks/utilisation.py.
`kill` takes two ranks, kills one at a random moment (SIGKILL, with all processes it started) and starts it again:
seconds from the kill to the next step of the other, and from the call that joins to the first step of both. torchft
runs twice: with its defaults, and with its lighthouse told to miss a heartbeat after 1 s in place of 5. Each peer has
an environment of its own, made on first use from the versions in benchmarks/lib/locks; a peer that fails to install
or to run is reported with its error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lib import ranks
from lib.fault_jobs import Failed, Job, Process
from lib.pythons import python_of
from lib.result import Figure, parser_of, publish

from paceline.bench.environments import worker_path
from paceline.bench.sites.local import free_ports
from paceline.errors import PacelineError

WORKERS = Path(__file__).parent / "lib" / "peer_workers.py"


def main() -> None:
    """Compare what was asked for."""
    parser = parser_of(__doc__)
    parser.add_argument("--what", choices=("utilisation", "kill"), default="utilisation")
    parser.add_argument("--peers", default="paceline,torchft,hivemind")
    parser.add_argument("--speeds", default="4,1")
    parser.add_argument("--step", type=float, default=0.2, help="seconds of a perfectly balanced step")
    parser.add_argument("--gradients", type=float, default=4e6)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=75.0, help="no further kill of a peer after so long")
    args = parser.parse_args()
    found = utilisations(args) if args.what == "utilisation" else kills(args)
    for name, value in found.items():
        print(f"{name:22} {value}")
    publish(args, utilised(found) if args.what == "utilisation" else recovered(found), turns=found)


def utilised(found: dict[str, Any]) -> list[Figure]:
    """Of the peers that ran."""
    return [Figure(f"utilisation, {peer}", value) for peer, value in found.items() if isinstance(value, float)]


def recovered(found: dict[str, Any]) -> list[Figure]:
    """Seconds of the peers that survived a kill."""
    meanings = {"kill_to_next_step_s": "kill to next step", "join_to_both_s": "join to first step of both"}
    return [
        Figure(f"{meaning}, {peer}", part["median"], "s", part["median"], part["max"], "median to largest")
        for peer, item in found.items()
        for key, meaning in meanings.items()
        if (part := item.get(key))
    ]


def interpreter(peer: str) -> str:
    """Paceline's ranks run where those of the other benchmarks do."""
    return ranks.interpreter() if peer == "paceline" else python_of(peer)


def environment(peer: str, size: int) -> dict[str, str]:
    """What all ranks are told."""
    return {**ranks.environment(size), **({} if peer == "paceline" else {"PYTHONPATH": str(worker_path())})}


def utilisations(args: argparse.Namespace) -> dict[str, Any]:
    """Of every peer, in one run."""
    speeds = [float(speed) for speed in args.speeds.split(",")]
    with ThreadPoolExecutor() as pool:  # emulated devices leave the host idle, so they can be alone at once
        alone = sum(pool.map(lambda speed: rate(args, "paceline", [speed]), speeds))
    found: dict[str, Any] = {}
    for peer in args.peers.split(","):
        try:
            found[peer] = round(rate(args, peer, speeds) / alone, 3)
        except (Failed, PacelineError, subprocess.TimeoutExpired) as error:
            found[peer] = f"failed: {str(error)[-500:]}"
        print(peer, found[peer], file=sys.stderr, flush=True)
    return found


def rate(args: argparse.Namespace, peer: str, speeds: list[float]) -> float:
    """Samples per second of all ranks together."""
    told = {"speeds": speeds, "step": args.step, "gradients": args.gradients, "steps": args.steps}
    base = environment(peer, len(speeds))
    with tempfile.TemporaryDirectory() as folder, lighthouse(peer, len(speeds), []) as where:
        argv = [interpreter(peer), str(WORKERS), f"{peer}-rate", json.dumps({**told, "folder": folder})]
        started = [
            Tree(argv, {**base, **where, "RANK": str(rank)}, Path(folder) / f"{rank}.log")
            for rank in range(len(speeds))
        ]
        try:
            codes = [tree.wait(240) for tree in started]
        finally:
            for tree in started:
                tree.kill()
        outputs = [(Path(folder) / f"{rank}.log").read_text(errors="replace") for rank in range(len(speeds))]
    if any(codes):
        raise Failed("\n".join(outputs))
    return max(_number(output) for output in outputs)


def _number(output: str) -> float:
    """The last line that is a number: loggers may write behind it."""
    for line in reversed(output.splitlines()):
        with contextlib.suppress(ValueError):
            return float(line)
    raise Failed(output)


@contextlib.contextmanager
def lighthouse(peer: str, least: int, options: list[str]) -> Iterator[dict[str, str]]:
    """torchft's coordinator, while it is needed; what its workers are told."""
    if peer != "torchft":
        yield {}
        return
    (port,) = free_ports(1)
    program = Path(python_of(peer)).with_name("torchft_lighthouse")
    words = ["--min_replicas", str(least), "--bind", f"127.0.0.1:{port}", "--quorum_tick_ms", "50", *options]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([str(program), *words], stdout=quiet, stderr=quiet)
    try:
        yield {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
    finally:
        process.kill()
        process.wait()


class Tree:
    """A process and all that it starts, which die together."""

    def __init__(self, argv: list[str], env: dict[str, str], log: Path) -> None:
        with log.open("ab") as file:
            self._process = subprocess.Popen(argv, env=env, stdout=file, stderr=file, start_new_session=True)

    def kill(self) -> None:
        """SIGKILL of all."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """To all that are left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code of the first."""
        return self._process.wait(timeout)


class PairJob(Job):
    """Two ranks by one of the peers."""

    def __init__(self, folder: Path, peer: str, told: dict[str, str]) -> None:
        super().__init__(folder, size=2)
        self._peer = peer
        self._env = {**environment(peer, 2), **told}

    def spawn(self, name: str, env: dict[str, str]) -> Process:
        """The peer's own worker."""
        argv = [interpreter(self._peer), str(WORKERS), f"{self._peer}-kill", json.dumps({"folder": str(self.folder)})]
        return Tree(argv, env, self.folder / f"{name}.log")


def kills(args: argparse.Namespace) -> dict[str, Any]:
    """What a kill and a return cost with each peer that survives one."""
    found: dict[str, Any] = {}
    for name, peer, options in (
        ("paceline", "paceline", []),
        ("torchft", "torchft", []),
        ("torchft, 1 s heartbeat", "torchft", ["--heartbeat_timeout_ms", "1000"]),
        ("hivemind", "hivemind", []),
    ):
        if peer in args.peers.split(","):
            found[name] = kill_rounds(peer, options, args.repeats, args.seconds)
            print(name, found[name], file=sys.stderr, flush=True)
    return found


def kill_rounds(peer: str, options: list[str], repeats: int, seconds: float) -> dict[str, Any]:
    """One pair of ranks, killed again and again; what was measured before it failed, if it does."""
    generator, costs = random.Random(7), list[tuple[float, float]]()
    failed: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            told = stack.enter_context(lighthouse(peer, 1, options))
            job = stack.enter_context(contextlib.closing(PairJob(folder, peer, told)))
            job.begin()
            end = time.monotonic() + seconds
            while len(costs) < repeats and time.monotonic() < end:
                costs.append(kill_round(job, generator))
        except (Failed, PacelineError, subprocess.TimeoutExpired) as error:
            failed = {"failed": str(error)[-1500:]}
    keys = ("kill_to_next_step_s", "join_to_both_s")
    spread = {
        key: {"median": round(statistics.median(values), 3), "max": round(max(values), 3)}
        for key, values in zip(keys, zip(*costs, strict=True), strict=False)
    }
    return {**spread, "repeats": len(costs), **failed}


def kill_round(job: Job, generator: random.Random) -> tuple[float, float]:
    """One kill and one return."""
    time.sleep(generator.uniform(0.3, 0.8))
    victim = generator.choice(job.names)
    at = time.monotonic()
    job.processes[victim].kill()
    known = max(record["step"] for name in job.names for record in job.newest(name))
    # Who does not know yet that it is alone has gone on too, once it is past the step that was under way.
    alone = job.until(lambda record: record["size"] == 1 or record["step"] > known + 1, since=at, without=[victim])
    job.processes[victim].wait()
    time.sleep(generator.uniform(0.1, 0.4))
    begun = job.start(victim, late=True)
    both = max(
        job.until(lambda record: record["size"] == 2, since=begun, only=[name], timeout=90)["at"] for name in job.names
    )
    return alone["at"] - at, both - job.joined(victim)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
