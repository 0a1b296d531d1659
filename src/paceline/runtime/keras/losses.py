"""Losses of Keras that ranks with unequal shares can add up: means over samples, or sums of them."""

from __future__ import annotations

from typing import Any

import keras

from paceline.errors import InputError

__all__ = ["check_reductions"]

MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


def check_reductions(model: Any, reduction: str) -> None:
    """Refuse losses that are neither the mean nor the sum over samples, as the settings say."""
    for loss in keras.tree.flatten(model.loss):
        found = getattr(loss, "reduction", "sum_over_batch_size")
        if (found == "sum") != (reduction == "sum") and found in ("sum", *MEANS):
            raise InputError(
                f"{_name(loss)} has the reduction {found!r}, the settings have {reduction!r}",
                hint="Settings(reduction='sum') if all losses are sums over samples, 'mean' if all are means",
            )
        if found == "mean_with_sample_weight":
            raise InputError(
                f"{_name(loss)} is the mean over weights, of which each rank has others",
                hint="reduction='sum_over_batch_size' divides by samples",
            )
        if getattr(loss, "ignore_class", None) is not None:
            raise InputError(
                f"{_name(loss)} leaves out targets (ignore_class), of which each rank has others",
                hint="leave ignore_class out, and give those targets a sample_weight of 0",
            )
    masked = [output.name for output in model.outputs or [] if getattr(output, "_keras_mask", None) is not None]
    if masked and reduction == "mean":
        raise InputError(
            f"the loss of {', '.join(masked)} is the mean over what is not masked, of which each rank has more or less",
            hint="mask_zero=False, and a sample_weight of 0 for padding",
        )


def _name(loss: Any) -> str:
    return type(loss).__name__
