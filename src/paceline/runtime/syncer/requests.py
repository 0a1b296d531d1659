"""Validation of a group's requests before a shard executes them: the name of the group, and bounds of all numbers.

A number outside of its bounds would end the thread that completes rounds, and with it the shard.
"""

from __future__ import annotations

import numpy as np

from paceline.runtime.protocol import messages
from paceline.runtime.protocol.codec import ProtocolError
from paceline.runtime.syncer.packing import unpack_numbers
from paceline.runtime.syncer.rounds import Array

__all__ = ["check_request", "request_numbers"]

MOST = 1 << 48
"""Upper bound of samples, epochs, versions and exchanges, which no training reaches."""


def check_request(message: messages.GroupMessage, caller: str) -> None:
    """Refuse requests in the name of another group, and numbers outside of their bounds."""
    if message.group != caller:
        raise ProtocolError(f"{caller!r} logged in and speaks for the group {message.group!r}")
    for name, least, value in _numbers(message):
        if not least <= value <= MOST:
            raise ProtocolError(f"{message.kind}.{name} is {value}, expected {least} to {MOST}")


def _numbers(message: messages.GroupMessage) -> list[tuple[str, int, int]]:
    """Name, lower bound and value of each number with bounds."""
    if isinstance(message, messages.StartGroup):
        epoch, used = message.begin
        return [("num_samples", 0, message.num_samples), ("epochs", 0, message.epochs), ("begin", 0, epoch),
                ("begin", 0, used)]  # fmt: skip
    if isinstance(message, messages.Push):
        return [("sequence", 1, message.sequence), ("base", 0, message.base), ("samples", 1, message.samples),
                ("wanted", 0, message.wanted)]  # fmt: skip
    if isinstance(message, messages.LeaseRequest):
        return [("sequence", 1, message.sequence), ("size", 1, message.size)]
    if isinstance(message, messages.Retune):
        return [("local_steps", 1, message.local_steps), ("quorum", 1, message.quorum)]
    return [("sequence", 0, message.sequence)] if isinstance(message, messages.StandingQuery) else []


def request_numbers(message: messages.GroupMessage) -> Array:
    """The payload of a message as an array; empty without a payload."""
    if not isinstance(message, messages.StartGroup | messages.Push):
        return np.zeros(0)
    packing = message.packing if isinstance(message, messages.Push) else "none"
    try:
        return unpack_numbers(message.data, packing)
    except (ValueError, IndexError) as error:
        raise ProtocolError(f"a payload of {len(message.data)} bytes does not hold numbers: {error}") from error
