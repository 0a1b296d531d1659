"""Steps that sometimes take ten times as long: time to a fixed accuracy, synchronous against groups that do not wait.

    python benchmarks/stragglers.py --json
    python benchmarks/stragglers.py --tune

Equal emulated devices, each of whose steps is tenfold with 5 % probability, learn scikit-learn's digits. `synchronous`
is one group, its batches split equally, which is the balanced split of equal devices; `groups` are as many groups of
one that exchange through the syncer every H local steps with a quorum of one: nobody waits for anybody. Both use the
same samples, network, kind of optimiser and global batch. The time is from the first step to the first of three looks
in a row, one after every step, at which held-out accuracy is reached; of the groups, the median counts. `--tune` tries
learning rates for both sides, and H for the groups, on seeds that are not measured; its best belong into BEST below.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ranks

from paceline.bench.launchers.local import free_ports

BATCH, PER_SAMPLE, HELD_OUT, LOOKS = 128, 0.002, 500, 3
RATES, LOCAL_STEPS = (0.1, 0.2, 0.4), (2, 4)
BEST = {"synchronous": {"rate": 0.4}, "groups": {"rate": 0.4, "local_steps": 4}}
"""First guesses: --tune has not been run yet, so neither side is tuned."""


def main() -> None:
    """Run both ways for each seed and print the ratio of times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--accuracy", type=float, default=0.94)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        worker(json.loads(args.worker))
    if args.tune:
        tune(args)
        return
    found: dict[str, list[float]] = {way: [] for way in BEST}
    for seed in args.seeds.split(","):
        for way, times in found.items():
            times.append(run(args, way, int(seed), **BEST[way]))
    result: dict[str, Any] = {way: round(statistics.median(times), 2) for way, times in found.items()}
    result |= {"ratio": round(result["groups"] / result["synchronous"], 3), "devices": args.devices}
    print(json.dumps({**result, "seconds": found}) if args.json else result)


def tune(args: argparse.Namespace) -> None:
    """Every setting on two seeds that are not measured."""
    tried: list[tuple[str, dict[str, Any]]] = [("synchronous", {"rate": rate}) for rate in RATES]
    tried += [("groups", {"rate": rate, "local_steps": steps}) for rate in RATES for steps in LOCAL_STEPS]
    for way, settings in tried:
        times = [round(run(args, way, seed, **settings), 2) for seed in (100, 101)]
        print(f"{way:11} {settings}: {times} s", flush=True)


def run(args: argparse.Namespace, way: str, seed: int, **settings: Any) -> float:
    """Seconds to the accuracy; the whole time and more if it was not reached."""
    told = {"seed": seed, "epochs": args.epochs, "accuracy": args.accuracy, **settings}
    given = ["--worker", json.dumps(told)]
    if way == "synchronous":
        return float(ranks.run(__file__, given, args.devices)[0])
    return grouped(given, args.devices, settings["local_steps"])


def grouped(given: list[str], devices: int, local_steps: int) -> float:
    """Groups of one around a syncer of one shard."""
    secret, (port,) = secrets.token_hex(16), free_ports(1)
    base = {**os.environ, "OMP_NUM_THREADS": "1", "PACELINE_SECRET": secret, "PACELINE_SYNCER_SECRET": secret}
    base |= {"PACELINE_SYNCER": f"127.0.0.1:{port}", "PACELINE_GROUP_SHARE": str(1 / devices)}
    base |= {"PACELINE_LOCAL_STEPS": str(local_steps)}
    with tempfile.TemporaryDirectory() as name:
        policy = {"index": 0, "folder": name, "address": "127.0.0.1", "port": port, "groups": devices, "quorum": 1}
        path = Path(name) / "shard.json"
        path.write_text(json.dumps({**policy, "rule": {"name": "keep"}}))
        shard = subprocess.Popen([sys.executable, "-m", "paceline.runtime.syncer.server", str(path)], env=base)
        argv = [sys.executable, __file__, *given, "--devices", str(devices)]
        ready = {"PACELINE_BENCH_READY": name}
        started = [
            subprocess.Popen(
                argv,
                env={**base, **ready, "DEVICE": str(index), "PACELINE_GROUP": f"g{index}"},
                stdout=subprocess.PIPE,
                text=True,
            )
            for index in range(devices)
        ]
        try:
            outputs = [group.communicate(timeout=200)[0] for group in started]
        finally:
            for process in (*started, shard):
                process.kill()
                process.wait()
    return statistics.median(float(json.loads(output.splitlines()[-1])) for output in outputs)


def all_ready(device: int, devices: int) -> None:
    """Groups do not wait for each other, so the clock of none may start before the last has been started."""
    folder = os.environ.get("PACELINE_BENCH_READY")
    if folder is None:
        return
    (Path(folder) / f"ready-{device}").touch()
    deadline = time.monotonic() + 120
    while len(list(Path(folder).glob("ready-*"))) < devices and time.monotonic() < deadline:
        time.sleep(0.01)


def worker(told: dict[str, Any]) -> None:
    """One rank: seconds from the first step until the accuracy was reached."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.utils.data import TensorDataset

    from paceline.runtime import Settings, join
    from paceline.runtime.emulate import Emulated, emulate

    torch.set_num_threads(1)
    torch.manual_seed(told["seed"])
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images, labels = torch.tensor(data.data / 16, dtype=torch.float32)[order], torch.tensor(data.target)[order]
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = nn.Sequential(net)
    device = int(os.environ.get("DEVICE", os.environ.get("RANK", "0")))
    emulate(model, Emulated(per_sample=PER_SAMPLE, straggle=0.05, seed=100 * told["seed"] + device))
    optimizer = torch.optim.SGD(model.parameters(), lr=told["rate"], momentum=0.5)
    dataset = TensorDataset(images[HELD_OUT:], labels[HELD_OUT:])
    looks, reached = 0, None
    settings = Settings(seed=told["seed"], balance=False)
    all_ready(device, _devices())
    with join(model, optimizer, dataset, global_batch=BATCH, settings=settings) as pace:
        begin = time.perf_counter()
        for batch in pace.batches(epochs=told["epochs"]):
            pace.step(nn.functional.cross_entropy(model(batch.inputs), batch.targets))
            with torch.no_grad():
                hidden = torch.relu(nn.functional.linear(images[:HELD_OUT], net[0].weight, net[0].bias))
                guessed = nn.functional.linear(hidden, net[2].weight, net[2].bias).argmax(1)
            good = (guessed == labels[:HELD_OUT]).float().mean().item() >= told["accuracy"]
            now = time.perf_counter() - begin
            if looks < LOOKS:
                reached = (now if looks == 0 else reached) if good else None
                looks = looks + 1 if good else 0
        whole = time.perf_counter() - begin
    ranks.finish(reached if looks == LOOKS else 2 * whole)


def _devices() -> int:
    """As the command line says."""
    return int(sys.argv[sys.argv.index("--devices") + 1]) if "--devices" in sys.argv else 1


if __name__ == "__main__":
    main()
