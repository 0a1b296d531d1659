"""Steps that sometimes take ten times as long: time to a fixed accuracy, synchronous against groups that do not wait.

python benchmarks/stragglers.py --json

Four emulated devices, each of whose steps is tenfold with 5 % probability, learn scikit-learn's digits. `synchronous`
is one balanced group; `groups` are four groups of one that exchange through the syncer every H local steps, with a
quorum of one. Both use the same optimiser and global batch; the time is until held-out accuracy first stays reached.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ranks

SIZE, BATCH, PER_SAMPLE = 4, 128, 0.001
SECRET = secrets.token_hex(16)


def main() -> None:
    """Run both ways for each seed and print the ratio of times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--accuracy", type=float, default=0.93)
    parser.add_argument("--local-steps", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        worker(args.worker, args.epochs, args.accuracy)
    found: dict[str, list[float]] = {"synchronous": [], "groups": []}
    for seed in range(args.seeds):
        given = ["--worker", str(seed), "--epochs", str(args.epochs), "--accuracy", str(args.accuracy)]
        found["synchronous"].append(ranks.run(__file__, given, SIZE)[0])
        found["groups"].append(grouped(given, args.local_steps))
    result = {way: round(statistics.median(times), 2) for way, times in found.items()}
    result["ratio"] = round(result["groups"] / result["synchronous"], 3)
    print(json.dumps({**result, "seconds": found}) if args.json else result)


def grouped(given: list[str], local_steps: int) -> float:
    """Seconds until the first of four groups had reached the accuracy for good."""
    with tempfile.TemporaryDirectory() as name, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        settings = {"index": 0, "folder": name, "address": "127.0.0.1", "port": port, "groups": SIZE, "quorum": 1}
        path = Path(name) / "shard.json"
        path.write_text(json.dumps({**settings, "rule": {"name": "keep"}}))
        server = [sys.executable, "-m", "paceline.runtime.syncer.server", str(path)]
        shard = subprocess.Popen(server, env={**os.environ, "PACELINE_SECRET": SECRET})
        try:
            groups = [start_group(index, port, given, local_steps) for index in range(SIZE)]
            outputs = [group.communicate(timeout=200)[0] for group in groups]
        finally:
            shard.kill()
            shard.wait()
    return min(float(json.loads(output.splitlines()[-1])) for output in outputs)


def start_group(index: int, port: int, given: list[str], local_steps: int) -> subprocess.Popen[str]:
    """A group of one rank."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PACELINE_SYNCER": f"127.0.0.1:{port}", "DEVICE": str(index)}
    env |= {"PACELINE_SYNCER_SECRET": SECRET, "PACELINE_GROUP": f"g{index}", "PACELINE_GROUP_SHARE": str(1 / SIZE)}
    env |= {"PACELINE_LOCAL_STEPS": str(local_steps)}
    return subprocess.Popen([sys.executable, __file__, *given], env=env, stdout=subprocess.PIPE, text=True)


def worker(seed: int, epochs: int, wanted: float) -> None:
    """One rank: seconds from the first step until the accuracy stayed reached."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.utils.data import TensorDataset

    from paceline.runtime import Settings, join
    from paceline.runtime.emulate import Emulated, emulate

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    data = load_digits()
    images, labels = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = nn.Sequential(net)
    device = int(os.environ.get("RANK", os.environ.get("DEVICE", "0")))
    emulate(model, Emulated(per_sample=PER_SAMPLE, straggle=0.05, seed=100 * seed + device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    reached: float | None = None
    dataset = TensorDataset(images[300:], labels[300:])
    with join(model, optimizer, dataset, global_batch=BATCH, settings=Settings(seed=seed)) as pace:
        begin = time.perf_counter()
        for batch in pace.batches(epochs=epochs):
            pace.step(nn.functional.cross_entropy(model(batch.inputs), batch.targets))
            with torch.no_grad():
                hidden = torch.relu(nn.functional.linear(images[:300], net[0].weight, net[0].bias))
                guessed = nn.functional.linear(hidden, net[2].weight, net[2].bias).argmax(1)
            good = (guessed == labels[:300]).float().mean().item() >= wanted
            now = time.perf_counter() - begin
            reached = (reached if reached is not None else now) if good else None
    ranks.finish(reached if reached is not None else float("inf"))


if __name__ == "__main__":
    main()
