"""Every message survives the wire, and nothing else gets through."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.runtime.members.view import Ballot, Peer, View
from paceline.runtime.protocol.codec import ProtocolError, decode_message, encode_message, from_plain
from paceline.runtime.protocol.messages import KINDS, Hello, LeaseReply, Message, Push, Ready, StartGroup
from paceline.runtime.syncer.rounds import OuterOptimizer, StalenessRule

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
WHOLE = st.integers(-(2**63) + 1, 2**63 - 1)
PLAIN = {int: WHOLE, float: st.floats(allow_nan=False), str: st.text(), bool: st.booleans()}
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.none() | values(options[0])
    if origin is typing.Literal:
        return st.sampled_from(options)
    if origin is tuple:
        if options[-1] is Ellipsis:
            return st.lists(values(options[0]), max_size=3).map(tuple)
        return st.tuples(*map(values, options))
    if origin is dict:
        return st.dictionaries(st.text(), values(options[1]), max_size=2)
    if dataclasses.is_dataclass(hint):
        return instances(hint)
    return {**PLAIN, Any: st.integers(), bytes: st.binary()}[hint]


def instances(cls: Any) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    fields = {field.name: values(hints[field.name]) for field in dataclasses.fields(cls)}
    return st.builds(cls, **{**fields, **BOUNDED.get(cls, {})})


BOUNDED: dict[type, dict[str, st.SearchStrategy[Any]]] = {
    StalenessRule: {"compensation": FINITE},
    OuterOptimizer: {"rate": FINITE, "momentum": FINITE, "delay": st.integers(1, 9)},
}
"""Fields that have bounds beside their type."""
BOUNDED[Ballot] = {
    "number": st.integers(0, 2**48),
    "size": st.integers(3, 9),
    "peers": st.lists(instances(Peer), min_size=1, max_size=3).map(tuple),
}
BOUNDED[View] = {**BOUNDED[Ballot], "source": st.integers(0, 2)}


def over_the_wire(message: Message) -> Message:
    return decode_message(*encode_message(message))


@settings(max_examples=20, deadline=None)
@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_every_message_survives_the_wire(kind: str, data: st.DataObject) -> None:
    message = data.draw(instances(KINDS[kind]))
    assert over_the_wire(message) == message


def fields_of(message: Message) -> dict[str, Any]:
    content = json.loads(encode_message(message)[0])
    assert isinstance(content, dict)
    return content


@settings(max_examples=20, deadline=None)
@pytest.mark.parametrize("kind", [kind for kind, cls in KINDS.items() if dataclasses.fields(cls)])
@given(st.data())
def test_a_missing_field_is_a_protocol_error(kind: str, data: st.DataObject) -> None:
    content = fields_of(data.draw(instances(KINDS[kind])))
    del content[data.draw(st.sampled_from(sorted(set(content) - {"kind"})))]
    with pytest.raises(ProtocolError):
        decode_message(json.dumps(content).encode())


@settings(max_examples=20, deadline=None)
@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_an_unknown_field_is_a_protocol_error(kind: str, data: st.DataObject) -> None:
    content = fields_of(data.draw(instances(KINDS[kind])))
    with pytest.raises(ProtocolError, match="more"):
        decode_message(json.dumps({**content, "more": 1}).encode(), bytes(content.get("data", 0)))


@settings(max_examples=100, deadline=None)
@given(st.binary() | st.text().map(str.encode) | JSON.map(lambda value: json.dumps(value).encode()))
def test_anything_else_is_a_protocol_error(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_message(text)


WRONG = [
    (
        "hello",
        {"peer": {"id": "a", "rank": "0", "address": "h", "port": 1}, "view": 1, "ballots": []},
        "hello.peer.rank",
    ),
    ("hello", {"peer": [], "view": 1, "ballots": []}, "hello.peer"),
    ("hello", {"peer": {"id": "a", "rank": 0, "address": "h", "port": 1}, "view": True, "ballots": []}, "hello.view"),
    ("ready", {"view": 1, "established": 0, "report": [], "finished": False, "deaths": []}, "ready.report"),
    ("board-put", {"view": 1, "key": "k", "value": "xyz"}, "board-put.value"),
    ("retune", {"group": "a", "local_steps": 1, "quorum": 1, "merge_at": ["h"]}, "retune.merge_at"),
    (
        "push",
        {
            "group": "a",
            "session": 1,
            "sequence": 1,
            "base": 0,
            "samples": 1,
            "packing": "zip",
            "data": 0,
            "wanted": 0,
            "status": None,
        },
        "push.packing",
    ),
    (
        "start",
        {
            "group": "a",
            "session": 1,
            "layout": [],
            "num_samples": 1,
            "epochs": 1,
            "begin": [0, 0],
            "staleness": {"name": "average", "limit": 1, "compensation": 0.1},
            "outer": None,
            "data": 0,
        },
        "start.staleness",
    ),
]


@pytest.mark.parametrize(("kind", "fields", "where"), WRONG, ids=[where for _, _, where in WRONG])
def test_a_field_of_the_wrong_type_is_named(kind: str, fields: dict[str, Any], where: str) -> None:
    with pytest.raises(ProtocolError, match=where):
        decode_message(json.dumps({"kind": kind, **fields}).encode())


def test_messages_are_frozen_and_their_answers_exist() -> None:
    for cls in (Hello, Ready, Push, StartGroup, LeaseReply):
        assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    for kind, cls in KINDS.items():
        assert cls.kind == kind
        assert set(cls.answers) <= set(KINDS)
        if cls.sender is not cls.receiver:
            assert all(KINDS[answer].sender is cls.receiver for answer in cls.answers)


def test_whole_numbers_are_times_too() -> None:
    assert from_plain(float, 3, "seconds") == 3.0
    with pytest.raises(ProtocolError, match="seconds"):
        from_plain(float, True, "seconds")


@pytest.mark.parametrize("wrong", [
    {"rate": float("nan")}, {"momentum": float("inf")}, {"delay": 0}, {"delay": -1}, {"delay": 2**63},
], ids=str)  # fmt: skip
def test_an_optimiser_with_which_no_round_could_be_completed_is_refused(wrong: dict[str, Any]) -> None:
    usual = {"rate": 1.0, "momentum": 0.9, "delay": 1}
    content = {"kind": "start", "group": "a", "session": 1, "layout": [], "num_samples": 1, "epochs": 1,
               "begin": [0, 0], "staleness": None, "data": 0, "outer": usual}  # fmt: skip
    assert isinstance(decode_message(json.dumps(content).encode()), StartGroup)
    with pytest.raises(ProtocolError):
        decode_message(json.dumps({**content, "outer": {**usual, **wrong}}).encode())


@pytest.mark.parametrize("number", [2**63, -(2**63), 10**400])
def test_numbers_that_no_array_holds_are_refused(number: int) -> None:
    for hint in (int, float):
        with pytest.raises(ProtocolError):
            from_plain(hint, number, "a field")
    assert from_plain(int, 2**63 - 1, "a field") == 2**63 - 1
