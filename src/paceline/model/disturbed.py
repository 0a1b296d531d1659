"""Stragglers that devices emulate, and the seconds in which a host reads and copies a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from paceline.errors import Unsupported
from paceline.model.compute import StepWork
from paceline.spec.cluster import Cluster, Placed
from paceline.spec.network import Network

__all__ = ["input_seconds", "straggle_of"]

FILE_BYTES = 110e3
"""Bytes of one stored training image; the mean of ImageNet's JPEG files."""


def straggle_of(placed: Sequence[Placed]) -> tuple[float, float]:
    """Probability that some emulated device slows a step down, and by which factor."""
    emulations = [rank.device.emulation for rank in placed if rank.device.emulation is not None]
    missed = math.prod(1 - emulation.straggle for emulation in emulations)
    slow = [emulation.straggle_factor for emulation in emulations if emulation.straggle]
    return 1 - missed, max(slow, default=1.0)


def input_seconds(
    source: str, network: Network | None, cluster: Cluster, *, batch: int, placed: Sequence[Placed],
    works: Sequence[StepWork],
) -> tuple[float, float]:  # fmt: skip
    """io and h2d of the slowest host: its devices share the disk."""
    measured = max(work.io for work in works), max(work.h2d for work in works)
    if source == "resident" or network is None:
        return measured if source != "resident" else (0.0, 0.0)
    h2d = io = 0.0
    for index in {rank.host for rank in placed}:
        host, local = cluster.hosts[index], sum(rank.host == index for rank in placed)
        h2d = max(h2d, _input_bytes(network, batch) / host.inside.bandwidth)
        if source == "files":
            if host.disk is None:
                raise Unsupported(
                    f"input from files needs the rate of {host.name!r}'s disk", hint="set `disk` in the cluster file"
                )
            io = max(io, FILE_BYTES * batch * local / host.disk)
    return io, h2d


def _input_bytes(network: Network, batch: int) -> float:
    """Bytes of one batch as the device reads it: float32 pixels or 64-bit tokens."""
    width = 4.0 if network.input.kind == "image" else 8.0
    return float(np.prod(network.input.shape)) * batch * width
