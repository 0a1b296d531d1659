"""The adapter that converts a case to JAX processes."""

from __future__ import annotations

from paceline.bench.frameworks.policy_adapter import PolicyAdapter

__all__ = ["Jax"]


class Jax(PolicyAdapter):
    """One process per rank; they form one mesh and average gradients by a collective inside the compiled step."""

    name = "jax"
    module = "paceline.bench.frameworks.jax.worker"
