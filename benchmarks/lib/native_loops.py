"""LeNet trained by each framework's bare idiomatic loop, with no Paceline in the process; prints samples per second.

python benchmarks/native_loops.py FRAMEWORK BATCH STEPS
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
RANK, RANKS = int(os.environ.get("HOROVOD_RANK", "0")), int(os.environ.get("HOROVOD_SIZE", "1"))
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[RANK]})

import numpy as np  # noqa: E402

WARMUP = 30
Loop = tuple[Callable[[], Any], Callable[[], Any]]


def pytorch(batch: int, wrap: Callable[[Any, Any], Any] = lambda model, optimizer: optimizer) -> Loop:
    """Eager PyTorch."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10),
    )  # fmt: skip
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    images, targets = torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), targets).backward()
        optimizer.step()

    return step, lambda: None


def horovod(batch: int) -> Loop:
    """Horovod's optimizer around PyTorch's, as its examples do it."""
    import horovod.torch as hvd

    hvd.init()

    def wrap(model: Any, optimizer: Any) -> Any:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    return pytorch(batch, wrap)


def tensorflow(batch: int) -> Loop:
    """Keras layers in a compiled custom loop."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    layers = tf.keras.layers
    model = tf.keras.Sequential([
        tf.keras.Input((28, 28, 1)), layers.Conv2D(20, 5), layers.MaxPool2D(), layers.Conv2D(50, 5), layers.MaxPool2D(),
        layers.Flatten(), layers.Dense(500, activation="relu"), layers.Dense(10),
    ])  # fmt: skip
    optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
    images = tf.random.normal((batch, 28, 28, 1))
    targets = tf.random.uniform((batch,), maxval=10, dtype=tf.int32)

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step, lambda: None


def jax(batch: int) -> Loop:
    """A jitted pure step with donated state."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    keys = jax.random.split(jax.random.key(0), 4)
    shapes = ((5, 5, 1, 20), (5, 5, 20, 50), (800, 500), (500, 10))
    weights = [0.05 * jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]
    biases = [jnp.zeros(shape[-1]) for shape in shapes]
    images, targets = jax.random.normal(keys[0], (batch, 28, 28, 1)), jnp.arange(batch) % 10

    def loss_of(state: Any) -> Any:
        (w1, w2, w3, w4), (b1, b2, b3, b4) = state
        x = images
        for weight, bias in ((w1, b1), (w2, b2)):
            x = lax.conv_general_dilated(x, weight, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")) + bias
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = jax.nn.relu(x.reshape(batch, -1) @ w3 + b3) @ w4 + b4
        return -jnp.take_along_axis(jax.nn.log_softmax(x), targets[:, None], 1).mean()

    def update(state: Any, momenta: Any) -> Any:
        gradients = jax.grad(loss_of)(state)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradients)
        return jax.tree.map(lambda w, m: w - 0.01 * m, state, momenta), momenta

    compiled = jax.jit(update, donate_argnums=(0, 1))
    held = [(weights, biases), jax.tree.map(jnp.zeros_like, (weights, biases))]

    def step() -> None:
        held[0], held[1] = compiled(*held)

    return step, lambda: jax.block_until_ready(held)


def mxnet(batch: int) -> Loop:
    """A hybridised Gluon network and its trainer."""
    import mxnet as mx
    from mxnet import autograd, gluon, nd
    from mxnet.gluon import nn

    net = nn.HybridSequential()
    net.add(nn.Conv2D(20, 5), nn.MaxPool2D(), nn.Conv2D(50, 5), nn.MaxPool2D(), nn.Flatten())
    net.add(nn.Dense(500, activation="relu"), nn.Dense(10))
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    criterion = gluon.loss.SoftmaxCrossEntropyLoss()
    criterion.hybridize(static_alloc=True, static_shape=True)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01, "momentum": 0.9})
    images, targets = nd.random.normal(shape=(batch, 1, 28, 28)), nd.array(np.arange(batch) % 10)

    def step() -> None:
        with autograd.record():
            loss = criterion(net(images), targets)
        loss.backward()
        trainer.step(batch)

    return step, nd.waitall


def main() -> None:
    """Warm up, time, print."""
    name, batch, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    step, wait = globals()[name](batch)
    for _ in range(WARMUP):
        step()
    wait()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    if RANK == 0:
        print("samples/s", RANKS * batch * steps / (time.perf_counter() - begin))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
