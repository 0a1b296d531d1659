"""How a case is measured: launches, warm-up, steps, and when to stop."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from paceline.spec.fields import Count, Noun, Seconds

__all__ = ["Protocol"]


class Protocol(Noun):
    """Launches are the sample: steps within one launch are correlated, launches are not."""

    launches: Count = 5
    """Separate launches of each case before it may stop."""
    max_launches: Count = 20
    """Launches after which a case stops even if its interval is still too wide."""
    warmup: Annotated[int, Field(ge=1)] = 10
    """Fewest steps dropped before timing; more are dropped until a window's spread settles."""
    steps: Count = 100
    """Timed steps of the clean pass of a launch."""
    launch_budget: Seconds = 20.0
    """Time for the clean pass of a launch; it ends with fewer steps if they do not fit (never fewer than 5)."""
    width: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Full relative width of the throughput's confidence interval at which a case stops."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """Probability with which intervals hold the true value."""
    phases: bool = True
    """Run the instrumented passes, which split the step into phases."""
    phase_steps: Count = 20
    """Timed steps of each instrumented pass of a launch."""
    budget: Seconds | None = None
    """Time for the whole study; cases stop early when it ends, and the results say so."""
    timeout: Seconds = 600.0
    """A launch that takes longer is ended and stored as a failure."""
    threads: Count | None = None
    """Compute threads of each rank; none given shares the host's cores evenly."""
    seed: int = 0
    """Orders launches and draws weights and data."""

    @model_validator(mode="after")
    def _order(self) -> Protocol:
        if self.max_launches < self.launches:
            raise ValueError(f"max_launches {self.max_launches} is below launches {self.launches}")
        return self
