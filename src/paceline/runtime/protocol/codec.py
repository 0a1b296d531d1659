"""Messages as bytes and back: one JSON object with the kind and the fields, then the payload if the kind has one.

A received message is validated field by field against the class of its kind. An invalid message raises `ProtocolError`,
which closes only its own connection. Nothing is unpickled or executed.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from typing import Any

from paceline.channel.plain import UnacceptableText, load_plain
from paceline.errors import InputError
from paceline.runtime.protocol.messages import KINDS, Message, Role

__all__ = ["ProtocolError", "accepted_by", "decode_message", "encode_message", "from_plain", "to_plain"]

PAYLOAD = "data"
"""The field that is sent after the JSON text; in the text it has the number of bytes."""


MOST = (1 << 63) - 1
"""Largest integer in a message: Python supports larger ones, but floats and arrays do not."""


class ProtocolError(ConnectionError):
    """The peer violated the protocol; only the connection to that peer is closed."""


def accepted_by(receiver: Role, *, sender: Role) -> tuple[type[Message], ...]:
    """All messages that one role may send to another."""
    return tuple(item for item in KINDS.values() if (item.sender, item.receiver) == (sender, receiver))


def encode_message(message: Message) -> tuple[bytes, bytes]:
    """The JSON text and the payload of a message."""
    payload: bytes = getattr(message, PAYLOAD) if message.has_payload else b""
    values = dict(vars(message))
    if message.has_payload:
        values[PAYLOAD] = len(payload)
    return json.dumps({"kind": message.kind, **to_plain(values)}, separators=(",", ":")).encode(), payload


def decode_message(text: bytes, payload: bytes = b"") -> Message:
    """The message from its JSON text and its payload."""
    try:
        content = load_plain(text)
    except UnacceptableText as error:
        raise ProtocolError(str(error)) from error
    kind = content.pop("kind", None) if isinstance(content, dict) else None
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ProtocolError(f"the peer sent a message of unknown kind {str(kind)[:60]!r}")
    size = from_plain(int, content.pop(PAYLOAD, None), f"{kind}.{PAYLOAD}") if cls.has_payload else 0
    if size != len(payload):
        raise ProtocolError(f"{kind} came with a payload of {len(payload)} bytes, announced were {size}")
    if not cls.has_payload:
        return typing.cast("Message", from_plain(cls, content, cls.kind))
    return typing.cast("Message", _instance(cls, content, cls.kind, {PAYLOAD: payload}))


def to_plain(value: Any) -> Any:
    """Dataclasses, tables, lists, bytes and plain values as JSON data."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def from_plain(hint: Any, value: Any, where: str) -> Any:
    """JSON data as a value of this type; raises ProtocolError that names the invalid field."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):  # in messages always `T | None`
        return None if value is None else from_plain(options[0], value, where)
    if origin is typing.Literal and isinstance(value, str) and value in options:
        return value
    if origin is tuple and isinstance(value, list):
        hints = [options[0]] * len(value) if options[-1] is Ellipsis else list(options)
        if len(hints) == len(value):
            return tuple(from_plain(each, item, f"{where}[]") for each, item in zip(hints, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return {key: from_plain(options[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return _instance(hint, value, where, {})
    return _simple(hint, value, where)


def _simple(hint: Any, value: Any, where: str) -> Any:
    if hint is float and (type(value) is float or (type(value) is int and -MOST <= value <= MOST)):
        return float(value)
    if hint is int and type(value) is int and not -MOST <= value <= MOST:
        raise ProtocolError(f"{where[:80]} has {value.bit_length()} bits, expected 63 at most")
    if hint in (int, str, bool) and type(value) is hint:  # not isinstance, for which True is an int
        return value
    if hint is bytes and isinstance(value, str):
        try:
            return bytes.fromhex(value)
        except ValueError as error:
            raise ProtocolError(f"{where[:80]} is not hexadecimal") from error
    raise ProtocolError(f"{where[:80]} is {str(value)[:60]!r}, expected {getattr(hint, '__name__', hint)}")


def _instance(cls: Any, content: dict[str, Any], where: str, values: dict[str, Any]) -> Any:
    """A dataclass from JSON data of its fields; `values` has fields that are already decoded."""
    hints = _hints(cls)
    if set(content) | set(values) != set(hints):
        wrong = sorted((set(content) | set(values)) ^ set(hints))
        raise ProtocolError(f"{where} has missing or unknown fields: {', '.join(wrong)}"[:200])
    try:
        return cls(**values, **{name: from_plain(hints[name], content[name], f"{where}.{name}") for name in content})
    except InputError as error:
        raise ProtocolError(f"{where}: {error}") from error


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, without class variables."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}
