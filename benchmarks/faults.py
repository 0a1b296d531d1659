"""Members that die and hang at random moments, again and again, in one run of three ranks.

python benchmarks/faults.py --repeats 20 --json

Each round picks a rank, the leader as often as any, and either kills it (SIGKILL) and starts it again, or stops it
(SIGSTOP) until it was left behind and lets it go on (SIGCONT). Printed: seconds from the fault to the next committed
step of the others, seconds from the return to the first step with all three again, and the accounting: every step
number committed once, parameters equal after every step, and no sample of an epoch used twice by committed steps.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ranks

SIZE, SAMPLES, BATCH = 3, 600, 60


def main() -> None:
    """Run rounds of faults and print what they cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--kinds", default="kill,hang")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(Path(args.worker))
    results = {kind: rounds(kind, args.repeats, args.seed) for kind in args.kinds.split(",")}
    print(json.dumps(results) if args.json else json.dumps(results, indent=2))


def rounds(kind: str, repeats: int, seed: int) -> dict[str, Any]:
    """One run with so many faults of one kind."""
    generator = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        job = Job(Path(name))
        try:
            job.until(lambda record: record["size"] == SIZE, since=0.0)
            costs = [one_round(job, kind, generator) for _ in range(repeats)]
            (job.folder / "stop").touch()
            codes = [process.wait(60) for process in job.processes.values()]
        finally:
            job.kill()
        found = {"repeats": repeats, "exit_codes": codes, **accounting(job)}
        for index, what in enumerate(("fault_to_next_step_s", "return_to_full_group_s")):
            values = [cost[index] for cost in costs]
            found[what] = {"median": round(statistics.median(values), 3), "max": round(max(values), 3)}
        return found


def one_round(job: Job, kind: str, generator: random.Random) -> tuple[float, float]:
    """One fault and the return of its victim: what both cost the others."""
    time.sleep(generator.uniform(0.3, 0.8))
    victim = generator.randrange(SIZE)
    process, at = job.processes[victim], time.monotonic()
    process.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
    lost = job.until(lambda record: record["size"] < SIZE, since=at, without=victim) - at
    time.sleep(generator.uniform(0.1, 0.4))
    back = time.monotonic()
    if kind == "kill":
        process.wait()
        job.start(victim, late=True)
    else:
        process.send_signal(signal.SIGCONT)
    return lost, job.until(lambda record: record["size"] == SIZE, since=back, without=victim) - back


class Job:
    """Three ranks and the lines they write after each committed step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._env = ranks.environment(SIZE)
        port = self._env.pop("MASTER_PORT")
        self._env |= {"PACELINE_JOIN": f"127.0.0.1:{port}", "PACELINE_ROSTER": str(folder / "roster.json")}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for rank in range(SIZE):
            self.start(rank)

    def start(self, rank: int, *, late: bool = False) -> None:
        """Start a rank; late ones join the others."""
        env = {**self._env, "RANK": str(rank), **({"PACELINE_LATE": "1"} if late else {})}
        with (self.folder / f"{rank}.log").open("ab") as log:
            argv = [sys.executable, __file__, "--worker", str(self.folder)]
            self.processes[rank] = subprocess.Popen(argv, env=env, stdout=log, stderr=log)

    def records(self, rank: int) -> list[dict[str, Any]]:
        """What a rank has committed; a line cut off by a kill is left out."""
        path = self.folder / f"{rank}.steps"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def until(self, wanted: Any, *, since: float, without: int | None = None, timeout: float = 60.0) -> float:
        """When a rank first committed a step like that after a moment."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for rank in range(SIZE):
                if rank != without:
                    for record in self.records(rank)[-50:]:
                        if record["at"] > since and wanted(record):
                            return record["at"]
            time.sleep(0.01)
        logs = "\n".join((self.folder / f"{rank}.log").read_text()[-2000:] for rank in range(SIZE))
        raise SystemExit(f"no such step within {timeout} s\n{logs}")

    def kill(self) -> None:
        """End what still runs."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def accounting(job: Job) -> dict[str, Any]:
    """Whether steps and samples were each committed once, by what all ranks wrote."""
    final = max((record for rank in range(SIZE) for record in job.records(rank)), key=lambda item: item["step"])
    by_step: dict[int, list[dict[str, Any]]] = {}
    for rank in range(SIZE):
        for record in job.records(rank):
            by_step.setdefault(record["step"], []).append(record)
    gaps = [step for step in range(1, final["step"] + 1) if step not in by_step]
    unequal = [step for step, found in by_step.items() if len({record["hash"] for record in found}) > 1]
    used: dict[tuple[int, int], int] = {}
    for step, found in by_step.items():
        for record in found:
            for sample in record["samples"]:
                used[(record["epoch"], sample)] = used.get((record["epoch"], sample), 0) + (step not in unequal)
    twice = sum(1 for count in used.values() if count > 1)
    return {"steps": final["step"], "lost_steps": len(gaps), "unequal_steps": len(unequal), "samples_used_twice": twice}


def worker(folder: Path) -> None:
    """One rank: trains until a file says stop."""
    import hashlib

    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    from paceline.runtime import Patience, Settings, join
    from paceline.runtime.emulate import Emulated, emulate

    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ["RANK"]))
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
    emulate(model, Emulated(per_sample=0.002))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data = torch.randn(SAMPLES, 20, generator=torch.Generator().manual_seed(1))
    settings = Settings(patience=Patience(beat=0.1, silence=1.0, linger=0.05))
    with (
        (folder / f"{os.environ['RANK']}.steps").open("a") as progress,
        join(model, optimizer, TensorDataset(data), global_batch=BATCH, settings=settings) as pace,
    ):
        for batch in pace.batches(steps=10**9):
            step, epoch = pace.position.step, pace.position.epoch
            pace.step(model(batch.inputs).square().mean())
            if pace.position.step == step + 1:
                content = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
                record = {"step": step + 1, "epoch": epoch, "size": pace.size, "at": time.monotonic()}
                record |= {"samples": batch.indices.tolist(), "hash": hashlib.sha256(content).hexdigest()[:16]}
                progress.write(json.dumps(record) + "\n")
                progress.flush()
            if (folder / "stop").exists():
                break
    os._exit(0)


if __name__ == "__main__":
    main()
