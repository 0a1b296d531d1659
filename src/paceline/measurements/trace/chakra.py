"""Chakra execution traces (MLCommons): length-delimited protocol buffers, a metadata message, then nodes.

Compute becomes COMP_NODE, exchange COMM_COLL_NODE with its bytes as `comm_size`; a node depends on the previous node
of its phase. Times are whole microseconds in this format; attributes hold the exact times. Of other tools' nodes, the
exchanges are those of collectives, sends and receives, and what carries no step belongs to step 0. What `chakra_trace`
tools write for simulators says how long nodes take and not when they began: it is refused.
Schema: mlcommons/chakra, schema/protobuf/et_def.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from paceline.errors import InputError
from paceline.measurements.run import Span
from paceline.measurements.trace import wire
from paceline.measurements.trace.stream import begin_of, read_content

__all__ = ["looks_like_chakra", "read_chakra", "to_chakra"]

VERSION = "0.0.4"
METADATA, LOAD, COMPUTE, SEND, RECEIVE, COLLECTIVE, STORAGE, BATCH = 1, 2, 4, 5, 6, 7, 8, 9
EXCHANGES = (SEND, RECEIVE, COLLECTIVE)
READING = (STORAGE, BATCH)
ALL_REDUCE = 0
MOST_BYTES = 1 << 30
START_FIELD = 6
TIMELESS = (
    "it was written for simulators; import the traces that torch.profiler wrote in the same run "
    "(prof.export_chrome_trace), from which chakra_trace_link takes its times"
)
LONGEST_HEAD = 1 << 16
"""Bytes within which the first message ends."""


def to_chakra(spans: Iterable[Span], *, rank: int) -> bytes:
    """One rank's spans as an execution trace; a trace belongs to one rank."""
    chosen = sorted((span for span in spans if span.rank == rank), key=lambda span: (span.step, span.start_s))
    parts = [_delimited(wire.text(1, VERSION) + wire.message(2, _attribute("rank", rank)))]
    last: dict[bool, int] = {}
    for identifier, span in enumerate(chosen, start=1):
        exchange = span.phase == "aggregate"
        parts.append(_delimited(_node(identifier, span, before=last.get(exchange))))
        last[exchange] = identifier
    return b"".join(parts)


def _delimited(content: bytes) -> bytes:
    return wire.varint(len(content)) + content


def _node(identifier: int, span: Span, *, before: int | None) -> bytes:
    exchange = span.phase == "aggregate"
    attributes = [
        _attribute("is_cpu_op", not exchange),
        _attribute("step", span.step),
        _attribute("phase", span.phase),
        _attribute("start_s", span.start_s),
        _attribute("seconds", span.seconds),
    ]
    if exchange:
        attributes.append(_attribute("comm_type", ALL_REDUCE))
    if span.size_bytes is not None:
        attributes.append(_attribute("comm_size" if exchange else "tensor_size", span.size_bytes))
    depends = wire.message(4, wire.varint(before)) if before else b""
    return (
        wire.number(1, identifier)
        + wire.text(2, span.name)
        + wire.number(3, COLLECTIVE if exchange else COMPUTE)
        + depends
        + wire.number(6, round(span.start_s * 1e6))
        + wire.number(7, round(span.seconds * 1e6))
        + b"".join(wire.message(10, attribute) for attribute in attributes)
    )


def _attribute(name: str, value: bool | int | float | str) -> bytes:
    """One attribute of a node, its value in the field of its kind."""
    if isinstance(value, bool):
        given = wire.varint(27 << 3) + wire.varint(int(value))
    elif isinstance(value, int):
        given = wire.varint(9 << 3) + wire.varint(value)
    elif isinstance(value, float):
        given = wire.double(3, value)
    else:
        given = wire.message(29, value.encode())
    return wire.text(1, name) + given


def looks_like_chakra(path: Path) -> bool:
    """By its name, or by a first message of nothing but a version and attributes."""
    begin = begin_of(path, LONGEST_HEAD)
    if path.suffix == ".et":
        return True
    try:
        size, at = wire.read_varint(begin, 0)
        found = {number for number, _ in wire.fields(begin[at : at + size])}
    except (IndexError, ValueError, struct.error):
        return False
    return bool(found) and found <= {1, 2} and at + size <= len(begin)


def read_chakra(path: Path, *, fallback_rank: int = 0) -> tuple[Span, ...]:
    """The nodes of an execution trace as spans, of the rank in its metadata."""
    try:
        messages = list(_messages(read_content(path, MOST_BYTES, "record fewer steps")))
        rank = int(_attributes(messages[0], 2).get("rank", fallback_rank)) if messages else fallback_rank
        if len(messages) > 1 and not any(map(_is_timed, messages[1:])):
            raise InputError(f"{path}: none of its {len(messages) - 1} nodes says when it began", hint=TIMELESS)
        return tuple(_span(content, rank) for content in messages[1:] if _kind(content) != METADATA)
    except InputError:
        raise
    except (ValueError, IndexError, TypeError, OverflowError, struct.error) as error:
        raise InputError(
            f"{path} is not a Chakra execution trace: {error}",
            hint="expected JSON in UTF-8, its gzip, or a Chakra file (.et)",
        ) from None


def _messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size, at = wire.read_varint(data, at)
        if at + size > len(data):
            raise ValueError("truncated inside a node")
        yield data[at : at + size]
        at += size


def _attributes(content: bytes, field: int) -> dict[str, int | float | str]:
    attributes: dict[str, int | float | str] = {}
    for number, value in wire.fields(content):
        if number == field and isinstance(value, bytes):
            parts = dict(wire.fields(value))
            name = parts.pop(1, b"")
            kept = next((item for key, item in parts.items() if key != 2), 0)
            key = name.decode() if isinstance(name, bytes) else str(name)
            attributes[key] = kept.decode() if isinstance(kept, bytes) else kept
    return attributes


def _is_timed(content: bytes) -> bool:
    return any(number == START_FIELD for number, _ in wire.fields(content)) or "start_s" in _attributes(content, 10)


def _kind(content: bytes) -> int:
    return next((int(value) for number, value in wire.fields(content) if number == 3 and isinstance(value, int)), 0)


def _span(content: bytes, rank: int) -> Span:
    given = dict(wire.fields(content))
    attributes = _attributes(content, 10)
    kind = _kind(content)
    implied = "aggregate" if kind in EXCHANGES else "io" if kind in READING else "h2d" if kind == LOAD else "forward"
    size = attributes.get("comm_size", attributes.get("tensor_size"))
    name = given.get(2, b"")
    return Span(
        rank=rank,
        step=int(attributes.get("step", 0)),
        phase=str(attributes.get("phase", implied)),
        name=name.decode() if isinstance(name, bytes) else "",
        start_s=float(attributes.get("start_s", _micros(given.get(6)))),
        seconds=float(attributes.get("seconds", _micros(given.get(7)))),
        size_bytes=int(size) if size is not None else None,
        source="chakra",
    )


def _micros(value: int | float | bytes | None) -> float:
    return float(value) / 1e6 if isinstance(value, int | float) else 0.0
