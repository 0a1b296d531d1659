"""Assignment of samples to ranks: a shuffled epoch, and a cursor that only committed steps advance.

Every rank computes the same assignment from the same few numbers, without communication. Every sample of an epoch is
used exactly once for any shares and failures, because a step that was not committed does not advance the cursor.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from paceline.errors import InputError

__all__ = [
    "PARTIAL",
    "REACHED",
    "Attempt",
    "Position",
    "StepRecord",
    "advance",
    "chunked",
    "epoch_order",
    "even_part",
    "print_reached",
    "reached_rate",
    "share_of",
    "step_size",
    "total_count",
]

REACHED = "paceline: reached {rate:.2f} samples/s (90 %: {low:.2f} to {high:.2f}) in the last {steps} steps"
"""The line that the first rank of each group prints at the end of a planned training, for `paceline train`."""

PARTIAL = -2.0
"""Marks a count that should have been given."""


@dataclass(frozen=True)
class Position:
    """The progress of training."""

    step: int = 0
    """Number of committed steps."""
    epoch: int = 0
    cursor: int = 0
    """Number of samples of this epoch that committed steps have used."""


@functools.lru_cache(maxsize=2)
def epoch_order(num_samples: int, *, seed: int, epoch: int) -> np.ndarray:
    """The samples of one epoch in the order of use."""
    order = np.random.default_rng([seed, epoch]).permutation(num_samples)
    order.setflags(write=False)
    return order


def step_size(position: Position, *, num_samples: int, global_batch: int) -> int:
    """Samples of the next step; the last step of an epoch takes the remaining samples."""
    return min(global_batch, num_samples - position.cursor)


def even_part(left: int, most: int) -> int:
    """Size of the first part when `left` samples are cut into as few parts as possible: of at most `most` samples, and
    of sizes that differ by at most one."""
    return -(-left // -(-left // most))


def share_of(order: np.ndarray, position: Position, shares: Sequence[int], rank: int) -> np.ndarray:
    """The samples that one rank takes in the next step."""
    begin = position.cursor + sum(shares[:rank])
    return order[begin : begin + shares[rank]].copy()


def advance(position: Position, size: int, *, num_samples: int) -> Position:
    """The position after a committed step of `size` samples."""
    cursor = position.cursor + size
    if cursor >= num_samples:
        return Position(step=position.step + 1, epoch=position.epoch + 1, cursor=0)
    return replace(position, step=position.step + 1, cursor=cursor)


@dataclass(frozen=True)
class StepRecord:
    """Measurements of one committed step on this rank."""

    step: int
    view: int
    samples: int
    """Samples of all ranks together."""
    shares: tuple[int, ...]
    measured_seconds: float
    """Seconds from the end of the previous step to the end of this step."""
    measured_compute: float
    """Seconds until the gradients of this rank were computed."""
    measured_input: float
    """Seconds of `measured_compute` for which the rank waited for samples."""
    measured_exchange: float
    """Seconds from then until the gradients of all ranks were summed."""
    ended: float
    """time.perf_counter() at the end of the step."""


BLOCKS = 8
T90 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895)
"""Quantiles of Student's t for 90 % intervals from 2 to 8 blocks."""


