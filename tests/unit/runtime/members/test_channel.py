"""Messages over the secure channel, over real sockets."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from paceline.channel.frames import PeerClosed
from paceline.runtime.members.channel import MAX_TEXT, Channel, Refused, login_of, message_listener, open_channel
from paceline.runtime.members.link import FILLED, MemberLink, SilentConnection
from paceline.runtime.members.peers import ask_to_follow
from paceline.runtime.members.view import Ballot, Peer
from paceline.runtime.protocol.codec import ProtocolError, decode_message, to_plain
from paceline.runtime.protocol.messages import (
    Halt,
    Heartbeat,
    Hello,
    LeaderHeartbeat,
    LeadershipQuery,
    Lifeline,
    Push,
    Role,
    WaitForSuccessor,
    Welcome,
)

SECRET = b"the secret of this job"
CALLER = login_of(SECRET, Role.MEMBER, "rank1-a")
QUERY = LeadershipQuery(Peer("rank1-a", 1, "127.0.0.1", 40000))


class Door:
    """A listener that keeps whom it lets in."""

    def __init__(self) -> None:
        server = socket.create_server(("127.0.0.1", 0))
        self.port = server.getsockname()[1]
        self.let_in: list[Channel] = []
        login = login_of(SECRET, Role.MEMBER, "rank0-b")
        self._listener = message_listener(server, login, self.let_in.append, caller=Role.MEMBER)
        self._thread = threading.Thread(target=self._listener.run, daemon=True)
        self._thread.start()

    def call(self) -> tuple[Channel, Channel]:
        """Both ends of a new connection."""
        before = len(self.let_in)
        mine = open_channel("127.0.0.1", self.port, CALLER, timeout=5)
        while len(self.let_in) == before:
            time.sleep(0.005)
        return mine, self.let_in[-1]

    def close(self) -> None:
        self._listener.close()
        self._thread.join(5)
        for channel in self.let_in:
            channel.close()


@pytest.fixture
def door() -> Iterator[Door]:
    opened = Door()
    yield opened
    opened.close()


def test_peers_with_the_secret_exchange_values_and_bytes(door: Door) -> None:
    mine, theirs = door.call()
    sent = Push("a", session=5, sequence=3, base=2, samples=10, packing="none", data=b"\x00\x01" * 100_000)
    mine.send(sent)
    assert theirs.receive(Push) == sent
    assert (mine.peer, theirs.peer) == ("rank0-b", "rank1-a")
    mine.close()


def test_what_says_that_a_link_works_fills_whole_packets_now_and_then(door: Door) -> None:
    mine, theirs = door.call()
    link = MemberLink(mine)
    for message in [Welcome(1)] + 2 * FILLED * [Heartbeat(1, 0.5), Halt(1, "why")] + FILLED * [LeaderHeartbeat()]:
        link.send(message)
    sizes = {kind: list[int]() for kind in ("welcome", "heartbeat", "halt", "leader-heartbeat")}
    for _ in range(1 + 5 * FILLED):
        text, _ = theirs._connection.receive()
        sizes[decode_message(text).kind].append(len(text))
    assert sizes.pop("welcome")[0] >= 1500
    assert max(sizes.pop("halt")) < 100, "other messages stay short"
    beats = [size >= 1500 for size in (*sizes["heartbeat"], *sizes["leader-heartbeat"])]
    assert beats == 3 * ([True] + (FILLED - 1) * [False])
    mine.close()


def test_who_asks_to_follow_fills_a_whole_packet(door: Door) -> None:
    hello, replies = Hello(QUERY.peer, 0, ()), list[object]()
    asking = threading.Thread(target=lambda: replies.append(ask_to_follow(("127.0.0.1", door.port), CALLER, hello)))
    asking.start()
    while not door.let_in:
        time.sleep(0.005)
    text, _ = door.let_in[0]._connection.receive()
    assert len(text) >= 1500
    assert decode_message(text) == hello
    door.let_in[0].send(WaitForSuccessor(None))
    asking.join(10)
    assert replies == [(WaitForSuccessor(None), None)]


def test_a_listener_of_another_role_is_refused(door: Door) -> None:
    with pytest.raises(ConnectionError):
        open_channel("127.0.0.1", door.port, CALLER, listener=Role.SHARD, timeout=5)
    with pytest.raises(ConnectionError):
        open_channel("127.0.0.1", door.port, login_of(SECRET, Role.GROUP, "a"), timeout=5)
    assert not door.let_in


def test_another_secret_is_refused(door: Door) -> None:
    with pytest.raises(ConnectionError):
        open_channel("127.0.0.1", door.port, login_of(b"a guess", Role.MEMBER, "rank1-a"), timeout=5)
    assert not door.let_in
    assert issubclass(Refused, ConnectionError)


@pytest.mark.parametrize(
    "text",
    [
        b'{"kind":"no-such-kind"}',
        b'{"kind":"leadership-query","more":1}',
        b'{"kind":"heartbeat"}',
        b"[]",
        b"[" * 1024,
        b'{"kind":"\\ud800"}',
        b'{"kind":' + b'{"a":' * 40 + b"1" + b"}" * 41,
        b"\xff",
    ],
    ids=["unknown", "wrong-field", "unexpected", "no-object", "open-lists", "surrogate", "deep", "no-text"],
)
def test_a_wrong_message_of_an_authenticated_peer_ends_its_connection_only(door: Door, text: bytes) -> None:
    (wrong, first), (right, second) = door.call(), door.call()
    wrong._connection.send(text)
    right.send(QUERY)
    with pytest.raises(ProtocolError):
        first.receive(LeadershipQuery)
    assert second.receive(LeadershipQuery) == QUERY
    for channel in (wrong, right):
        channel.close()


def test_a_text_that_takes_seconds_to_parse_ends_the_connection_unread(door: Door) -> None:
    """A process stands still while it parses one: 50 MB of votes were a minute without heartbeats."""
    mine, theirs = door.call()
    mine._connection.send(b" " * (MAX_TEXT + 1))
    with pytest.raises(ConnectionError, match="too much here"):
        theirs.receive(Hello)
    peers = tuple(Peer(f"rank{rank}-abcdef", rank, "10.100.100.100", 65535) for rank in range(10_000))
    ballot = Ballot(1, peers[0].id, len(peers), peers)
    assert 8 * len(json.dumps(to_plain(ballot))) < MAX_TEXT, "eight views of 10,000 ranks fit"
    mine.close()


def test_an_answer_that_the_protocol_does_not_name_is_not_sent(door: Door) -> None:
    channel, _ = door.call()
    with pytest.raises(AssertionError, match="does not answer"):
        channel.answer(QUERY, Heartbeat())
    channel.close()


@pytest.mark.parametrize("size", [-1, 3, 1 << 40], ids=["negative", "another", "too-large"])
def test_a_payload_of_another_size_than_announced_is_refused(door: Door, size: int) -> None:
    mine, theirs = door.call()
    text = f'{{"kind":"push","group":"a","sequence":1,"base":0,"samples":1,"packing":"none","data":{size}}}'
    mine._connection.send(text.encode(), b"four")
    with pytest.raises(ProtocolError, match="payload"):
        theirs.receive(Push)
    mine.close()


FOLLOWER = """
import os, socket, struct, sys, time
from paceline.runtime.members.channel import Role, login_of, open_channel
from paceline.runtime.members.link import MemberLink
from paceline.runtime.members.peers import open_lifeline
from paceline.runtime.protocol.messages import Farewell
endpoint = ("127.0.0.2", int(sys.argv[1]))
login, silent = (login_of(b"the secret of this job", Role.MEMBER, name) for name in ("rank1-a", "lifeline"))
link = MemberLink(open_channel(*endpoint, login, timeout=5))
link.hold(open_lifeline(endpoint, silent))
if sys.argv[2] == "killed beside its worker" and not os.fork():
    time.sleep(30)
    os._exit(0)
