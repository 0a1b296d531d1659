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

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

__all__ = ["NUM_PARAMETERS", "PARAMETERS", "Places", "bend", "log_seconds_and_slope", "seconds", "seconds_of_draws",
           "terms"]  # fmt: skip

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


def seconds_of_draws(draws: Floats, devices: Floats, hosts: Floats, overlapped: bool) -> Floats:
    """The same for draws (m, 8) at devices and hosts (n,), as (n, m); what is none is left out."""
    compute, fixed, local, growth, network, network_growth, jitter, per_host = np.ascontiguousarray(draws.T)
    devices, hosts = devices[:, None], hosts[:, None]
    scale, many = np.exp(compute), hosts > 1
    inside = np.maximum(devices / hosts, 1.0)
    aggregate = 2 * (inside - 1) / inside * np.exp(local + growth * np.log(inside / 4))
    total = np.zeros(1)
    if many.any():
        congested = np.exp(network + network_growth * np.log(np.maximum(hosts, 2) / 2))
        total = 2 * (devices - 1) / devices * (many * 1.0) * congested
        exposed = (1 - SLOW) * _behind_window(total) if overlapped else total
        aggregate = aggregate + exposed + np.exp(per_host) * np.maximum(hosts - 1, 0.0)
    whole = scale + scale * np.exp(fixed) * (devices > 1) + scale * aggregate
    if overlapped and many.any():
        whole = whole + scale * (SLOW * total)
    return np.asarray(whole + scale * np.exp(jitter) * np.sqrt(2 * np.log(np.maximum(devices, 1.0))))


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


@dataclass(frozen=True)
class Places:
    """What a fit asks of devices and hosts (..., n) again and again, whatever the parameters."""

    ring: Floats
    """Share of the bytes that a ring inside a host moves."""
    inside: Floats
    """Logarithm of the devices of a host over 4."""
    many: Floats
    """The same share between hosts; 0 on one host."""
    crossed: Floats
    """Logarithm of the hosts over 2."""
    several: Floats
    farther: Floats
    """Hosts beyond the first."""
    slowest: Floats
    """Standard deviations by which the slowest device is late."""

    @classmethod
    def of(cls, devices: Floats, hosts: Floats) -> Places:
        """Those of these counts."""
        inside = np.log(np.maximum(devices / hosts, 1.0) / 4)
        return cls(
            ring=2 * (1 - np.exp(-inside) / 4),
            inside=inside,
            many=(hosts > 1) * 2 * (devices - 1) / devices,
            crossed=np.log(np.maximum(hosts, 2) / 2),
            several=np.where(devices > 1, 1.0, 0.0),
            farther=np.maximum(hosts - 1, 0.0),
            slowest=np.sqrt(2 * np.log(np.maximum(devices, 1.0))),
        )

    def rows(self, which: NDArray[np.bool_]) -> Places:
        """Some rows alone."""
        return Places(*(getattr(self, one.name)[which] for one in fields(self)))


def log_seconds_and_slope(u: Floats, places: Places, overlap: Floats) -> tuple[Floats, Floats]:
    """The logarithm of T, and its derivative by every parameter (..., n, 8)."""
    once, ring, total, waiting, each = _costs(u, places)
    exposed = np.where(overlap > 0, (1 - SLOW) * _behind_window(total) + SLOW * total, total)
    between = np.where(overlap > 0, (1 - SLOW) * _share_exposed(total) + SLOW, 1.0) * total
    whole = 1 + once + ring + exposed + each + waiting
    parts = (whole, once, ring, ring * places.inside, between, between * places.crossed, waiting, each)
    return np.asarray(u[..., :1] + np.log(whole)), np.stack(parts, axis=-1) / whole[..., None]


def bend(u: Floats, places: Places, overlap: Floats, weight: Floats) -> Floats:
    """Second derivatives of the logarithm of T by every two parameters (..., 8, 8), summed over points so weighted."""
    once, ring, total, waiting, each = _costs(u, places)
    share = np.where(overlap > 0, _share_exposed(total), 1.0)
    between = np.where(overlap > 0, (1 - SLOW) * share + SLOW, 1.0) * total
    between += (1 - SLOW) / SOFTNESS * share * (1 - share) * total**2
    logs, slope = log_seconds_and_slope(u, places, overlap)
    per_whole = weight * np.exp(u[..., :1] - logs)
    second = -(slope * weight[..., None]).swapaxes(-1, -2) @ slope
    for row, column, part in (
        (1, 1, once), (2, 2, ring), (2, 3, ring * places.inside), (3, 3, ring * places.inside**2), (4, 4, between),
        (4, 5, between * places.crossed), (5, 5, between * places.crossed**2), (6, 6, waiting), (7, 7, each),
    ):  # fmt: skip
        second[..., row, column] += (part * per_whole).sum(-1)
        second[..., column, row] = second[..., row, column]
    second[..., 0, :] = second[..., :, 0] = 0.0
    return np.asarray(second)


def _costs(u: Floats, places: Places) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Relative to compute: being distributed, inside a host, between hosts before any is hidden, waiting, per host."""
    _, fixed, local, growth, network, network_growth, jitter, per_host = (
        u[..., k : k + 1] for k in range(NUM_PARAMETERS)
    )
    ring = places.ring * np.exp(local + growth * places.inside)
    total = places.many * np.exp(network + network_growth * places.crossed)
    return (
        np.exp(fixed) * places.several, ring, total, np.exp(jitter) * places.slowest, np.exp(per_host) * places.farther
    )  # fmt: skip


def _share_exposed(total: Floats) -> Floats:
    """Of a little more of what is overlapped."""
    return np.asarray(1 / (1 + np.exp(np.clip((WINDOW - total) / SOFTNESS, -500, 500))))


def _behind_window(total: Floats) -> Floats:
    rest = np.logaddexp(0.0, (total - WINDOW) / SOFTNESS) - np.logaddexp(0.0, -WINDOW / SOFTNESS)
    return np.asarray(SOFTNESS * rest)
