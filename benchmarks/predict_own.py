"""Four models of transformers, watched on one rank and predicted on two, against real DDP on two ranks.

    .venv/bin/python benchmarks/predict_own.py                     --rounds 3
    .venv/bin/python benchmarks/predict_own.py --quick             one round, two models

Models are built from configurations, without downloads: ResNet, ViT, GPT-2 and BERT, all small. In each round a script
of the user is watched on one rank (`paceline watch`, nothing changed in it), the exchange is swept (`paceline
bench-collectives`), and the same script trains on two ranks by DistributedDataParallel, unwatched: its median step is
what is predicted. No run on two ranks is used for a prediction. Ranks have one thread and a core each. Figures are
medians over the rounds. Needs the environment of `make trainers`. Exits with 1 if the mean error exceeds 5 %.
"""

from __future__ import annotations

import json
import os
import secrets
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from lib.pythons import trainers_python
from lib.result import ROOT, Figure, parser_of, publish

from paceline.api import profile_of_run
from paceline.catalog import shipped_catalog
from paceline.measurements.store import Store
from paceline.model.calibrate import swept_calibration
from paceline.model.question import Question
from paceline.model.scaling import predict_curve

MODELS = ("resnet", "vit", "gpt2", "bert")
SCRIPT = ROOT / "benchmarks/lib/model_script.py"
SIZES = "4 KiB,64 KiB,256 KiB,1 MiB,4 MiB,16 MiB,64 MiB"
TARGET = 0.05


def main() -> int:
    """Measure the rounds, predict each, and compare."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--store", type=Path, default=Path("results/predict-own"))
    parser.add_argument("--quick", action="store_true", help="one round of two models")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.models = 1, [MODELS[0], MODELS[2]]
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for _ in range(options.rounds):
        for row in one_round(options.models, options.store.absolute() / f"round-{secrets.token_hex(3)}"):
            found[row["model"]].append(row)
            print("{model:14} measured {measured_s:.4f} s, predicted {predicted_s:.4f} s".format(**row), flush=True)
    errors = {}
    for model, rows in found.items():
        measured, predicted = (statistics.median(row[key] for row in rows) for key in ("measured_s", "predicted_s"))
        errors[model] = 100 * (predicted / measured - 1)
    off = [abs(error) for error in errors.values()]
    mean = statistics.fmean(off)
    figures = [
        Figure("mean absolute error", mean, "%", min(off), max(off), f"range of {len(off)} models"),
        *(Figure(f"error, {model}", error, "%") for model, error in errors.items()),
    ]
    return publish(options, figures, turns=dict(found), passed=mean <= 100 * TARGET)


def one_round(models: list[str], place: Path) -> list[dict[str, Any]]:
    """Sweep, watch each model on one rank, predict it, and train it on two ranks."""
    place.mkdir(parents=True)
    paceline = [sys.executable, "-m", "paceline"]
    sweep = ["bench-collectives", "--ranks", "2", "--collectives", "all_reduce", "--sizes", SIZES, "--seconds", "0.3"]
    subprocess.run([*paceline, *sweep, "--store", str(place)], check=True, stdout=subprocess.DEVNULL)
    rows = []
    for model in models:
        script = [trainers_python(), str(SCRIPT), model]
        watched = [*paceline, "watch", "--name", model, "--store", str(place), "--", *script]
        subprocess.run(watched, check=True, stdout=subprocess.DEVNULL, env=environment())
        rows.append({"model": model, "measured_s": trained(script), "predicted_s": predicted(model, place)})
    return rows


def environment() -> dict[str, str]:
    """One thread for every rank."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}


def trained(script: list[str]) -> float:
    """Median seconds of a step on two ranks, as the script itself timed them."""
    torchrun = [str(Path(script[0]).parent / "torchrun"), "--standalone", "--nproc-per-node", "2", *script[1:]]
    done = subprocess.run(torchrun, check=True, capture_output=True, text=True, env=environment())
    return float(json.loads(done.stdout.splitlines()[-1])["step_s"])


def predicted(model: str, place: Path) -> float:
    """Seconds of a step on two ranks of this machine, from the watched run and the sweep."""
    profile = profile_of_run(model, place)
    question = Question(shipped_catalog().cluster("local"), "pytorch", profile.batch, profile=profile)
    curve = predict_curve(question, (2,), calibration=swept_calibration(Store(place)))
    return curve.predictions[0].step_s.value


if __name__ == "__main__":
    sys.exit(main())
