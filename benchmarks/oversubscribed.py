"""More ranks than cores, predicted and measured: 1, 2, 4 ranks here, one and two threads each, catalog and own models.

    .venv/bin/python benchmarks/oversubscribed.py                       everything, --rounds 3 (15 min)
    .venv/bin/python benchmarks/oversubscribed.py --rounds 1 --add      one more round, judged with those of the store
    .venv/bin/python benchmarks/oversubscribed.py --only resnet20 own-mlp --rounds 1 --ranks 1,2

Three networks of the catalog and three own models (an MLP, a small CNN, a small transformer with tied weights) train
under DDP. Of each there is one profile, by `paceline.capture` on one rank with all cores. The rest are probes that know
no network: `paceline bench-collectives` on 2 and 4 ranks, which also times a small step on one and two threads beside
the other ranks. No run that is judged is used for a prediction. In a round the same processes are profiled and train
alone, by twos and all together, each case before and after the profile: processes of one program differ by up to a
quarter in speed on a shared machine. An error is that of the geometric mean over the rounds of predicted over measured.
An interval is that of one prediction: that of a single round should hold the measurement of its round.
Exits with 1 if the mean absolute error exceeds 8 %, or the largest 20 %.
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
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lib.result import ROOT, Figure, parser_of, publish

from paceline.bench.environments import environment_python, prepare, worker_path
from paceline.catalog import cluster, network
from paceline.measurements.profile import Profile, read_profile
from paceline.measurements.store import Store
from paceline.model.calibrate import swept_calibration
from paceline.model.question import Question
from paceline.model.scaling import predict_curve
from paceline.spec.network import plain_network

NETWORKS = {"resnet20": 16, "googlenet-64px": 8, "alexnet-64px": 16}
"""Name and batch per rank."""
OWN = ("own-mlp", "own-cnn", "own-transformer")
THREADS = (1, 2)
MEAN, WORST = 0.08, 0.20
CORES = len(os.sched_getaffinity(0))
SIZES = "4 KiB,64 KiB,256 KiB,1 MiB,4 MiB,16 MiB,64 MiB"


def paceline(store: Path, *words: str) -> None:
    """Run a verb; what fails is missing from the round."""
    command = [str(Path(sys.executable).parent / "paceline"), *words, "--store", str(store)]
    done = subprocess.run(command, timeout=1200, stdout=subprocess.DEVNULL)
    if done.returncode:
        print(f"paceline {words[0]} ended with {done.returncode}: that part of the round is missing", flush=True)


def measure(names: list[str], ranks: list[int], folder: Path) -> dict[tuple[str, int, int], float]:
    """Start the ranks as torchrun would; seconds of a step by name, ranks and threads, and profiles in the folder."""
    for name in set(names) & set(NETWORKS):
        plain = {"network": plain_network(network(name)), "batch": NETWORKS[name]}
        (folder / f"{name}.json").write_text(json.dumps(plain), encoding="utf-8")
    python, port = environment_python(prepare("pytorch")), _free_port()
    argv = [str(python), str(ROOT / "benchmarks/lib/own_models.py"), ",".join(names), ",".join(map(str, ranks)),
            ",".join(map(str, THREADS)), str(folder)]  # fmt: skip
    shared = {**os.environ, "PYTHONPATH": str(worker_path()), "OMP_NUM_THREADS": str(CORES)}
    shared |= {"OMP_WAIT_POLICY": "passive", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            argv, env={**shared, "RANK": str(rank), "WORLD_SIZE": str(ranks[-1])}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(ranks[-1])
    ]
    outputs = [process.communicate(timeout=1800)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"training of {', '.join(names)} on {ranks} ranks failed")
    rows = [json.loads(line) for line in outputs[0].splitlines()]
    return {(row["model"], row["ranks"], row["threads"]): row["seconds"] for row in rows}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def one_round(args: argparse.Namespace, ranks: list[int]) -> list[dict[str, Any]]:
    """Measure everything once, and predict it from this round's profiles and probes."""
    place = args.store / f"round-{secrets.token_hex(3)}"
    place.mkdir(parents=True)
    several = [str(count) for count in ranks if count > 1]
    if several:
        paceline(place, "bench-collectives", "--ranks", ",".join(several), "--collectives", "all_reduce",
                 "--sizes", SIZES, "--seconds", "0.3")  # fmt: skip
    seconds, store = measure(args.only, ranks, place), Store(place)
    profiles = {name: read_profile(place / f"{name}.profile") for name in args.only}
    rows = [_row(profiles[key[0]], key, measured, store) for key, measured in seconds.items()]
    (place / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    return rows


def _row(profile: Profile, key: tuple[str, int, int], measured: float, store: Store) -> dict[str, Any]:
    name, ranks, threads = key
    question = Question(
        cluster("local").with_cores(CORES), "pytorch/ddp", profile.batch, profile=profile, threads=threads
    )
    known = swept_calibration(store)
    (found,) = predict_curve(question, (ranks,), calibration=known).predictions
    low, high = found.step_s.interval_90
    return {
        "network": name, "ranks": ranks, "threads": threads, "measured_s": measured,
        "predicted_s": found.step_s.value, "low_s": low, "high_s": high, "terms": found.terms,
        "jitter": profile.jitter, "uncertainty": profile.uncertainty, "sharing": [asdict(one) for one in known.sharing],
    }  # fmt: skip


def judged(rounds: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row of each case: geometric means over the rounds, so that their ratio is that of the ratios."""
    cases: dict[tuple[str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in (row for one in rounds for row in one):
        cases[row["network"], row["ranks"], row["threads"]].append(row)
    rows = []
    for (name, ranks, threads), found in sorted(cases.items()):
        middle = {
            field: statistics.geometric_mean(row[field] for row in found)
            for field in ("measured_s", "predicted_s", "low_s", "high_s")
        }
        held = middle["low_s"] <= middle["measured_s"] <= middle["high_s"]
        error = middle["predicted_s"] / middle["measured_s"] - 1
        rows.append({"network": name, "ranks": ranks, "threads": threads, **middle, "error": error, "held": held})
    return rows


def held_in_rounds(rounds: list[list[dict[str, Any]]]) -> float:
    """The share of single predictions whose interval holds what was measured in the same round."""
    return statistics.fmean(row["low_s"] <= row["measured_s"] <= row["high_s"] for one in rounds for row in one)


def main() -> int:
    """Measure, predict, print one table."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="+", choices=[*NETWORKS, *OWN], default=[*NETWORKS, *OWN])
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--add", action="store_true", help="judge the rounds that are in the store as well")
    parser.add_argument("--store", type=Path, default=Path("results/oversubscribed"))
    args = parser.parse_args()
    ranks = [int(count) for count in args.ranks.split(",")]
    kept = sorted(args.store.glob("round-*/rows.json")) if args.add else []
    rounds = [json.loads(path.read_text(encoding="utf-8")) for path in kept]
    rounds += [one_round(args, ranks) for _ in range(args.rounds)]
    rows = judged(rounds)
    print(f"{'network':16} {'ranks':>5} {'threads':>7} {'measured':>10} {'predicted':>10} {'90 %':>20} {'error':>8}")
    for row in rows:
        interval = f"{1e3 * row['low_s']:.1f} .. {1e3 * row['high_s']:.1f}"
        shown = f"{1e3 * row['measured_s']:8.1f}ms {1e3 * row['predicted_s']:8.1f}ms {interval:>20}"
        print(f"{row['network']:16} {row['ranks']:5} {row['threads']:7} {shown} {100 * row['error']:+7.1f} %")
    errors = [100 * abs(row["error"]) for row in rows]
    mean, worst = statistics.fmean(errors), max(errors)
    crowded = [100 * abs(row["error"]) for row in rows if row["ranks"] * row["threads"] > CORES]
    figures = [
        Figure("mean absolute error", mean, "%", min(errors), worst, f"range of {len(rows)} cases"),
        Figure("intervals of 90 % that hold", 100 * statistics.fmean(row["held"] for row in rows), "%"),
        Figure("of single rounds, intervals of 90 % that hold", 100 * held_in_rounds(rounds), "%"),
    ]
    if crowded:
        of = f"range of {len(crowded)} cases"
        more = Figure(
            "of these, with more threads than cores", statistics.fmean(crowded), "%", min(crowded), max(crowded), of
        )
        figures.append(more)
    return publish(args, figures, turns=rounds, passed=mean <= 100 * MEAN and worst <= 100 * WORST)


if __name__ == "__main__":
    sys.exit(main())
