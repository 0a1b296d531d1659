"""What staleness and local steps cost in samples: the prices that `paceline plan` weighs throughput by.

    .venv/bin/python benchmarks/asynchrony_price.py

A small network learns to tell ten noisy clusters apart. Groups take turns at equal speed through the product's own
syncer rules (runtime.syncer.rounds, stale progress divided by 1 + staleness), so only the number of samples counts,
not the speed of this machine. Each way is given the learning rate of a grid that needs the fewest samples; its price is
how many more samples than one synchronous group it needs to the same loss on held-out data, per step of staleness or
per local step. Medians over seeds.
"""

from __future__ import annotations

import statistics

import numpy as np
from lib.result import Figure, parser_of, publish

from paceline.runtime.syncer.rounds import Arrival, RoundPolicy, ShardState

FEATURES, HIDDEN, CLASSES, BATCH = 32, 32, 10, 64
RATES = tuple(0.1 * 2 ** (power / 2) for power in range(9))
TARGET, MOST, LOOK = 0.65, 600, 4
"""Loss to reach, steps of a whole batch after which it counts as not reached, and steps between two looks."""
WAYS = (
    (2, 1, 1),
    (4, 1, 1),
    (2, 4, 2),
    (2, 16, 2),
    (4, 4, 4),
    (4, 16, 4),
    (4, 64, 4),
    (2, 4, 1),
    (2, 16, 1),
    (4, 16, 1),
    (3, 16, 1),
    (4, 8, 1),
    (4, 32, 1),
    (8, 4, 1),
    (8, 16, 1),
    (4, 16, 2),
    (8, 1, 4),
    (8, 4, 4),
    (8, 16, 4),
)
"""Groups, local steps, quorum."""
SHAPES = ((FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
SIZES = [int(np.prod(shape)) for shape in SHAPES]


class Task:
    """Data and network of one seed."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        centres = self.random.standard_normal((CLASSES, FEATURES))
        self._centres = centres * 2.2 / np.sqrt(FEATURES) * np.sqrt(8)
        self.held = self.draw(1024)
        parts = [self.random.standard_normal(shape) / np.sqrt(shape[0]) * (len(shape) > 1) for shape in SHAPES]
        self.start = np.concatenate([part.ravel() for part in parts]).astype(np.float32)

    def draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Fresh samples."""
        labels = self.random.integers(CLASSES, size=count)
        inputs = self._centres[labels] + 2.4 * self.random.standard_normal((count, FEATURES))
        return inputs.astype(np.float32), labels


def unpacked(theta: np.ndarray) -> list[np.ndarray]:
    """The network's matrices."""
    parts = np.split(theta, np.cumsum(SIZES)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, SHAPES, strict=True)]


def forward(theta: np.ndarray, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hidden activations and class probabilities."""
    one, bias, two, offset = unpacked(theta)
    hidden = np.tanh(inputs @ one + bias)
    logits = hidden @ two + offset
    logits -= logits.max(1, keepdims=True)
    odds = np.exp(logits)
    return hidden, odds / odds.sum(1, keepdims=True)


def loss(theta: np.ndarray, data: tuple[np.ndarray, np.ndarray]) -> float:
    """Cross entropy."""
    _, odds = forward(theta, data[0])
    return float(-np.log(odds[np.arange(len(data[1])), data[1]] + 1e-12).mean())


def gradient(theta: np.ndarray, data: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Of the mean loss."""
    inputs, labels = data
    hidden, odds = forward(theta, inputs)
    two = unpacked(theta)[2]
    odds[np.arange(len(labels)), labels] -= 1
    odds /= len(labels)
    back = (odds @ two.T) * (1 - hidden**2)
    parts = [inputs.T @ back, back.sum(0), hidden.T @ odds, odds.sum(0)]
    return np.concatenate([part.ravel() for part in parts])


def samples_needed(seed: int, rate: float, *, groups: int, local_steps: int, quorum: int) -> float:
    """Samples until the loss is reached; infinite if it is not."""
    task = Task(seed)
    shard = ShardState(RoundPolicy(groups=groups, quorum=quorum))
    shard.start(task.start)
    bases = [(0, task.start)] * groups
    share, steps, waiting = BATCH // groups, 0.0, list[int]()
    for turn in range(MOST * groups // local_steps):
        group = turn % groups
        version, base = bases[group]
        theta = base.copy()
        for _ in range(local_steps):
            theta -= rate * gradient(theta, task.draw(share))
        shard.arrive(Arrival(f"group{group}", turn // groups + 1, version, share * local_steps, base - theta), 0.0)
        waiting.append(group)
        if shard.advance(0.0):
            assert shard.theta is not None
            for ready in waiting:
                bases[ready] = (shard.version, shard.theta)
            waiting = []
        assert shard.theta is not None
        steps += local_steps / groups
        if group == groups - 1 and (turn // groups) % max(1, LOOK // local_steps) == 0:
            now = loss(shard.theta, task.held)
            if now < TARGET:
                return steps * BATCH
            if not np.isfinite(now):
                break
    return float("inf")


def best(seed: int, **way: int) -> float:
    """Samples with the best rate of the grid."""
    return min(samples_needed(seed, rate, **way) for rate in RATES)


def main() -> None:
    """Print the prices."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    seeds = range(args.seeds)
    together = [best(seed, groups=1, local_steps=1, quorum=1) for seed in seeds]
    rows = []
    for groups, local_steps, quorum in WAYS:
        more = [
            best(seed, groups=groups, local_steps=local_steps, quorum=quorum) / alone - 1
            for seed, alone in zip(seeds, together, strict=True)
        ]
        row = {"groups": groups, "local_steps": local_steps, "quorum": quorum}
        rows.append({**row, "more_samples": round(statistics.median(more), 4)})
    stale = statistics.median(
        row["more_samples"] / (row["groups"] - 1) for row in rows if row["quorum"] == row["local_steps"] == 1
    )
    local = statistics.median(
        row["more_samples"] / (row["local_steps"] - 1) for row in rows if row["quorum"] == row["groups"]
    )
    for row in rows:
        print(row)
    figures = [Figure("more samples per step of staleness", stale), Figure("more samples per local step", local)]
    publish(args, figures, turns={"rows": rows, "samples_of_one_group": together})


if __name__ == "__main__":
    main()
