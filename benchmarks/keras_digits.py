"""Keras learns digits: accuracy with two ranks beside one process, and what the end of a rank costs the other.

    .venv/bin/python benchmarks/keras_digits.py [--backends tensorflow,torch,jax]

The script is examples/training/keras_digits.py; each turn has another seed, of the network and of the order of samples.
In the third job of a turn rank 1 ends in mid-training, as if killed; the time runs from there to the end of the first
step that rank 0 commits without it.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from pathlib import Path
from typing import Any

from lib import ranks
from lib.result import median_figure, parser_of, publish

EXAMPLE = Path(__file__).parents[1] / "examples" / "training" / "keras_digits.py"
EPOCHS, KILLED_AT = 10, 60


def main() -> None:
    """Run the jobs of every backend."""
    parser = parser_of(__doc__)
    parser.add_argument("--backends", default="tensorflow,torch,jax")
    parser.add_argument("--times", type=int, default=5, help="turns, and seeds")
    parser.add_argument("--worker", nargs=2, metavar=("WHAT", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        ranks.finish(worker(args.worker[0] == "killed", int(args.worker[1])))
    figures, turns = [], {}
    for backend in args.backends.split(","):
        found = turns[backend] = [turn(backend, seed) for seed in range(args.times)]
        for name in found[0]:
            unit = "s" if name.startswith("seconds") else ""
            figures.append(median_figure(f"{backend}: {name}", [each[name] for each in found], unit, of="seeds"))
    publish(args, figures, turns=turns)


def turn(backend: str, seed: int) -> dict[str, float]:
    """One process, two, and two of which one ends."""
    alone = job(backend, 1, "whole", seed)
    both = job(backend, 2, "whole", seed)
    left, dead = job(backend, 2, "killed", seed)
    next_end = min(end for end, step in left["ends"] if step > KILLED_AT)
    return {
        "accuracy, one process": alone[0]["accuracy"],
        "accuracy, two ranks": both[0]["accuracy"],
        "accuracy, one of two killed": left["accuracy"],
        "seconds from kill to next step": next_end - dead["died"],
    }


def job(backend: str, size: int, what: str, seed: int) -> list[Any]:
    """What each rank printed."""
    env = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return ranks.run(__file__, ["--worker", what, str(seed)], size, env=env, framework="keras")


def worker(killed: bool, seed: int) -> dict[str, Any]:
    """One rank."""
    spec = importlib.util.spec_from_file_location("example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    import keras

    import paceline

    images, labels = example.digits()
    model, ends = example.network(images.shape[1:], seed), []
    join = paceline.keras.Join(128, paceline.Settings(seed=seed))

    def note(batch: int, logs: Any) -> None:
        ends.append((time.monotonic(), join.pace.position.step))
        if killed and os.environ["RANK"] == "1" and join.pace.position.step == KILLED_AT:
            ranks.finish({"died": time.monotonic()})

    noting = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    held = example.HELD_OUT
    model.fit(images[held:], labels[held:], epochs=EPOCHS, verbose=0, callbacks=[join, noting])
    accuracy = model.evaluate(images[:held], labels[:held], verbose=0)[1]
    return {"accuracy": accuracy, "ends": ends}


if __name__ == "__main__":
    main()
