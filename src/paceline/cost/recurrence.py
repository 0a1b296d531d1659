"""One iteration as a max-plus recurrence over buckets, vectorised over cases.

    ready[k]  = forward + sum(backward up to the last gradient of bucket k)
    end[k]    = max(ready[k], end[k-1]) + comm[k]
    exposed   = end[last] - ready[last]

Unrolled, end[k] = S[k] + max over j <= k of (ready[j] - S[j-1]) with S the running sum of comm: a cumulative sum and a
cumulative maximum for any number of cases. Wait-free back-propagation: Zhang et al., Poseidon, 2017; the closed form is
this project's. Arrays have cases first and buckets (or layers) last, in the order in which gradients become ready.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["bucket_ready", "exposed_fifo", "exposed_none", "exposed_priority", "exposed_sharded", "finish_fifo"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def bucket_ready(backward: Floats, last: Sequence[int] | Ints) -> Floats:
    """When each bucket is ready, counted from the start of backward; `last` is the index of its last gradient."""
    ready: Floats = np.cumsum(backward, axis=-1)[..., last]
    return ready


def finish_fifo(ready: Floats, comm: Floats) -> Floats:
    """End of each bucket's exchange; exchanges run one after the other in the given order."""
    total = np.cumsum(comm, axis=-1)
    start = np.subtract(total, comm)
    np.subtract(ready, start, out=start)
    np.maximum.accumulate(start, axis=-1, out=start)
    total += start
    return total


def exposed_fifo(ready: Floats, comm: Floats) -> Floats:
    """Exposed aggregation of each case when exchange overlaps with backward, first ready first sent."""
    total = np.cumsum(comm, axis=-1)
    start = np.subtract(total, comm)
    np.subtract(ready, start, out=start)
    exposed: Floats = total[..., -1] + start.max(axis=-1) - ready[..., -1]
    return exposed


def exposed_none(comm: Floats) -> Floats:
    """Exposed aggregation when exchange starts after backward."""
    total: Floats = comm.sum(axis=-1)
    return total


def exposed_priority(ready: Floats, comm: Floats, forward: Floats) -> Floats:
    """Exposed aggregation when gradients of input layers go first and the rest overlaps with the next forward.

    `forward` holds the forward seconds between one bucket's first use and the next's, in the same (ready) order. Newer
    gradients are nearer to the input, so the exchange is last come, first served, and preemptive; after backward the
    remaining gradients are sent in order of use. Peng et al., ByteScheduler, 2019.
    """
    left = _left_at_backward_end(ready, comm)
    arrival = np.cumsum(left[..., ::-1], axis=-1)
    use = forward[..., ::-1]
    done = finish_fifo(arrival, use)
    exposed: Floats = done[..., -1] - use.sum(axis=-1)
    return exposed


def _left_at_backward_end(ready: Floats, comm: Floats) -> Floats:
    """Seconds of exchange left of each bucket when the last one becomes ready."""
    left: Floats = np.zeros(np.broadcast_shapes(ready.shape, comm.shape))
    count = int(comm.shape[-1])
    for index in range(count):
        left[..., index] = comm[..., index]
        if index + 1 < count:
            gap = ready[..., index + 1] - ready[..., index]
            _serve_newest_first(left[..., : index + 1], gap)
    return left


def _serve_newest_first(left: Floats, gap: Floats) -> None:
    newer = np.cumsum(left[..., ::-1], axis=-1)[..., ::-1] - left
    served = np.clip(np.asarray(gap)[..., None] - newer, 0.0, left)
    left -= served


def exposed_sharded(
    forward: Floats, ready: Floats, *, gather: Floats, scatter: Floats, overlap: bool
) -> tuple[Floats, Floats]:
    """Exposed seconds in forward and in backward of fully sharded training (FSDP, ZeRO-3).

    Parameters of a module are gathered before its forward and again before its backward, gradients are scattered
    after it; all in order of use. `forward`, `gather`, `scatter` are per module in the order of backward.
    """
    if not overlap:
        return exposed_none(gather), exposed_none(gather + scatter)
    ahead = np.cumsum(gather[..., ::-1], axis=-1)
    done = finish_fifo(ahead, forward[..., ::-1])
    exposed_forward = done[..., -1] - forward.sum(axis=-1)
    return exposed_forward, _exposed_backward(ready, gather, scatter)


def _exposed_backward(ready: Floats, gather: Floats, scatter: Floats) -> Floats:
    """The gather of the next module and the scatter of the last share the link; both must end."""
    busy = finish_fifo(ready, scatter)[..., -1] + np.maximum(0.0, gather.sum(axis=-1) - ready[..., -1])
    exposed: Floats = busy - ready[..., -1] + gather[..., 0]
    return exposed
