"""The measurement protocol: launches, warm-up, steps, stopping rule."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from paceline.spec.fields import Count, Noun, Seconds

__all__ = ["Protocol"]


class Protocol(Noun):
    """The measurement protocol of a study. Launches are independent samples; steps within a launch are correlated."""

    launches: Count = 5
    """Minimum number of launches of a case."""
    max_launches: Count = 20
    """Maximum number of launches of a case, even if its interval is still wider than `width`."""
    warmup: Annotated[int, Field(ge=1)] = 10
    """Minimum number of warm-up steps; warm-up continues until step times have no trend and are within `width` / 2."""
    steps: Count = 100
    """Timed steps of the clean pass of a launch."""
    launch_budget: Seconds = 20.0
    """Time limit of everything that a launch measures: warm-up (at most half of it), the clean pass and the passes of
    phases. At the limit a launch ends with fewer steps: at least `warmup`, 5 of the clean pass, 2 of each other."""
    width: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Full relative width of the throughput's confidence interval at which a case stops; drift beyond it, and a trend
    of half of it at the end of warm-up, are not accepted."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """Confidence level of intervals."""
    phases: bool = True
    """Whether to run the instrumented passes, which divide the step into phases."""
    phase_steps: Count = 20
    """Timed steps of each instrumented pass of a launch."""
    budget: Seconds | None = None
    """Time limit of the whole study; cases stop early at the limit, and the results say so."""
    timeout: Seconds = 600.0
    """Time limit of a launch; a launch that takes longer is stopped and stored as a failure."""
    threads: Count | None = None
    """Compute threads of each rank; by default the cores of the host, divided evenly."""
    seed: int = 0
    """Random seed of the order of launches, the weights and the data."""

    @model_validator(mode="after")
    def _order(self) -> Protocol:
        if self.max_launches < self.launches:
            raise ValueError(f"max_launches {self.max_launches} is below launches {self.launches}")
        return self