def reached_rate(records: Sequence[StepRecord]) -> tuple[float, float, float, int]:
    """Samples per second over the later half of steps, when the split has settled; its interval; and the number of
    steps.

    The interval is computed from blocks of steps, because neighbouring steps are correlated.
    """
    later = list(records)[len(records) // 2 :]
    steps = len(later) - 1
    if steps < 1:
        return 0.0, 0.0, 0.0, 0
    rate = _rate(later)
    count = min(BLOCKS, steps // 2)
    if count < 2:
        return rate, rate, rate, steps
    ends = [round(steps * number / count) for number in range(count + 1)]
    rates = [_rate(later[begin : end + 1]) for begin, end in itertools.pairwise(ends)]
    margin = T90[count - 2] * statistics.stdev(rates) / count**0.5
    return rate, max(0.0, rate - margin), rate + margin, steps


def _rate(records: Sequence[StepRecord]) -> float:
    """Samples per second, from the end of the first step on."""
    return sum(record.samples for record in records[1:]) / (records[-1].ended - records[0].ended)


def print_reached(records: Sequence[StepRecord]) -> None:
    """Print the throughput of a planned training, for `paceline train`."""
    rate, low, high, steps = reached_rate(records)
    if steps:
        sys.stdout.write(REACHED.format(rate=rate, low=low, high=high, steps=steps) + "\n")
        sys.stdout.flush()


@dataclass
class Attempt:
    """A step that is being tried."""

    size: int
    shares: tuple[int, ...]
    chunks: list[np.ndarray]
    began: float
    after: Position = Position()
    """The position after the step is committed."""
    done: int = 0
    """Number of chunks whose backward pass has run."""
    updates: int = 0
    """Number of chunks for which the loop has called `update`."""
    compute: float = 0.0
    """Seconds until the gradients of this rank were computed."""
    waited: float = 0.0
    """Seconds of `compute` for which the rank waited for samples."""
    loading: float = 0.0
    """Seconds that the loader needs for the samples of such a step, without waiting."""
    exchange: float = 0.0
    """Seconds from the gradients of this rank to the sum of all ranks."""
    beside: bool = False
    """Whether samples are loaded while the rank computes."""
    counts: list[float] = field(default_factory=list)
    """For each chunk so far, the number of items over which its loss is a mean; empty if items are samples."""
    partial: bool = False
    """Whether a loss is a mean over other items than samples, and no count was given."""

    @property
    def count(self) -> float:
        """Number of items over which this rank's losses are means; below 0 if items are samples, or a count is
        missing."""
        if self.counts:
            return sum(self.counts)
        return PARTIAL if self.partial and (len(self.shares) > 1 or len(self.chunks) > 1) else -1.0

    @property
    def here(self) -> int:
        """Samples of the present chunk."""
        return len(self.chunks[self.done - 1])

    @property
    def empty(self) -> bool:
        """Whether the present chunk has no sample or item that counts."""
        return self.here == 0 or self.counts[-1:] == [0.0]

    def take_count(self, count: Any, *, mean: bool) -> None:
        """Set the number of items over which the loss of the present chunk is a mean; None: its samples."""
        if count is None and not self.counts:
            return
        number = float("nan") if count is None else float(count)
        if not (mean and 0 <= number < float("inf") and len(self.counts) == self.done - 1):
            raise InputError(
                f"count is {count!r}, expected a number from 0 on, for all batches of a step or for none",
                hint="the items that the loss is the mean over, and leave Settings(reduction='sum') out",
            )
        self.counts.append(number)

    def weights(self, rank: int, *, mean: bool) -> tuple[float, float]:
        """The weight of the present chunk's loss within the rank's share, and that of the rank's gradients."""
        mine = self.shares[rank]
        if self.counts:  # per sample of the step, because the count of all ranks is known only after the exchange
            return self.counts[-1] / self.size, float(mine > 0 and self.count > 0)
        within = self.here / mine if mean and len(self.chunks) > 1 else 1.0
        return within, mine / self.size if mean or not mine else 1.0

    @property
    def cost(self) -> float:
        """Seconds that such a step takes on this rank, without waiting for other ranks.

        A loader that runs beside the loop takes the larger of loading and compute. The time waited for the loader does
        not count: it shrinks when the rank waits for others, and shares would oscillate.
        """
        return max(self.compute - self.waited, self.loading) if self.beside else self.compute


def total_count(shares: Sequence[int], counts: Sequence[float]) -> float:
    """Number of items over which the losses of all ranks are means; 0 if items are samples."""
    own = [count for count, samples in zip(counts, shares, strict=True) if samples]
    if PARTIAL in own:
        raise InputError(
            "a loss is the mean over a part of its targets, or over their weights, or a sum, and not the mean over "
            "samples: ranks with different shares of them would be weighted wrongly",
            hint="pace.step(loss, count=(targets != ignore_index).sum()), or the sum of the targets' weights; a sum is "
            "divided by len(batch.indices), or has Settings(reduction='sum'); count=len(targets) takes the mean of "
            "means, as DistributedDataParallel does",
        )
    if max(own) < 0:
        return 0.0
    if min(own) < 0:
        raise InputError(
            f"ranks {[rank for rank, n in enumerate(shares) if n and counts[rank] < 0]} gave no count of the items "
            "that their loss is the mean over, others did",
            hint="pace.step(loss, count=...) on all ranks or on none",
        )
    return sum(own)


def chunked(indices: np.ndarray, chunk: int | None) -> list[np.ndarray]:
    """The samples of a rank in chunks that fit into its memory."""
    if len(indices) == 0:
        return []
    return [indices] if chunk is None else np.array_split(indices, -(-len(indices) // chunk))
