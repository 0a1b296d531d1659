"""Trainings with JAX, Keras and TensorFlow: argv is the framework and the steps. Knows nothing of Paceline."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any

import numpy as np

X, Y = np.random.rand(256, 64).astype("float32"), np.random.randint(10, size=256)


def with_jax(steps: int) -> None:
    """A jitted step among other jitted functions, one of them a method."""
    import jax
    import jax.numpy as jnp

    class Model:
        width = 512

        @partial(jax.jit, static_argnums=0)
        def begin(self, key: Any) -> Any:
            first, last = jax.random.split(key)
            shapes = ((first, (64, self.width)), (last, (self.width, 10)))
            return [0.1 * jax.random.normal(one, shape) for one, shape in shapes]

    def loss(weights: Any, x: Any, y: Any) -> Any:
        scores = jnp.tanh(x @ weights[0]) @ weights[1]
        return -jax.nn.log_softmax(scores)[jnp.arange(len(y)), y].mean()

    @jax.jit
    def small(x: Any) -> Any:
        return x + 1

    @partial(jax.jit, donate_argnums=0)
    def train_step(weights: Any, x: Any, y: Any) -> Any:
        return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights, small(x), y), strict=True)]

    weights = Model().begin(jax.random.key(0))
    assert train_step.lower(weights, X, Y) is not None
    for _ in range(steps):
        small(X)
        time.sleep(0.001)
        weights = train_step(weights, X, Y)


def with_keras(steps: int) -> None:
    """Two epochs of `fit`."""
    import os

    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    model = keras.Sequential([keras.layers.Dense(512, activation="tanh"), keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    count = 16 * steps // 2
    model.fit(np.repeat(X, 1 + count // 256, 0)[:count], np.repeat(Y, 1 + count // 256)[:count], 16, 2, verbose=0)


def with_tensorflow(steps: int) -> None:
    """A loop of one's own."""
    import tensorflow as tf

    first, last = tf.Variable(tf.random.normal((64, 512))), tf.Variable(tf.random.normal((512, 10)))

    @tf.function
    def small(x: Any) -> Any:
        return x + 1.0

    @tf.function
    def train_step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            scores = tf.tanh(small(x) @ first) @ last
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores))
        for variable, gradient in zip((first, last), tape.gradient(loss, (first, last)), strict=True):
            variable.assign_sub(0.1 * gradient)

    for _ in range(steps):
        small(X)
        time.sleep(0.001)
        train_step(X, Y)


if __name__ == "__main__":
    {"jax": with_jax, "keras": with_keras, "tensorflow": with_tensorflow}[sys.argv[1]](int(sys.argv[2]))
