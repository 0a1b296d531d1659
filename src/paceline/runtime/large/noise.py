"""The gradient noise scale: the batch beyond which more samples per step hardly help (McCandlish et al. 2018).

With G_b the mean gradient of b samples, E|G_b|^2 = |G|^2 + tr(S) / b. Two batch sizes give both unknowns:

    |G|^2 = (B |G_B|^2 - b |G_b|^2) / (B - b)        tr(S) = (|G_b|^2 - |G_B|^2) / (1 / b - 1 / B)

and the noise scale is tr(S) / |G|^2. Numerator and denominator are averaged over steps before they are divided. Ranks
with shares b_1, b_2, ... give one small batch: the mean of their squared norms is that of their harmonic mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.errors import InputError

__all__ = ["NoiseScale"]


class NoiseScale:
    """A running estimate from squared gradient norms of a small and a large batch of the same step."""

    def __init__(self, *, smoothing: float = 0.95) -> None:
        self._smoothing = smoothing
        self._signal = self._noise = 0.0
        self._seen = 0

    def observe_ranks(self, shares: Sequence[int], norms: Sequence[float], norm: float) -> None:
        """Add one step: shares and squared gradient norms of the ranks, and the squared norm of the whole gradient."""
        taken = [(samples, each) for samples, each in zip(shares, norms, strict=True) if samples]
        if len(taken) > 1:
            samples = len(taken) / sum(1 / share for share, _ in taken)
            self.observe((samples, sum(each for _, each in taken) / len(taken)), (sum(shares), norm))

    def observe(self, small: tuple[float, float], large: tuple[float, float]) -> None:
        """Add one observation: samples and squared norm of their mean gradient, for a small and a large batch."""
        (b, norm_b), (total, norm_total) = small, large
        if not 0 < b < total:
            raise InputError(f"batches of {b} and {total} samples, expected a smaller and a larger one")
        signal = (total * norm_total - b * norm_b) / (total - b)
        noise = (norm_b - norm_total) / (1 / b - 1 / total)
        self._seen += 1
        keep = min(self._smoothing, 1 - 1 / self._seen)
        self._signal = keep * self._signal + (1 - keep) * signal
        self._noise = keep * self._noise + (1 - keep) * noise

    @property
    def samples(self) -> float | None:
        """The noise scale in samples; None while the signal is not clearly above zero."""
        return self._noise / self._signal if self._signal > 0 and self._noise > 0 else None

    def state_dict(self) -> dict[str, Any]:
        """State for late joiners and checkpoints; the learning rate depends on it."""
        return {"signal": self._signal, "noise": self._noise, "seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the estimate of another rank."""
        self._signal, self._noise, self._seen = state["signal"], state["noise"], state["seen"]
