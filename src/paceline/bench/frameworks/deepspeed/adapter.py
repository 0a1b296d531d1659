"""The adapter that converts a case to DeepSpeed processes."""

from __future__ import annotations

from typing import ClassVar

from paceline.bench.frameworks.policy_adapter import PolicyAdapter

__all__ = ["DeepSpeed"]


class DeepSpeed(PolicyAdapter):
    """ZeRO by the stage that the mode names, over Gloo."""

    name = "deepspeed"
    module = "paceline.bench.frameworks.deepspeed.worker"
    choices: ClassVar = {"bucket": ()}
