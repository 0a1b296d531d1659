"""The tables of states: everything that a peer may send is allowed in every state in which it may arrive."""

from __future__ import annotations

import threading

import pytest

from paceline.runtime.protocol.codec import ProtocolError, accepted_by
from paceline.runtime.protocol.messages import KINDS, GroupHeartbeat, Halt, Role, Welcome
from paceline.runtime.protocol.states import (
    GROUP_TABLE,
    LEADER_TABLE,
    MEMBER_TABLE,
    Event,
    GroupState,
    LeaderState,
    MemberState,
    StateMachine,
    next_state,
)


def test_a_leader_accepts_every_message_of_a_member_in_every_state() -> None:
    for state in LeaderState:
        if state is not LeaderState.RESIGNED:
            for cls in (*accepted_by(Role.LEADER, sender=Role.MEMBER), KINDS["hello"]):
                assert (state, cls) in LEADER_TABLE


def test_a_shard_accepts_every_request_of_a_group_in_every_state() -> None:
    for state in GroupState:
        for cls in accepted_by(Role.SHARD, sender=Role.GROUP):
            assert cls is GroupHeartbeat or (state, cls) in GROUP_TABLE
        for event in (Event.BUSY_HEARTBEAT, Event.IDLE_HEARTBEAT, Event.TIMEOUT, Event.TIMEOUT_WITH_LEASE):
            assert (state, event) in GROUP_TABLE


def test_only_start_and_busy_bring_a_revoked_group_back() -> None:
    back = {
        cause for (state, cause), after in GROUP_TABLE.items() if state is GroupState.REVOKED and after is not state
    }
    assert back == {KINDS["start"], KINDS["busy"]}


def test_every_state_is_reached_from_the_first() -> None:
    for table, first in ((MEMBER_TABLE, MemberState.SEARCHING), (LEADER_TABLE, LeaderState.COLLECTING)):
        reached = {first}
        for _ in table:
            reached |= {after for (state, _), after in table.items() if state in reached}  # type: ignore[attr-defined]
        assert reached == set(type(first))
    reached_groups = {GroupState.UNKNOWN, GroupState.UNHEARD}
    for _ in GROUP_TABLE:
        reached_groups |= {after for (state, _), after in GROUP_TABLE.items() if state in reached_groups}
    assert reached_groups == set(GroupState)


def test_what_a_state_does_not_allow_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="'halt' is not allowed while searching"):
        next_state(MEMBER_TABLE, MemberState.SEARCHING, Halt)


def test_a_final_state_stays_whatever_happens() -> None:
    machine = StateMachine(MEMBER_TABLE, MemberState.SEARCHING)
    assert not machine.ended
    machine.on(Event.LEFT)
    assert machine.ended
    assert machine.on(Welcome) is MemberState.LEFT


def test_no_message_overwrites_an_end_that_comes_at_the_same_time() -> None:
    for _ in range(50):
        machine = StateMachine(LEADER_TABLE, LeaderState.COLLECTING)
        gate = threading.Barrier(2)

        def speak(machine: StateMachine[LeaderState] = machine, gate: threading.Barrier = gate) -> None:
            gate.wait()
            for _ in range(200):
                machine.on(KINDS["hello"])

        thread = threading.Thread(target=speak)
        thread.start()
        gate.wait()
        machine.on(Event.RESIGNED)
        thread.join()
        assert machine.state is LeaderState.RESIGNED
