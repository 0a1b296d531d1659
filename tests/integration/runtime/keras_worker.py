"""One rank that trains a Keras model on TensorFlow; prints its parameters' sum and hash."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np

from paceline.runtime.group.balance import Balance
from paceline.runtime.keras_binding import join_keras


def main() -> None:
    options = json.loads(sys.argv[1])
    if options["shares"]:
        Balance.shares = lambda self, total: tuple(options["shares"])  # type: ignore[method-assign]
    generator = np.random.default_rng(0)
    data = generator.standard_normal((60, 8)).astype("float32"), generator.integers(0, 3, 60)
    keras.utils.set_random_seed(int(os.environ.get("RANK", "0")))
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    with join_keras(model, data, global_batch=30) as pace:
        losses = [pace.train_on(batch) for batch in pace.batches(steps=options["steps"])]
    flat = np.concatenate([variable.numpy().ravel() for variable in model.trainable_variables])
    digest = hashlib.sha256(flat.tobytes()).hexdigest()
    Path(sys.argv[2]).write_text(json.dumps({"values": flat.tolist(), "hash": digest, "losses": losses}))
    os._exit(0)


if __name__ == "__main__":
    main()
