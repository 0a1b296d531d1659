"""What a leader does at each of its thresholds: heartbeats, silence, sleep, the first view, a part that waits."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from paceline.runtime.members.view import HELD, Ballot, Peer, Report, Timeouts, View
from paceline.runtime.protocol import messages
from paceline.runtime.protocol.following import NOTICE_TIMEOUT, Following, Lead, Search, outranks
from paceline.runtime.protocol.leading import Action, Drop, Formed, Leading, Probe, Send
from paceline.runtime.protocol.quorum import Memory
from paceline.runtime.protocol.states import LeaderState

TIMES = Timeouts(heartbeat_interval=1.0, heartbeat_timeout=3.0, join=5.0, settle=0.5, partition=7.0, hang=1e9)


def peer(name: str, rank: int | None = None) -> Peer:
    return Peer(name, ord(name[0]) - ord("a") if rank is None else rank, f"host-{name}", 1)


def ready(view: int = 0, step: int = 0, mark: str = "m", since: int = 0, *, finished: bool = False) -> messages.Ready:
    return messages.Ready(view, 0, Report(step, mark, since), finished)


def sent(actions: list[Action], kind: type[messages.Message]) -> list[str]:
    return [action.to for action in actions if isinstance(action, Send) and isinstance(action.message, kind)]


def view_of(actions: list[Action]) -> View:
    (formed,) = [action.view for action in actions if isinstance(action, Formed)]
    return formed


def joined(*names: str, first: int | None = None, now: float = 0.0) -> Leading:
    leading = Leading(names[0], TIMES, first=first, now=now, memory=Memory())
    for name in names:
        leading.join(peer(name), messages.Hello(peer(name), 0, ()), now)
    return leading


def formed(*names: str) -> Leading:
    """A view at 0 s."""
    leading = joined(*names, first=len(names))
    for name in names:
        leading.hear(name, ready(), 0.0)
    assert view_of(leading.tick(0.0)).size == len(names)
    return leading


def test_heartbeats_leave_every_interval_and_no_sooner() -> None:
    leading = formed("a", "b")
    beats = [second / 10 for second in range(1, 31) if sent(leading.tick(second / 10), messages.LeaderHeartbeat)]
    assert beats == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(("heard", "failed"), [(1.0, []), (0.99, ["b"])])
def test_a_follower_fails_when_its_timeout_has_passed(heard: float, failed: list[str]) -> None:
    leading = formed("a", "b", "c")
    for name in "abc":
        leading.hear(name, messages.Heartbeat(1, 0.0), heard if name == "b" else 3.9)
    leading.tick(2.0)
    actions = leading.tick(4.0)
    assert sent(actions, messages.Dismissal) == failed == [action.to for action in actions if isinstance(action, Drop)]
    assert sent(actions, messages.Halt) == (["a", "c"] if failed else [])
    assert sent(actions, messages.LeaderHeartbeat) == [name for name in "abc" if name not in failed]


@pytest.mark.parametrize(("slept", "resigns"), [(3.0, False), (3.01, True)])
def test_a_leader_that_was_suspended_for_longer_than_the_timeout_resigns_and_judges_nobody(
    slept: float, resigns: bool
) -> None:
    leading = formed("a", "b")
    for name in "ab":
        leading.hear(name, messages.Heartbeat(1, 0.0), 0.1)
    actions = leading.tick(slept)
    assert leading.machine.ended is resigns
    assert sent(actions, messages.Dismissal) == (["a", "b"] if resigns else [])
    assert leading.followers.keys() == (set() if resigns else {"a", "b"})
    assert not any(isinstance(action, Probe) for action in actions)


def test_the_first_view_waits_for_all_until_the_join_timeout_and_later_ones_for_quiet() -> None:
    leading = joined("a", "b", first=3)
    for name in "ab":
        leading.hear(name, ready(), 2.5)
    assert [sent(leading.tick(at), messages.ViewFormed) for at in (2.5, 4.99, 5.0)] == [[], [], ["a", "b"]]
    actions = leading.join(peer("c"), messages.Hello(peer("c"), 0, ()), 5.1)
    assert sent(actions, messages.Welcome) == ["c"]
    assert sent(actions, messages.Halt) == ["a", "b", "c"], "welcome first"
    assert isinstance(actions[0], Send)
    assert isinstance(actions[0].message, messages.Welcome)
    for name, view in (("a", 1), ("b", 1), ("c", 0)):
        leading.hear(name, ready(view), 5.2)
    assert not sent(leading.tick(5.55), messages.ViewFormed), "less than `settle` after the change"
    assert sent(leading.tick(5.6), messages.ViewFormed) == ["a", "b", "c"]


def test_a_first_view_that_is_complete_does_not_wait() -> None:
    leading = joined("a", "b", first=2)
    leading.hear("a", ready(), 0.0)
    assert not sent(leading.tick(0.0), messages.ViewFormed), "b has not reported"
    leading.hear("b", ready(), 0.0)
    assert sent(leading.tick(0.0), messages.ViewFormed) == ["a", "b"]


def test_numbers_of_views_go_on_from_the_highest_that_any_follower_knows() -> None:
    leading = Leading("a", TIMES, first=None, now=0.0, memory=Memory(formed=3))
    assert leading.number == 3
    ballots = (Ballot(9, "x", 1, (peer("b"),), established=True),)
    (welcome,) = [action.message for action in leading.join(peer("a"), messages.Hello(peer("a"), 5, ()), 0.0)]  # type: ignore[union-attr]
    assert welcome == messages.Welcome(3)
    assert leading.number == 5
    leading.join(peer("b"), messages.Hello(peer("b"), 2, ballots), 0.0)
    assert leading.number == 9
    for name, view in (("a", 5), ("b", 2)):
        leading.hear(name, ready(view), 0.1)
    view = view_of(leading.tick(0.6))
    assert (view.number, leading._memory.formed, view.fresh) == (10, 10, False)


def test_ranks_are_in_the_order_of_the_launcher_and_the_source_is_the_first_of_the_most_advanced() -> None:
    leading = Leading("x", TIMES, first=4, now=0.0, memory=Memory())
    ranks = {"x": 2, "w": 0, "y": 1, "v": 1}
    for name, rank in ranks.items():
        leading.join(peer(name, rank), messages.Hello(peer(name, rank), 0, ()), 0.0)
    for name, step, since in (("x", 9, 1), ("w", 5, 2), ("y", 7, 2), ("v", 7, 2)):
        leading.hear(name, ready(0, step, f"{since}:{step}", since), 0.0)
    view = view_of(leading.tick(0.0))
    assert [item.id for item in view.peers] == ["w", "v", "y", "x"]
    assert (view.source, view.alike, view.leader.id, view.fresh) == (1, False, "x", True)


@pytest.mark.parametrize(("mark", "alike"), [("m", True), ("other", False)])
def test_nothing_is_sent_where_all_hold_the_same_state(mark: str, alike: bool) -> None:
    leading = joined("a", "b", first=2)
    leading.hear("a", ready(), 0.0)
    leading.hear("b", ready(mark=mark), 0.0)
    assert view_of(leading.tick(0.0)).alike is alike


def test_a_part_that_waits_says_so_now_and_then_and_looks_for_the_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    leading = formed("a", "b", "c")
    probed, said = [], []
    for name in "bc":
        leading.lose(name, 0.0, farewell=True)
    leading.hear("a", ready(1), 0.0)
    for tenth in range(1, 180):
        leading.hear("a", messages.Heartbeat(1, 0.0), tenth / 10)
        probed += [(tenth / 10, action.peer.id) for action in leading.tick(tenth / 10) if isinstance(action, Probe)]
        said += [tenth / 10] * (caplog.text.count("waiting, because other members may train") - len(said))
    assert leading.machine.state is LeaderState.PARTITIONED
    assert leading.size == (False, 1)
    assert said == [0.5, 7.5, 14.5], "at once, then every 7 s"
    assert "no message from b, c" in caplog.text
    assert [at for at, name in probed if name == "b"][:3] == [0.5, 1.1, 1.7], "after more than half a second"
    assert len([1 for _, name in probed if name == "c"]) == len([1 for _, name in probed if name == "b"])
    leading.join(peer("b"), messages.Hello(peer("b"), 1, leading.followers["a"].ballots), 18.0)
    leading.hear("b", ready(1), 18.0)
    assert sent(leading.tick(18.5), messages.ViewFormed) == ["a", "b"], "two of three"


def test_at_most_64_absent_peers_are_called_at_a_time() -> None:
    peers = tuple(Peer(f"p{rank}", rank, "h", rank) for rank in range(100))
    leading = Leading("p0", TIMES, first=None, now=0.0, memory=Memory())
    leading.join(peers[0], messages.Hello(peers[0], 1, (Ballot(1, "p0", 100, peers, established=True),)), 0.0)
    leading.hear("p0", ready(1), 0.0)
    calls = [[action.peer.rank for action in leading.tick(at) if isinstance(action, Probe)] for at in (0.6, 0.7)]
    assert calls == [list(range(1, 65)), list(range(65, 100))]


def test_what_stands_on_the_board_is_for_the_members_of_this_view() -> None:
    leading = formed("a", "b")
    assert sorted(sent(leading.hear("a", messages.BoardPut(1, "k", b"v"), 0.1), messages.BoardEntry)) == ["a", "b"]
    assert leading.hear("a", messages.BoardPut(0, "k", b"v"), 0.1) == [], "of a view before"
    leading.lose("b", 0.2, farewell=True)
    assert sent(leading.hear("a", messages.BoardPut(1, "k", b"v"), 0.3), messages.BoardEntry) == ["a"]


def test_training_is_done_when_all_who_are_left_have_finished_at_the_same_step() -> None:
    leading = formed("a", "b", "c")
    assert leading.hear("a", ready(1, 9, finished=True), 1.0) == []
    assert leading.hear("b", ready(1, 8, finished=True), 1.0) == []
    assert leading.hear("c", ready(1, 9, finished=True), 1.0) == [], "b is a step behind"
    assert sent(leading.lose("b", 1.1, farewell=True), messages.TrainingDone) == ["a", "c"]
    leading.hear("c", messages.Resume(), 1.2)
    assert leading.hear("a", ready(1, 9, finished=True), 1.3) == [], "c goes on"


@pytest.mark.parametrize("how", ["lost", "silent", "anew"])
def test_training_is_done_without_one_that_goes_before_it_has_reported(how: str) -> None:
    leading = formed("a", "b")
    leading.hear("a", ready(1, 9, finished=True), 2.5)
    if how == "lost":
        actions = leading.lose("b", 2.6, farewell=False)
    elif how == "silent":
        leading.tick(2.0)
        actions = leading.tick(4.0)
    else:  # it joins again before its connection is known to be lost, and goes at once
        leading.join(peer("b"), messages.Hello(peer("b"), 1, ()), 2.6)
        actions = leading.lose("b", 2.7, farewell=True)
    assert sent(actions, messages.TrainingDone) == ["a"]


def test_trouble_of_a_view_before_is_history() -> None:
    leading = formed("a", "b")
    assert leading.hear("b", messages.ViewFailed(0, "late"), 0.1) == []
    assert sent(leading.hear("b", messages.ViewFailed(1, "now"), 0.1), messages.Halt) == ["a", "b"]
    assert leading.hear("a", messages.ViewFailed(1, "too"), 0.2) == [], "it has ended already"


def test_a_view_that_its_members_know_to_be_established_needs_their_majority_only() -> None:
    leading = formed("a", "b", "c")
    for name in "abc":
        leading.hear(name, messages.ViewFailed(1, "trouble"), 0.1)
        leading.hear(name, replace(ready(1), established=1), 0.1)
        assert [ballot.established for ballot in leading.followers[name].ballots] == [True]
    leading.tick(0.7)
    assert [[ballot.number for ballot in leading.followers[name].ballots] for name in "abc"] == [[1, 2]] * 3
    leading.hear("a", messages.ViewFailed(2, "trouble"), 0.8)
    leading.hear("a", replace(ready(2), established=2), 0.8)
    assert [ballot.number for ballot in leading.followers["a"].ballots] == [2], "what came before has no say"
    leading.hear("b", replace(ready(2), established=1), 0.8)
    assert [(b.number, b.established) for b in leading.followers["b"].ballots] == [(1, True), (2, False)]


# Followers.


def view(number: int, size: int, leader: int = 0) -> View:
    peers = tuple(Peer(f"r{rank}", rank, f"h{rank}", 1) for rank in range(size))
    return View(number, peers[leader], size, peers, 0, True, False)


def member(rank: int, found: View, now: float = 0.0) -> Following:
    core = Following(found.peers[rank], TIMES, now)
    core.welcomed((found.leader.id, *found.leader.endpoint), now)
    core.hear(messages.ViewFormed(found if rank < HELD else replace(found, peers=found.peers[:HELD]), rank), now)
    return core


@pytest.mark.parametrize(("gap", "asleep"), [(3.0, False), (3.01, True)])
def test_who_did_not_tick_for_longer_than_the_timeout_was_asleep_until_it_is_in_a_view_again(
    gap: float, asleep: bool
) -> None:
    core = member(1, view(4, 3))
    assert core.asleep(gap) is asleep
    core.ticked = gap
    assert core.asleep(gap) is asleep, "it stays known"
    told = core.leadership((True, 3), gap, follows=False)
    assert told == messages.LeadershipReply("r1", "h1", 1, asleep, 0 if asleep else 3)
    core.hear(messages.Halt(4, "x"), gap)
    core.hear(messages.ViewFormed(view(5, 3), 1), gap)
    assert not core.asleep(gap)


def test_the_first_ranks_say_who_has_a_vote_and_the_others_that_they_have_one() -> None:
    found = view(4, HELD + 4)
    assert [len(ballot.peers) for ballot in member(HELD - 1, found).hello().ballots] == [HELD + 4]
    assert [len(ballot.peers) for ballot in member(HELD, found).hello().ballots] == [HELD]
    assert member(HELD, found).hello().view == 4


def test_succession_begins_behind_the_lost_leader_and_with_it_for_one_that_slept() -> None:
    found = view(4, 3, leader=1)
    assert [item.id for item in found.succession("r0", absent=False)] == ["r0", "r2", "r1"]
    assert [item.id for item in found.succession("r0", absent=True)] == ["r1", "r2", "r0"]
    assert len(view(4, HELD + 4, leader=0).succession("r3", absent=False)) == HELD


def test_a_report_names_the_last_established_view() -> None:
    core = member(1, view(4, 3))
    assert core.report(Report(7), finished=False) == messages.Ready(4, 0, Report(7), False, ())
    core.establish(4)
    core.establish(99)
    assert core.report(Report(7), finished=True) == messages.Ready(4, 4, Report(7), True, ())
    assert [(item.number, item.established) for item in core.ballots] == [(4, True)]


@pytest.mark.parametrize(
    ("reply", "size", "gives_way"),
    [
        (("z", True, 2), (False, 2), True),
        (("a", True, 2), (False, 2), False),
        (("a", True, 3), (False, 2), True),
        (("z", True, 1), (False, 2), False),
        (("a", False, 1), (False, 5), True),
        (("z", True, 9), (True, 1), False),
        (("z", False, 0), (False, 1), False),
        (("m", False, 9), (False, 1), False),
    ],
    ids=["higher id", "lower id", "more", "fewer", "trains", "ours train", "none", "itself"],
)
def test_a_leader_gives_way_to_who_trains_then_to_more_then_to_the_higher_id(
    reply: tuple[str, bool, int], size: tuple[bool, int], gives_way: bool
) -> None:
    said = messages.LeadershipReply(reply[0], "h", 1, *reply[1:])
    assert outranks(said, size, "m") is gives_way


def test_a_member_waits_for_one_that_has_not_noticed_for_twice_the_timeout_and_a_little() -> None:
    core = member(2, view(4, 3))
    core.lost(silent=False)
    search = core.search([], 1.0, leads=False)
    patience = 2 * TIMES.heartbeat_timeout + NOTICE_TIMEOUT
    search.answered(messages.WaitForSuccessor(None), 1.0 + patience, leads=False)
    assert search.next(leads=False).endpoint == ("h1", 1)  # type: ignore[union-attr]
    search.answered(messages.WaitForSuccessor(None), 1.01 + patience, leads=False)
    assert isinstance(search.next(leads=False), Lead), "it is this member's turn"
    assert core.successor == "r1"


def test_a_member_that_somebody_waits_for_leads_at_once() -> None:
    own = peer("b")
    search = Search([("h", 1), own.endpoint], own, lost=None, may_lead=True, until=(0.0, 9.0))
    search.answered(messages.WaitForSuccessor("b"), 0.1, leads=False)
    assert isinstance(search.next(leads=False), Lead)
    never = Search([("h", 1), own.endpoint], own, lost=None, may_lead=False, until=(0.0, 9.0))
    never.answered(messages.WaitForSuccessor("b"), 0.1, leads=False)
    assert never.next(leads=False).endpoint == ("h", 1)  # type: ignore[union-attr]
    never.answered(None, 0.2, leads=False)
    assert never.next(leads=False) is None, "it was in no view and does not lead"