sys.stdin.readline()
if sys.argv[2] == "is reset":
    plain = link._channel._connection._connection
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    plain.close()
    link.close()
    time.sleep(60)
"""


@pytest.mark.parametrize("fate", ["killed", "killed beside its worker", "is reset"])
def test_a_killed_process_is_dead_even_if_it_had_not_read_all(fate: str) -> None:
    """Between hosts, which two addresses stand for, its kernel resets the connection as a firewall would."""
    let_in: list[Channel] = []
    server = socket.create_server(("127.0.0.2", 0))
    listener = message_listener(server, login_of(SECRET, Role.MEMBER, "rank0-b"), let_in.append, caller=Role.MEMBER)
    threading.Thread(target=listener.run, daemon=True).start()
    argv = [sys.executable, "-c", FOLLOWER, str(server.getsockname()[1]), fate]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdin is not None
        while len(let_in) < 2:
            time.sleep(0.01)
        by_name = {channel.peer: channel for channel in let_in}  # two handshakes end in either order
        link, lifeline = MemberLink(by_name["rank1-a"]), by_name["lifeline"]
        lifeline.receive(Lifeline)
        link.hold(SilentConnection(lifeline))
        link.send(Halt(1, "what it does not read"))
        time.sleep(0.1)
        if fate.startswith("killed"):
            process.kill()
        else:
            process.stdin.write("\n")
            process.stdin.flush()
        with pytest.raises(ConnectionError) as error:
            link.receive(Heartbeat)
        assert not isinstance(error.value, PeerClosed), "the connection was reset"
        assert link.ended(error.value) is fate.startswith("killed")
        link.close()
        process.kill()
        if fate == "killed beside its worker":
            process.stdin.write("a broken pipe unless the worker still runs")
            process.stdin.flush()
            os.killpg(process.pid, signal.SIGKILL)
    listener.close()
