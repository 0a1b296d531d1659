"""The physical model of a series: seconds per sample of one device as a function of devices P on H hosts.

    T(P) = C (1 + F [P>1] + L 2(m-1)/m (m/4)^l + exposed(A) + K (H-1) + S sqrt(2 ln P)),   m = P/H
    A    = X 2(P-1)/P (H/2)^x   if H > 1
    exposed(A) = slow A + (1-slow) softplus(A - window)     overlapped: the window hides, the slowdown does not
               = A                                          not overlapped

C compute, F fixed cost of being distributed, L aggregation inside a host and l its congestion, X aggregation between
hosts and x its congestion, K per further host (start-up, servers, switches), S jitter whose slowest of P counts.
All but l and x are logarithms, relative to C.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["NUM_PARAMETERS", "PARAMETERS", "log_seconds_and_slope", "seconds", "terms"]

Floats = NDArray[np.float64]

PARAMETERS = ("compute", "fixed", "local", "local_growth", "network", "network_growth", "jitter", "hosts")
NUM_PARAMETERS = len(PARAMETERS)

WINDOW = 0.6
"""Share of compute behind which overlapped aggregation hides: about the backward pass."""
SLOW = 0.1
"""Share of overlapped aggregation that compute loses all the same."""
SOFTNESS = 0.1
"""Width of the transition from hidden to exposed, as a share of compute: layers do not end all at once."""


def seconds(u: Floats, devices: Floats, hosts: Floats, overlap: Floats) -> Floats:
    """T for parameters (..., 8) at devices and hosts (..., n); overlap (..., 1) is 0 or 1."""
    parts = terms(u, devices, hosts, overlap)
    return np.asarray(sum(parts.values()))


def terms(u: Floats, devices: Floats, hosts: Floats, overlap: Floats) -> dict[str, Floats]:
    """Named terms that sum to T."""
    compute, fixed, local, growth, network, network_growth, jitter, per_host = (
        u[..., k : k + 1] for k in range(NUM_PARAMETERS)
    )
    scale = np.exp(compute)
    inside = np.maximum(devices / hosts, 1.0)
    many = (hosts > 1) * 1.0
    local_cost = 2 * (inside - 1) / inside * np.exp(local + growth * np.log(inside / 4))
    congested = np.exp(network + network_growth * np.log(np.maximum(hosts, 2) / 2))
    total = 2 * (devices - 1) / devices * many * congested
    exposed = np.where(overlap > 0, (1 - SLOW) * _behind_window(total), total)
    return {
        "compute": scale * np.ones_like(devices),
        "fixed": scale * np.exp(fixed) * (devices > 1),
        "aggregate": scale * (local_cost + exposed + np.exp(per_host) * np.maximum(hosts - 1, 0.0)),
        "slowdown": scale * np.where(overlap > 0, SLOW * total, 0.0),
        "waiting": scale * np.exp(jitter) * np.sqrt(2 * np.log(np.maximum(devices, 1.0))),
    }


def log_seconds_and_slope(u: Floats, devices: Floats, hosts: Floats, overlap: Floats) -> tuple[Floats, Floats]:
    """The logarithm of T, and its derivative by every parameter (..., n, 8)."""
    scale, fixed, local, growth, network, network_growth, jitter, per_host = (
        u[..., k : k + 1] for k in range(NUM_PARAMETERS)
    )
    inside, crossed = np.log(np.maximum(devices / hosts, 1.0) / 4), np.log(np.maximum(hosts, 2) / 2)
    many = (hosts > 1) * 2 * (devices - 1) / devices
    total = many * np.exp(network + network_growth * crossed)
    behind = (1 - SLOW) / (1 + np.exp(np.clip((WINDOW - total) / SOFTNESS, -500, 500))) + SLOW
    exposed = np.where(overlap > 0, (1 - SLOW) * _behind_window(total) + SLOW * total, total)
    between = np.where(overlap > 0, behind, 1.0) * total
    ring = 2 * (1 - np.exp(-inside) / 4) * np.exp(local + growth * inside)
    once, each = np.exp(fixed) * (devices > 1), np.exp(per_host) * np.maximum(hosts - 1, 0.0)
    waiting = np.exp(jitter) * np.sqrt(2 * np.log(np.maximum(devices, 1.0)))
    whole = 1 + once + ring + exposed + each + waiting
    parts = (whole, once, ring, ring * inside, between, between * crossed, waiting, each)
    return np.asarray(scale + np.log(whole)), np.stack(parts, axis=-1) / whole[..., None]


def _behind_window(total: Floats) -> Floats:
    rest = np.logaddexp(0.0, (total - WINDOW) / SOFTNESS) - np.logaddexp(0.0, -WINDOW / SOFTNESS)
    return np.asarray(SOFTNESS * rest)
