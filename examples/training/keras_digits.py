"""A Keras 3 model learns digits on unequal machines: one line of `fit` is Paceline's.

python keras_digits.py                                       one process
torchrun --nproc-per-node 2 keras_digits.py                  two processes, balanced during training
paceline train keras_digits.py --ranks 2 --env keras         the same, and training survives the failure of either rank

KERAS_BACKEND chooses tensorflow (taken if it is not set), torch or jax; torch carries the gradients of all of them. The
digits are those of scikit-learn (1,797 handwritten ones) where it is installed, else drawn from a font, under noise.
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np

import paceline.keras

HELD_OUT = 300
FONT = """0E11131519110E 040C040404040E 0E11010204081F 1F02040201110E 02060A121F0202
          1F101E0101110E 0608101E11110E 1F010204080808 0E11110E11110E 0E11110F01020C"""
"""Seven rows of five pixels for each digit."""


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of 10 x 8 pixels with a digit somewhere in them."""
    generator = np.random.default_rng(seed)
    glyphs = [[[row >> bit & 1 for bit in (4, 3, 2, 1, 0)] for row in bytes.fromhex(glyph)] for glyph in FONT.split()]
    labels = generator.integers(0, 10, count)
    images = 0.4 * generator.standard_normal((count, 10, 8))
    for image, label, top, left in zip(images, labels, *generator.integers(0, 2, (2, count)), strict=True):
        image[top : top + 7, left : left + 5] += glyphs[label]
    return images.astype("float32"), labels


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images and labels."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        return drawn(1797, seed=1)
    data = load_digits()
    return (data.images / 16).astype("float32"), data.target


def network(shape: tuple[int, ...], seed: int = 0) -> keras.Model:
    """A small network for images of this shape."""
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Flatten(), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input(shape), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.2, momentum=0.9), loss, metrics=["accuracy"])
    return model


def main() -> None:
    """Train and print the accuracy on held-out digits."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    epochs = parser.parse_args().epochs
    images, labels = digits()
    model = network(images.shape[1:])
    join = paceline.keras.Join(global_batch=128)
    model.fit(images[HELD_OUT:], labels[HELD_OUT:], epochs=epochs, verbose=0, callbacks=[join])
    accuracy = model.evaluate(images[:HELD_OUT], labels[:HELD_OUT], verbose=0)[1]
    if join.pace.rank == 0:
        print(f"accuracy {accuracy:.3f} after {join.pace.position.step} steps on {join.pace.size} ranks")  # noqa: T201


if __name__ == "__main__":
    main()
