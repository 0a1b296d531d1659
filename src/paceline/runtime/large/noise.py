"""The gradient noise scale: the batch beyond which more samples per step hardly help (McCandlish et al. 2018).

With G_b the mean gradient of b samples, E|G_b|^2 = |G|^2 + tr(S) / b. Two batch sizes give both unknowns:

    |G|^2 = (B |G_B|^2 - b |G_b|^2) / (B - b)        tr(S) = (|G_b|^2 - |G_B|^2) / (1 / b - 1 / B)

and the noise scale is tr(S) / |G|^2. Numerator and denominator are averaged over steps before they are divided.
"""

from __future__ import annotations

from paceline.errors import InputError

__all__ = ["NoiseScale"]


class NoiseScale:
    """A running estimate from squared gradient norms of a small and a large batch of the same step."""

    def __init__(self, *, smoothing: float = 0.95) -> None:
        self._smoothing = smoothing
        self._signal = self._noise = 0.0
        self._seen = 0

    def observe(self, small: tuple[int, float], large: tuple[int, float]) -> None:
        """Take in (samples, squared norm of their mean gradient) for both."""
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
