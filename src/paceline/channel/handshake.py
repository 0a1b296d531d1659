"""Mutual proof of a shared secret, and the keys of one connection; `docs/explanation/channel.md` explains the choices.

    listener -> caller   greeting  PACELINE, version, nonce
    caller -> listener   claim     PACELINE, version, nonce, [session, role, name, listener's role, listener's address],
                                   HMAC(caller's key, hash of greeting and claim)
    listener -> caller   reply     name, HMAC(listener's key, hash of greeting, claim, proof and name)

All keys are derived from the secret by HKDF, with both nonces as salt. Each proof covers all earlier messages. The two
proofs have different keys, so that neither can be reflected. The claim has the address to which the caller connected:
a listener with another address refuses it, so that a proof cannot be relayed.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["MAX_FIELD", "VERSION", "Keys", "Login", "Opening", "Refused", "greet_caller", "greet_listener"]

VERSION = 5
"""Version of handshake, frames and messages together; processes of different versions refuse each other."""
MAGIC = b"PACELINE"
NONCE_BYTES = PROOF_BYTES = 32
MAX_FIELD = 200
"""Bytes of a name, role, session or address: it bounds what an unauthenticated peer can send."""
NUM_FIELDS = 5
_SIZE = struct.Struct(">H")


class Refused(ConnectionError):
    """The peer does not know the secret, or has another job, version, role or name than expected."""


@dataclass(frozen=True)
class Login:
    """The secret and the identity of a process."""

    secret: bytes
    role: str
    """Role in the protocol, such as `member` or `shard`."""
    name: str = ""
    """Name among the processes of its role."""
    session: str = ""
    """Which of the jobs that have one secret."""


@dataclass(frozen=True)
class Keys:
    """The result of a completed handshake."""

    sending: bytes
    receiving: bytes
    peer: str
    """The name by which the peer logged in."""


@dataclass(frozen=True)
class Opening:
    """A connection before the handshake."""

    read: Callable[[int], bytes]
    """Exactly that many bytes, or ConnectionError."""
    write: Callable[[bytes], None]
    address: str
    """Address of the listener as seen from this end of the connection; empty if the socket has none."""


def greet_listener(opening: Opening, login: Login, listener: str) -> Keys:
    """The caller's side; `listener` is the role that the other side must have."""
    read, target = opening.read, opening.address
    greeting = read(len(MAGIC) + _SIZE.size + NONCE_BYTES)
    _check_version(greeting)
    fields = _packed(login.session, login.role, login.name, listener, target)
    claim = MAGIC + _SIZE.pack(VERSION) + secrets.token_bytes(NONCE_BYTES) + _SIZE.pack(len(fields)) + fields
    schedule = _Schedule(login.secret, greeting, claim)
    proof = schedule.proof(b"caller")
    opening.write(claim + proof)
    name = _text(read(_length(read(_SIZE.size), MAX_FIELD)))
    schedule.add(proof + _packed(name))
    if not hmac.compare_digest(read(PROOF_BYTES), schedule.proof(b"listener")):
        raise Refused(f"{target} does not hold the secret of this job")
    return Keys(schedule.key(b"caller frames"), schedule.key(b"listener frames"), name)


def greet_caller(opening: Opening, login: Login, callers: tuple[str, ...]) -> Keys:
    """The listener's side; `callers` are the roles that may call. The caller proves first: nothing is signed before."""
    read, here = opening.read, opening.address
    greeting = MAGIC + _SIZE.pack(VERSION) + secrets.token_bytes(NONCE_BYTES)
    opening.write(greeting)
    begin = read(len(MAGIC) + _SIZE.size + NONCE_BYTES)
    _check_version(begin)
    size = read(_SIZE.size)
    fields = read(_length(size, NUM_FIELDS * (MAX_FIELD + _SIZE.size)))
    schedule = _Schedule(login.secret, greeting, begin + size + fields)
    proof = read(PROOF_BYTES)
    if not hmac.compare_digest(proof, schedule.proof(b"caller")):
        raise Refused("the caller does not hold the secret of this job")
    session, role, name, expected, target = _unpacked(fields)
    if (session, expected, target) != (login.session, login.role, here) or role not in callers:
        raise Refused(
            f"a {role!r} called {expected!r} of session {session!r} at {target}, "
            f"this is {login.role!r} of session {login.session!r} at {here}"
        )
    schedule.add(proof + _packed(login.name))
    opening.write(_packed(login.name) + schedule.proof(b"listener"))
    return Keys(schedule.key(b"listener frames"), schedule.key(b"caller frames"), name)


class _Schedule:
    """Hash of the transcript, and keys that depend on it."""

    def __init__(self, secret: bytes, greeting: bytes, claim: bytes) -> None:
        nonces = slice(len(MAGIC) + _SIZE.size, len(MAGIC) + _SIZE.size + NONCE_BYTES)
        # HKDF (RFC 5869): extract with the nonces as salt, expand with purpose and transcript as info.
        self._extracted = hmac.digest(greeting[nonces] + claim[nonces], secret, "sha256")
        self._said = hashlib.sha256(greeting + claim)

    def add(self, said: bytes) -> None:
        self._said.update(said)

    def key(self, purpose: bytes) -> bytes:
        info = b"paceline channel " + purpose + b" " + self._said.digest()
        return hmac.digest(self._extracted, info + b"\x01", "sha256")

    def proof(self, side: bytes) -> bytes:
        return hmac.digest(self.key(side + b" proof"), self._said.digest(), "sha256")


def _check_version(opening: bytes) -> None:
    if opening[: len(MAGIC)] != MAGIC:
        raise Refused("the peer does not speak this protocol")
    (version,) = _SIZE.unpack_from(opening, len(MAGIC))
    if version != VERSION:
        raise Refused(f"the peer has protocol version {version} of the protocol, this process version {VERSION}")


def _length(size: bytes, limit: int) -> int:
    (length,) = _SIZE.unpack(size)
    if length > limit:
        raise Refused(f"the peer announced {length} bytes, at most {limit} are accepted here")
    return int(length)


def _packed(*texts: str) -> bytes:
    parts = [text.encode() for text in texts]
    too_long = [part for part in parts if len(part) > MAX_FIELD]
    if too_long:
        raise Refused(f"{too_long[0][:40]!r}... is longer than {MAX_FIELD} bytes")
    return b"".join(_SIZE.pack(len(part)) + part for part in parts)


def _unpacked(fields: bytes) -> list[str]:
    texts, at = [], 0
    for _ in range(NUM_FIELDS):
        size = _length(fields[at : at + _SIZE.size].ljust(_SIZE.size, b"\xff"), MAX_FIELD)
        texts.append(_text(fields[at + _SIZE.size : at + _SIZE.size + size]))
        at += _SIZE.size + size
    if at != len(fields):
        raise Refused("the peer's claim has the wrong length")
    return texts


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Refused("the peer's name is no text") from error
