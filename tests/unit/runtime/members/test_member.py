"""Authentication and group_membership over real sockets, without any training."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.channel.handshake import Login
from paceline.errors import TrainingLost, TrainingOver
from paceline.runtime.members import peers
from paceline.runtime.members.channel import login_of
from paceline.runtime.members.member import Member
from paceline.runtime.members.peers import ask_leadership
from paceline.runtime.members.view import Peer, Report, Timeouts, View, is_closed
from paceline.runtime.protocol.codec import ProtocolError, decode_message
from paceline.runtime.protocol.following import Following
from paceline.runtime.protocol.messages import Farewell, Hello, Role, ViewFormed

SECRET = b"the secret of this job"
QUICK = Timeouts(heartbeat_interval=0.05, heartbeat_timeout=0.6, join=10.0, settle=0.05, partition=2.5)


class Crew:
    """Members of one job in this process."""

    def __init__(self, folder: Path) -> None:
        self.roster = folder / "roster.json"
        self.members: dict[int, Member] = {}
        self.meet: tuple[str, int] | None = None
        self.asking: list[threading.Thread] = []

    def add(self, rank: int, *, first: int | None = None, timeouts: Timeouts = QUICK, port: int = 0) -> Member:
        server = socket.create_server(("127.0.0.1", port))
        place = server.getsockname()
        self.meet = self.meet or (place[0], place[1])
        peer = Peer(f"rank{rank}-{secrets.token_hex(2)}", rank, place[0], place[1])
        member = Member(server, SECRET, peer=peer, timeouts=timeouts)
        member.start(self.meet, first=first, roster=self.roster)
        self.members[rank] = member
        return member

    def next_views(self, *ranks: int) -> list[View]:
        found: dict[int, View] = {}
        threads = [
            threading.Thread(target=lambda r=rank: found.__setitem__(r, self.members[r].next_view(Report(r))))
            for rank in ranks
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(15)
        for rank in ranks:
            self.members[rank].establish(found[rank])
        return [found[rank] for rank in ranks]

    def waits(self, rank: int) -> bool:
        """Whether a member asks for the next view in vain, for longer than anything that it waits for takes."""
        found: list[View] = []
        thread = threading.Thread(target=self._ask, args=(self.members[rank], found), daemon=True)
        self.asking.append(thread)
        thread.start()
        thread.join(3 * QUICK.heartbeat_timeout)
        return not found

    @staticmethod
    def _ask(member: Member, found: list[View]) -> None:
        with contextlib.suppress(TrainingLost):  # the test is over, and the member has left
            found.append(member.next_view(Report(0)))

    def vanish(self, rank: int) -> None:
        """As if the process had been killed: every connection of it breaks."""
        self.members.pop(rank).leave()


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    made = Crew(tmp_path)
    yield made
    for rank in list(made.members):
        made.vanish(rank)
    for thread in made.asking:
        thread.join(10)
        assert not thread.is_alive(), "a member that has left still waits for a view"


def test_all_members_see_the_same_view_in_order_of_rank(crew: Crew) -> None:
    crew.add(0, first=3)
    crew.add(2)
    crew.add(1)
    views = crew.next_views(0, 1, 2)
    assert views[0] == views[1] == views[2]
    assert [peer.rank for peer in views[0].peers] == [0, 1, 2]
    assert views[0].source == 2, "the most advanced"
    assert [crew.members[rank].rank for rank in (0, 1, 2)] == [0, 1, 2]


def test_two_that_say_the_same_rank_are_two_members_in_one_order(crew: Crew) -> None:
    crew.add(0, first=3)
    crew.add(1)
    crew.members[2] = crew.members.pop(1)
    crew.add(1)
    views = crew.next_views(0, 1, 2)
    assert views[0] == views[1] == views[2]
    assert [peer.rank for peer in views[0].peers] == [0, 1, 1]
    assert sorted(member.rank for member in crew.members.values()) == [0, 1, 2]


def test_one_that_never_comes_is_not_waited_for_longer_than_patience(crew: Crew) -> None:
    short = replace(QUICK, join=0.5)
    crew.add(0, first=3, timeouts=short)
    crew.add(1, timeouts=short)
    assert [peer.rank for peer in crew.next_views(0, 1)[0].peers] == [0, 1]


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_whoever_vanishes_the_others_form_the_next_view(crew: Crew, gone: int) -> None:
    crew.add(0, first=3)
    crew.add(1)
    crew.add(2)
    first = crew.next_views(0, 1, 2)[0]
    crew.vanish(gone)
    left = [rank for rank in range(3) if rank != gone]
    assert all(crew.members[rank].interrupted.wait(5) for rank in left)
    views = crew.next_views(*left)
    assert views[0] == views[1]
    assert [peer.rank for peer in views[0].peers] == left
    assert views[0].number > first.number
    assert views[0].leader.id == crew.members[left[0]].peer.id


def test_a_late_one_finds_the_leader_of_the_day_by_the_roster(crew: Crew) -> None:
    crew.add(0, first=2)
    crew.add(1)
    crew.next_views(0, 1)
    crew.vanish(0)
    crew.members[1].interrupted.wait(5)
    crew.next_views(1)
    assert len(json.loads(crew.roster.read_text())) == 1
    crew.add(0)
    views = crew.next_views(0, 1)
    assert [peer.rank for peer in views[0].peers] == [0, 1]
    assert views[0].leader.id == crew.members[1].peer.id


def test_one_that_is_started_again_at_its_port_is_not_taken_for_the_one_before_it(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew.add(0, first=2)
    crew.add(1)
    crew.next_views(0, 1)
    port, restarted = crew.members[0].peer.port, threading.Event()
    true_verdict = peers.is_dead

    def late_verdict(peer: Peer, login: Login) -> bool:
        restarted.wait(10)
        return true_verdict(peer, login)

    monkeypatch.setattr(peers, "is_dead", late_verdict)
    crew.vanish(0)
    crew.add(0, port=port)
    restarted.set()
    views = crew.next_views(0, 1)
    assert [peer.rank for peer in views[0].peers] == [0, 1]
    assert views[0].leader.id == crew.members[1].peer.id


def finished(crew: Crew) -> None:
    """Two members that have trained together to the end."""
    crew.add(0, first=2)
    crew.add(1)
    crew.next_views(0, 1)
    last = threading.Thread(target=crew.members[1].finish, args=(Report(7),))
    last.start()
    assert crew.members[0].finish(Report(7)) is None
    last.join(5)


def test_after_the_end_of_one_loop_another_may_follow_and_survives_as_well(crew: Crew) -> None:
    finished(crew)
    for member in crew.members.values():
        member.go_on()
    crew.vanish(0)
    assert crew.members[1].interrupted.wait(5)
    assert [peer.rank for peer in crew.next_views(1)[0].peers] == [1]


def test_a_loop_that_follows_the_end_goes_on_without_those_that_have_left(crew: Crew) -> None:
    finished(crew)
    crew.vanish(0)
    assert crew.members[1].interrupted.wait(5), "the leader has left"
    crew.members[1].go_on()
    assert [peer.rank for peer in crew.next_views(1)[0].peers] == [1]


def test_one_that_hears_of_the_end_late_does_not_take_the_view_after_it(crew: Crew) -> None:
    crew.add(0, first=3)
    crew.add(1)
    crew.add(2)
    crew.next_views(0, 1, 2)
    for member in crew.members.values():
        member._say_ready(Report(7), finished=True)
    wait_until(lambda: all(member._is_done() for member in crew.members.values()))
    crew.vanish(2)
    wait_until(lambda: all(member._core.seen == 2 for member in crew.members.values()))
    assert [crew.members[rank].finish(Report(7)) for rank in (0, 1)] == [None, None]
    for member in crew.members.values():
        member.go_on()
        assert member.interrupted.is_set(), "the next loop begins with the view that was formed in between"
    assert [[peer.rank for peer in view.peers] for view in crew.next_views(0, 1)] == [[0, 1]] * 2
    assert not any(member.interrupted.is_set() for member in crew.members.values())


def wait_until(happened: Callable[[], bool]) -> None:
    """Wait for what other threads do."""
    end = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_one_whose_thread_fails_is_lost_and_says_so_while_the_others_go_on(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crew.add(0, first=2)
    crew.add(1)
    crew.next_views(0, 1)

    def broken() -> bool:
        raise ValueError("no clock")

    monkeypatch.setattr(crew.members[1], "_was_asleep", broken)
    with pytest.raises(TrainingLost, match="a thread of this process failed"):
        crew.members[1].next_view(Report(0))
    assert "no clock" in caplog.text
    crew.vanish(1)
    assert [peer.rank for peer in crew.next_views(0)[0].peers] == [0]


def test_a_leader_that_fails_is_followed_by_another(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    crew.add(0, first=2)
    crew.add(1)
    crew.next_views(0, 1)
    leader = crew.members[0]._leader
    assert leader is not None

    def broken(now: float) -> None:
        raise ValueError("no clock")

    monkeypatch.setattr(leader._core, "tick", broken)
    for member in crew.members.values():
        assert member.interrupted.wait(5)
    views = crew.next_views(0, 1)
    assert len(views[0].peers) == 2
    assert views[0].leader.id == crew.members[1].peer.id


def test_a_roster_that_cannot_be_written_is_a_warning(crew: Crew, caplog: pytest.LogCaptureFixture) -> None:
    crew.roster = crew.roster / "no" / "such" / "folder"
    crew.add(0, first=1)
    assert len(crew.next_views(0)[0].peers) == 1
    assert "cannot be written" in caplog.text


def _folder(path: Path) -> None:
    path.mkdir()


UNREADABLE = {
    "folder": _folder,
    "fifo": lambda path: os.mkfifo(path),
    "loop": lambda path: path.symlink_to(path),
    "no text": lambda path: path.write_bytes(b"\xff\xfe[" * 100),
    "open lists": lambda path: path.write_text("[" * 100_000),
    "no addresses": lambda path: path.write_text(json.dumps([["a" * 300, 80], ["127.0.0.1", -1], [7], "x", None])),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_whatever_stands_in_place_of_the_roster_ends_nobody(crew: Crew, name: str) -> None:
    crew.add(0, first=2)
    crew.add(1)
    crew.next_views(0, 1)
    crew.roster.unlink()
    UNREADABLE[name](crew.roster)
    assert not is_closed(crew.roster)
    crew.vanish(0)
    assert len(crew.next_views(1)[0].peers) == 1


def test_an_endpoint_that_is_none_does_not_end_the_leader_that_is_told_of_it(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.runtime.members.member.LOOK_AROUND", 0.02)
    member = crew.add(0, first=1)
    crew.next_views(0)
    login = login_of(SECRET, Role.MEMBER, "rank1-b")
    for address, port in (("a" * 300, 80), ("127.0.0.1", 1 << 40), ("127.0.0.1", -1), ("\0", 80), ("", 0)):
        assert ask_leadership(member.peer.endpoint, login, Peer("rank1-b", 1, address, port)) is not None
    asked = threading.Event()
    monkeypatch.setattr("paceline.runtime.members.peers.ask_leadership", lambda *_: asked.set())
    assert asked.wait(5), "it looks around still"
    assert member.leads


def test_the_numbers_of_views_are_not_used_up_in_the_name_of_the_leader(crew: Crew) -> None:
    member = crew.add(0, first=1)
    crew.next_views(0)
    login = login_of(SECRET, Role.MEMBER, member.peer.id)
    reply, channel = peers.ask_to_follow(member.peer.endpoint, login, Hello(member.peer, 1 << 48, ()))
    assert (reply, channel) == (None, None)
    crew.add(1)
    assert member.interrupted.wait(10), "it has come"
    assert [peer.rank for peer in crew.next_views(0, 1)[0].peers] == [0, 1]


def test_a_view_that_no_leader_forms_ends_only_its_connection() -> None:
    own, leader = Peer("rank1-b", 1, "127.0.0.1", 2), Peer("rank0-a", 0, "127.0.0.1", 1)
    view = View(1, leader, 2, (leader, own), 0, alike=True, fresh=True)
    plain = {"number": 1, "leader": vars(leader), "size": 2, "peers": [vars(leader), vars(own)], "source": 0,
             "alike": True, "fresh": True}  # fmt: skip
    wrong = ({"peers": []}, {"size": 0}, {"size": 1}, {"source": 2}, {"source": -1}, {"number": -1}, {"number": 2**60})
    for changed in wrong:
        with pytest.raises(ProtocolError):
            decode_message(json.dumps({"kind": "view-formed", "rank": 1, "view": {**plain, **changed}}).encode())
    for rank, formed in ((0, view), (-1, view), (2, view), (1, replace(view, size=3)), (16, replace(view, size=17))):
        member = Following(own, QUICK, 0.0)
        member.welcomed((leader.id, *leader.endpoint), 0.0)
        with pytest.raises(ProtocolError):
            member.hear(ViewFormed(formed, rank), 0.0)
    member.hear(ViewFormed(view, 1), 0.0)
    assert member.view == view


def test_one_that_comes_when_training_is_over_ends_without_an_error(crew: Crew) -> None:
    finished(crew)
    crew.vanish(0)
    crew.vanish(1)
    late = crew.add(0)
    with pytest.raises(TrainingOver) as ended:
        late.next_view(Report(0))
    assert not ended.value.code


def test_two_parts_that_were_cut_apart_become_one_again(crew: Crew) -> None:
    crew.add(0, first=3)
    crew.add(1)
    crew.add(2)
    crew.next_views(0, 1, 2)
    loner = crew.members[2]
    assert loner._link is not None
    loner._lead()
    loner._link.close(Farewell())
    assert crew.members[0].interrupted.wait(5)
    assert len(crew.next_views(0, 1)[0].peers) == 2
    assert crew.members[0].interrupted.wait(10), "the smaller part gives way"
    assert crew.members[1].interrupted.wait(10)
    assert loner._core.view is not None
    assert len(loner._core.view.peers) == 3, "it leads, but it never went on without the others"
    views = crew.next_views(0, 1, 2)
    assert views[0] == views[1] == views[2]
    assert len(views[0].peers) == 3


@pytest.mark.parametrize("stays", [0, 2])
def test_of_a_group_that_was_cut_apart_the_smaller_part_waits(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, stays: int
) -> None:
    crew.add(0, first=3)
    crew.add(1)
    crew.add(2)
    crew.next_views(0, 1, 2)
    monkeypatch.setattr("paceline.runtime.members.peers.is_dead", lambda peer, login: False)
    for rank in {0, 1, 2} - {stays}:
        crew.vanish(rank)
    crew.members[stays].interrupted.wait(5)
    assert crew.waits(stays), "alone against two that may train without it"


@pytest.mark.parametrize(("stays", "goes_on"), [(0, True), (1, False)], ids=["first-half", "second-half"])
def test_of_two_halves_the_one_with_the_first_rank_goes_on(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, stays: int, goes_on: bool
) -> None:
    crew.add(0, first=2)
    crew.add(1)
    crew.next_views(0, 1)
    monkeypatch.setattr("paceline.runtime.members.peers.is_dead", lambda peer, login: False)
    crew.vanish(1 - stays)
    crew.members[stays].interrupted.wait(5)
    assert crew.waits(stays) != goes_on


def test_two_that_wait_for_each_other_do_not_wait_long(crew: Crew) -> None:
    patient = replace(QUICK, partition=120.0)  # longer than `next_views` waits
    crew.add(0, first=3, timeouts=patient)
    crew.add(1, timeouts=patient)
    crew.add(2, timeouts=patient)
    crew.next_views(0, 1, 2)
    crew.members[1]._core._slept = True
    crew.vanish(0)
    views = crew.next_views(1, 2)
    assert [peer.rank for peer in views[0].peers] == [1, 2]


@pytest.mark.parametrize("sleeper", [0, 1], ids=["leader", "follower"])
def test_one_that_slept_so_short_that_nobody_noticed_takes_part_again(crew: Crew, sleeper: int) -> None:
    crew.add(0, first=2)
    crew.add(1)
    view = crew.next_views(0, 1)[0]
    member = crew.members[sleeper]
    member._core._slept = True
    assert member.doubtful
    member.report_failure(view, "it may have been left behind")
    assert member.interrupted.wait(5)
    crew.next_views(0, 1)
    assert not member.doubtful, "else it would try the same step for ever"


def test_trouble_of_one_interrupts_all_and_a_view_of_all_follows(crew: Crew) -> None:
    crew.add(0, first=2)
    crew.add(1)
    view = crew.next_views(0, 1)[0]
    crew.members[1].report_failure(view, "a test")
    assert crew.members[0].interrupted.wait(5)
    again = crew.next_views(0, 1)[0]
    assert len(again.peers) == 2
    assert again.number == view.number + 1


def test_the_board_belongs_to_its_view(crew: Crew) -> None:
    crew.add(0, first=2)
    crew.add(1)
    view = crew.next_views(0, 1)[0]
    crew.members[0].put(view.number, "key", b"value")
    assert crew.members[1].read(view.number, "key") == b"value"
    assert crew.members[1].read(view.number - 1, "key") is None


def test_a_process_that_knows_nobody_is_found_by_a_leader_that_knows_of_it(crew: Crew) -> None:
    crew.add(0, first=2)
    crew.add(1)
    crew.next_views(0, 1)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        crew.meet = ("127.0.0.1", closed.getsockname()[1])
    crew.roster = crew.roster.with_name("another.json")
    lost = crew.add(2)
    crew.members[0]._core.known.add(lost.peer.endpoint)
    assert crew.members[0].interrupted.wait(10), "it has come"
    assert [peer.rank for peer in crew.next_views(0, 1, 2)[0].peers] == [0, 1, 2]


def test_who_asks_under_another_name_than_it_logged_in_by_is_not_answered(crew: Crew) -> None:
    member = crew.add(0, first=1)
    crew.next_views(0)
    login = login_of(SECRET, Role.MEMBER, "rank1-b")
    for name, answered in (("rank1-b", True), ("rank2-c", False)):
        asking = Peer(name, 1, "127.0.0.1", 40000 + answered)
        assert (ask_leadership(member.peer.endpoint, login, asking) is not None) is answered
        assert (asking.endpoint in member._core.known) is answered


def test_a_leader_forgets_who_refuses_and_does_not_give_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise ConnectionRefusedError

    here, gone = ("here", 1), ("gone", 2)
    core = SimpleNamespace(known={here, gone}, gives_way=lambda reply, size: reply == "larger")
    member: Any = SimpleNamespace(_core=core, _login=None, peer=None, _changed=threading.Condition())
    leader: Any = SimpleNamespace(size=2)
    for answer, expected in ((None, False), ("smaller", False)):
        monkeypatch.setattr(peers, "ask_leadership", lambda *given, found=answer: found)
        assert Member._gives_way(member, leader, gone) is expected
    assert core.known == {here, gone}
    monkeypatch.setattr(peers, "ask_leadership", lambda *given: SimpleNamespace(id="x"))
    core.gives_way = lambda reply, size: reply.id == "x" and size == 2
    assert Member._gives_way(member, leader, gone) is True
    monkeypatch.setattr(peers, "ask_leadership", refuse)
    assert Member._gives_way(member, leader, gone) is False
    assert core.known == {here}


def test_nobody_to_follow_is_an_error_not_a_hang(tmp_path: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    place = server.getsockname()
    unused = socket.create_server(("127.0.0.1", 0))
    nowhere = ("127.0.0.1", unused.getsockname()[1])
    unused.close()
    hurry = Timeouts(heartbeat_interval=0.05, heartbeat_timeout=0.3, join=0.5)
    member = Member(server, SECRET, peer=Peer("alone", 1, place[0], place[1]), timeouts=hurry)
    member.start(nowhere, first=None)
    with pytest.raises(TrainingLost, match="no leader of this job"):
        member.next_view(Report(0))
    member.leave()


def test_a_first_leader_that_was_suspended_before_the_first_view_leads_again(crew: Crew) -> None:
    first = crew.add(0, first=2)
    assert first._leader is not None
    first._leader.resign()
    crew.add(1)
    assert len(crew.next_views(0, 1)[0].peers) == 2


def test_a_member_that_has_left_is_told_so_when_it_asks_for_a_view(crew: Crew) -> None:
    member = crew.add(0, first=1)
    crew.next_views(0)
    crew.vanish(0)
    with pytest.raises(TrainingLost, match="has left"):
        member.next_view(Report(0))
