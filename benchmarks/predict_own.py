"""Four models of timm and transformers, watched on one rank and predicted on two, against real DDP on two ranks.

    .venv/bin/python benchmarks/predict_own.py                     --rounds 4
    .venv/bin/python benchmarks/predict_own.py --quick             one round, two models

Models are built from configurations, without downloads: ResNet and ViT of timm, GPT-2 and BERT of transformers, all
small. In each round a script of the user is watched on one rank (`paceline watch`, nothing changed in it), the exchange
is swept (`paceline bench-collectives`), and the same script trains on two ranks by DistributedDataParallel, unwatched,
before and after it is watched: the geometric mean of both median steps is what is predicted. No run on two ranks is
used for a prediction. Ranks have one thread and a core each. An error is that of the geometric mean over the rounds of
predicted over measured in the same round. Needs the environment of `make trainers`; that of timm is made on first use.
Exits with 1 if the mean error exceeds 5 %.
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

from lib.pythons import python_of, trainers_python
from lib.result import ROOT, Figure, parser_of, publish

from paceline.api import profile_of_run
from paceline.catalog import shipped_catalog
from paceline.measurements.store import Store
from paceline.model.calibrate import swept_calibration
from paceline.model.question import Question
from paceline.model.scaling import predict_curve

MODELS = ("resnet", "vit", "gpt2", "bert")
OF_TIMM = ("resnet", "vit")
SCRIPT = ROOT / "benchmarks/lib/model_script.py"
SIZES = "4 KiB,64 KiB,256 KiB,1 MiB,4 MiB,16 MiB,64 MiB"
TARGET = 0.05


def main() -> int:
    """Measure the rounds, predict each, and compare."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=4)
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
        ratios = [row["predicted_s"] / row["measured_s"] for row in rows]
        errors[model] = 100 * (statistics.geometric_mean(ratios) - 1)
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
        script = [python_of("timm") if model in OF_TIMM else trainers_python(), str(SCRIPT), model]
        watched = [*paceline, "watch", "--name", model, "--store", str(place), "--", *script]
        before = trained(script)
        subprocess.run(watched, check=True, stdout=subprocess.DEVNULL, env=environment())
        measured = statistics.geometric_mean([before, trained(script)])
        rows.append({"model": model, "measured_s": measured, "predicted_s": predicted(model, place)})
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
