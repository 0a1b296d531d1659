"""MACs of the frames of one direction."""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Union

__all__ = ["MAC_BYTES", "FrameMacs", "Octets", "check_mac"]

MAC_BYTES = 16
_COUNT = struct.Struct(">QB")
Octets = Union[bytes, bytearray, memoryview]  # noqa: UP007 - evaluated by Python 3.9


class FrameMacs:
    """HMAC-SHA256, cut to 16 bytes, over number, part and content of every frame."""

    def __init__(self, key: bytes) -> None:
        self._keyed, self._number = hmac.new(key, digestmod=hashlib.sha256), 0

    def seal_head(self, head: bytes) -> tuple[bytes, hmac.HMAC]:
        """The head of the next frame with its MAC, and the MAC of its content, which is still to be added."""
        self._number += 1
        return head + _cut(self._begun(0, head)), self._begun(1, head)

    def check_head(self, given: bytearray, size: int) -> hmac.HMAC:
        """Check the sizes before they are believed; the MAC of the content, which is still to be added."""
        self._number += 1
        check_mac(self._begun(0, given[:size]), given[size:])
        return self._begun(1, given[:size])

    def _begun(self, part: int, head: Octets) -> hmac.HMAC:
        mac = self._keyed.copy()
        mac.update(_COUNT.pack(self._number, part))
        mac.update(head)
        return mac


def _cut(mac: hmac.HMAC) -> bytes:
    return mac.digest()[:MAC_BYTES]


def check_mac(mac: hmac.HMAC, given: bytearray) -> None:
    """Whether a peer that holds the key has sent this."""
    if not hmac.compare_digest(bytes(given), _cut(mac)):
        raise ConnectionError("a frame was changed, repeated or left out on its way")
