"""A Keras 3 model on TensorFlow, on unequal machines: two classes of points that a small network learns to separate.

torchrun --nproc-per-node 2 train_keras.py          needs torch beside TensorFlow, which carries the gradients
paceline train train_keras.py --ranks 2             the same, and training survives the failure of either rank
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np

from paceline.runtime.keras_binding import join_keras


def rings(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of two rings around the origin, under noise."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, count)
    angles, radii = generator.uniform(0, 2 * np.pi, count), 1.0 + labels + 0.1 * generator.standard_normal(count)
    points = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
    return points.astype("float32"), labels


def main() -> None:
    """Train and print how many new points are recognised."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs
    keras.utils.set_random_seed(0)
    layers = [keras.Input((2,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    with join_keras(model, rings(1024, seed=1), global_batch=64) as training:
        for batch in training.batches(epochs=epochs):
            training.train_on(batch)
        if training.pace.rank == 0:
            points, labels = rings(500, seed=2)
            accuracy = float((model(points).numpy().argmax(1) == labels).mean())
            print(f"accuracy {accuracy:.3f} after {training.pace.position.step} steps on {training.pace.size} ranks")  # noqa: T201


if __name__ == "__main__":
    main()
