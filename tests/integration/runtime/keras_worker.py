"""One rank that trains a Keras model as it is told; writes its parameters, losses and steps."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np

from paceline.errors import InputError
from paceline.keras import Join, join_keras
from paceline.runtime import Settings, Timeouts
from paceline.runtime.group.balance import Balance
from paceline.runtime.samples import epoch_order

QUICK = Timeouts(heartbeat_interval=0.1, heartbeat_timeout=1.0, join=60.0, settle=0.05)
SAMPLES, GLOBAL_BATCH, EPOCHS = 70, 30, 3
"""An epoch has three steps, the last of ten samples."""
SHARES = Balance.shares


class Watcher(keras.callbacks.Callback):
    """Notes each step, and kills its process after one if told."""

    def __init__(self, join: Join, kill: tuple[int, int] | None) -> None:
        super().__init__()
        self._join, self._kill = join, kill
        self.steps: list[tuple[int, int, float]] = []
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.steps.append((self._join.pace.position.step, self._join.pace.size, time.monotonic()))
        if self._kill == (int(os.environ["RANK"]), self._join.pace.position.step):
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.losses.append(float((logs or {})["loss"]))


class Apart(keras.callbacks.Callback):
    """Another rate on each rank, as a schedule by a metric of the rank's own samples sets it."""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.model.optimizer.learning_rate = 0.02 / (1 + int(os.environ["RANK"]))


def problem() -> tuple[Any, np.ndarray, np.ndarray]:
    """A model that starts from another point on each rank, and fixed data."""
    generator = np.random.default_rng(0)
    inputs, targets = generator.standard_normal((SAMPLES, 8)).astype("float32"), generator.integers(0, 3, SAMPLES)
    keras.utils.set_random_seed(int(os.environ["RANK"]))
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
    return model, inputs, targets


def given(kind: str, inputs: np.ndarray, targets: np.ndarray) -> dict[str, Any]:
    """The samples in one of the forms that `fit` takes."""
    if kind == "dataset":
        import tensorflow as tf

        return {"x": tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(7)}
    if kind == "loader":
        from torch.utils.data import DataLoader

        return {"x": DataLoader(list(zip(inputs, targets, strict=True)), batch_size=7)}
    return {"x": inputs, "y": targets}


def by_fit(told: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """`fit` with the callback."""
    model, inputs, targets = problem()
    join = Join(GLOBAL_BATCH, Settings(timeouts=QUICK, chunk=told.get("chunk")))
    watcher = Watcher(join, tuple(told["kill"]) if "kill" in told else None)
    data, more = given(told.get("data", "arrays"), inputs, targets), [Apart()] if "apart" in told else []
    try:
        model.fit(**data, epochs=EPOCHS, verbose=2, callbacks=[join, watcher, *more], validation_data=(inputs, targets))
    except InputError as error:
        return model, {"error": error.message}
    return model, {"steps": watcher.steps, "losses": watcher.losses}


def by_loop(told: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """`train_on`, or a compiled step of the user's."""
    model, inputs, targets = problem()
    with join_keras(model, (inputs, targets), global_batch=GLOBAL_BATCH) as training:
        step = own_step(model) if told["do"] == "own step" else training.train_on
        losses = [float(step(batch)["loss"]) for batch in training.batches(epochs=EPOCHS)]
    return model, {"losses": losses}


def own_step(model: Any) -> Any:
    """A compiled TensorFlow step as users write it."""
    import tensorflow as tf

    @tf.function(reduce_retracing=True)
    def step(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(y=targets, y_pred=model(inputs, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return lambda batch: {"loss": step(*batch)}


def by_keras_alone(_: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What one process without Paceline trains from rank 0's start, on the same samples in each step."""
    model, inputs, targets = problem()
    for epoch in range(EPOCHS):
        order = epoch_order(SAMPLES, seed=0, epoch=epoch)
        for begin in range(0, SAMPLES, GLOBAL_BATCH):
            chosen = order[begin : begin + GLOBAL_BATCH]
            model.train_on_batch(inputs[chosen], targets[chosen])
    return model, {}


def force(shares: list[int] | None) -> None:
    """Make every full step of two ranks use these shares."""
    Balance.shares = (
        SHARES
        if shares is None
        else lambda self, total: (  # type: ignore[method-assign]
            tuple(shares) if total == GLOBAL_BATCH and len(self._ids) == 2 else SHARES(self, total)
        )
    )


def main() -> None:
    found, ways = {}, {"fit": by_fit, "alone": by_keras_alone}
    for told in json.loads(sys.argv[1]):
        force(told.get("shares"))
        model, facts = ways.get(told["do"], by_loop)(told)
        flat = np.concatenate([keras.ops.convert_to_numpy(item).ravel() for item in model.trainable_variables])
        found[json.dumps(told)] = {**facts, "values": flat.tolist()}
    Path(sys.argv[2]).write_text(json.dumps(found))
    os._exit(0)


if __name__ == "__main__":
    main()
