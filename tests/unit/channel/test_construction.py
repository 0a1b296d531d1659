"""The bytes on the wire are those that docs/explanation/channel.md defines, computed a second time from the page."""

from __future__ import annotations

import hashlib
import hmac
import socket
import threading

import pytest

from paceline.channel.frames import SecureConnection, accept_connection, call_connected
from paceline.channel.handshake import VERSION, Login

SECRET = b"the secret of this job"


def mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def field(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


class Keys:
    """The schedule of the page."""

    def __init__(self, greeting: bytes, claim: bytes) -> None:
        self.prk = mac(greeting[10:42] + claim[10:42], SECRET)
        self.said = greeting + claim

    def key(self, purpose: bytes) -> bytes:
        return mac(self.prk, b"paceline channel ", purpose, b" ", hashlib.sha256(self.said).digest(), b"\x01")

    def proof(self, side: bytes) -> bytes:
        return mac(self.key(side + b" proof"), hashlib.sha256(self.said).digest())


def frame(key: bytes, number: int, text: bytes, data: bytes) -> bytes:
    head = len(text).to_bytes(4, "big") + len(data).to_bytes(8, "big")
    count = number.to_bytes(8, "big")
    return head + mac(key, count, b"\0", head)[:16] + text + data + mac(key, count, b"\1", head, text, data)[:16]


def exactly(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += end.recv(size - len(data))
    return data


def test_a_listener_speaks_as_the_page_says() -> None:
    mine, yours = socket.socketpair()
    found: list[SecureConnection] = []
    login = Login(SECRET, "listener", "you", "job")
    thread = threading.Thread(target=lambda: found.append(accept_connection(yours, login, ("caller",), timeout=5)))
    thread.start()
    greeting = exactly(mine, 42)
    assert greeting[:10] == b"PACELINE" + VERSION.to_bytes(2, "big")
    fields = b"".join(field(text) for text in (b"job", b"caller", b"me", b"listener", b""))
    claim = b"PACELINE" + VERSION.to_bytes(2, "big") + bytes(range(32)) + field(fields)
    keys = Keys(greeting, claim)
    proof = keys.proof(b"caller")
    mine.sendall(claim + proof)
    assert exactly(mine, 5) == field(b"you")
    keys.said += proof + field(b"you")
    assert exactly(mine, 32) == keys.proof(b"listener")
    thread.join(5)
    mine.sendall(frame(keys.key(b"caller frames"), 1, b"{}", b"data"))
    assert found[0].receive(timeout=5) == (b"{}", b"data")
    for number in (1, 2):
        found[0].send(b"[]", b"answer")
        expected = frame(keys.key(b"listener frames"), number, b"[]", b"answer")
        assert exactly(mine, len(expected)) == expected
    mine.close()
    found[0].close()


@pytest.mark.parametrize("at", [0, 1_000, 99_999, 3_000_000])
def test_one_changed_byte_of_the_data_is_noticed(at: int) -> None:
    mine, yours = socket.socketpair()
    found: list[SecureConnection] = []
    login = Login(SECRET, "listener")
    thread = threading.Thread(target=lambda: found.append(accept_connection(yours, login, ("caller",), timeout=5)))
    thread.start()
    caller = call_connected(mine, Login(SECRET, "caller"), listener="listener", timeout=5)
    thread.join(5)
    sealed = bytearray(b"".join(caller._sealed(b"{}", bytes(3_000_001))))
    sealed[28 + 2 + at] ^= 1
    mine.setblocking(True)
    sender = threading.Thread(target=mine.sendall, args=(sealed,))
    sender.start()
    with pytest.raises(ConnectionError, match="changed, repeated or left out"):
        found[0].receive(timeout=10)
    sender.join(10)
    caller.close()
    found[0].close()
