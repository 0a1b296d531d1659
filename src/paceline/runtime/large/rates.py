"""Learning rates for large batches: linear scaling with warm-up (Goyal et al. 2017)."""

from __future__ import annotations

import torch

from paceline.errors import InputError

__all__ = ["LinearScaling", "scaled_rate"]


def scaled_rate(step: int, *, factor: float, warmup: int) -> float:
    """What the reference rate is multiplied by: from one up to the factor over the warm-up, then the factor."""
    if warmup <= 0 or step >= warmup:
        return factor
    return 1.0 + (factor - 1.0) * step / warmup


class LinearScaling(torch.optim.lr_scheduler.LambdaLR):
    """Multiplies the rate that was tuned for `reference_batch` by global batch / reference batch, after a warm-up.

    Call its step() after pace.step(), and give it to Settings(also=(schedule,)) so that late ranks know where it is.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, global_batch: int, reference_batch: int, warmup: int = 500
    ) -> None:
        if reference_batch < 1 or global_batch < 1:
            raise InputError(f"batches of {global_batch} and {reference_batch} samples, expected at least 1 each")
        factor = global_batch / reference_batch
        super().__init__(optimizer, lambda step: scaled_rate(step, factor=factor, warmup=warmup))
