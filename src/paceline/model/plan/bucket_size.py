"""The bucket size of DistributedDataParallel with the shortest step: `bucket_cap_mb`, and its gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.catalog import resolve
from paceline.errors import InputError
from paceline.model.calibration import CATALOG_ONLY, Calibration
from paceline.model.prediction import Estimate, estimate
from paceline.model.question import Question, check_question, ranks_of, works_of
from paceline.model.scaling import draw_factors, spreads_of
from paceline.model.step import step_terms
from paceline.spec.strategy import Strategy

__all__ = ["BucketChoice", "BucketRecommendation", "choose_bucket"]

MEGABYTES = (1, 2, 5, 10, 25, 50, 100, 200, 400, 800)
"""Sizes that are tried, in units of `bucket_cap_mb`, which are 2^20 bytes."""
WORTH = 0.01
"""A smaller gain is not worth a change."""


@dataclass(frozen=True)
class BucketChoice:
    """One size: the step, and its gain over the framework's default."""

    megabytes: int
    step_s: Estimate
    gain: Estimate
    """Throughput over that of the default, less 1."""


@dataclass(frozen=True)
class BucketRecommendation:
    """All sizes, the best of them, and whether it is worth a change."""

    label: str
    devices: int
    default: float | None
    """Bytes of the framework's own buckets."""
    choices: tuple[BucketChoice, ...]

    @property
    def best(self) -> BucketChoice:
        """The size whose step ends earliest."""
        return min(self.choices, key=lambda choice: choice.step_s.value)

    @property
    def worth(self) -> bool:
        """Whether the gain is at least a hundredth, and above 0 in the whole 90 % interval."""
        return self.best.gain.value >= WORTH and self.best.gain.interval_90[0] > 0

    @property
    def setting(self) -> str:
        """The argument for DistributedDataParallel."""
        return f"bucket_cap_mb={self.best.megabytes}" if self.worth else "the default"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        choices = [
            {
                "bucket_cap_mb": one.megabytes,
                "step_s": one.step_s.value,
                "gain": one.gain.value,
                "gain_interval_90": list(one.gain.interval_90),
            }
            for one in self.choices
        ]
        return {"label": self.label, "devices": self.devices, "setting": self.setting, "worth_changing": self.worth,
                "bucket_cap_mb": self.best.megabytes, "gain": self.best.gain.value,
                "gain_interval_90": list(self.best.gain.interval_90), "choices": choices}  # fmt: skip


def choose_bucket(
    question: Question, devices: int, *, calibration: Calibration = CATALOG_ONLY, seed: int = 0
) -> BucketRecommendation:
    """Step and gain of every size on a number of devices, in the same possible worlds."""
    check_question(question, (devices,))
    default = resolve(question.framework, question.strategy)
    if default.aggregation != "allreduce" or default.fusion != "bytes" or devices < 2:
        raise InputError(
            f"{question.framework} on {devices} device{'s' * (devices != 1)} has no buckets to choose",
            hint="ask for at least 2 devices and a framework that fuses gradients by size, such as pytorch/ddp",
        )
    works = works_of(question)
    spreads = spreads_of(tuple(work(question.batch) for work in works.values()), devices, calibration)
    factors, ranks = draw_factors(spreads, seed), ranks_of(question, devices, calibration, works)

    def steps(strategy: Strategy) -> np.ndarray[Any, np.dtype[np.float64]]:
        terms = step_terms(ranks, resolve(question.framework, strategy), calibration, factors)
        return sum(terms.values(), np.zeros_like(factors.compute))

    before, choices = steps(question.strategy), []
    for megabytes in MEGABYTES:
        after = steps(question.strategy.model_copy(update={"bucket": megabytes * 2.0**20}))
        gains = before / after - 1
        choices.append(BucketChoice(megabytes, estimate(float(after[0]), after), estimate(float(gains[0]), gains)))
    return BucketRecommendation(question.label, devices, default.bucket, tuple(choices))
