"""Members under random faults, in the simulator: one lineage, nothing lost, progress; and the rule that makes it so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from paceline.runtime.members.view import Ballot, Peer, Report, Timeouts, View
from paceline.runtime.protocol import messages
from paceline.runtime.protocol.following import Ask, Following, Search
from paceline.runtime.protocol.leading import Action, Leading, Probe, Send
from paceline.runtime.protocol.quorum import Memory, may_go_on

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))
from lib.lineage import Violation
from lib.membership import TIMES as SIMULATED
from lib.membership import World
from lib.membership_faults import anybody_goes_on, run_schedule

TIMES = Timeouts(heartbeat_interval=1.0, heartbeat_timeout=3.0, join=5.0, settle=0.1, hang=10.0, step=30.0)
LEADER = ("a", "host-a", 1)


def peer(name: str) -> Peer:
    return Peer(name, ord(name) - ord("a"), f"host-{name}", 1)


def ballot(number: int, names: str, *, established: bool = True, fresh: bool = False) -> Ballot:
    peers = tuple(peer(name) for name in names)
    return Ballot(number, names[0], len(names), peers, established, fresh)


def cast(present: str, *ballots: Ballot) -> dict[str, tuple[Ballot, ...]]:
    return {name: tuple(b for b in ballots if any(p.id == name for p in b.peers)) for name in present}


@pytest.mark.parametrize("begin", [0, pytest.param(300, marks=pytest.mark.full)])
def test_no_schedule_forks_loses_or_stands_still(begin: int) -> None:
    for seed in range(begin, 300 if begin == 0 else 4000):
        try:
            run_schedule(seed)
        except Violation as error:
            pytest.fail(f"seed {seed}: {error}")


@pytest.mark.parametrize("seed", [7048, 14784, 17935, 26890, 37539, 37807, 44553, 50035, 73300, 79886, 81617, 95258])
def test_leaders_that_were_in_no_view_together_find_each_other(seed: int) -> None:
    run_schedule(seed)


def test_a_leader_that_went_on_alone_before_it_came_back_and_died_is_not_gone_on_without() -> None:
    run_schedule(1543)


@pytest.mark.parametrize("rank", [0, 1], ids=["leader", "follower"])
def test_one_that_is_suspended_for_long_while_another_joins_comes_back_to_all(rank: int) -> None:
    world = World(7, 3)
    world.run(6.0)
    before = len(world.lineage.settled)
    world.processes[rank].pause(4 * SIMULATED.heartbeat_timeout)
    world.after(2 * SIMULATED.heartbeat_timeout, lambda: world.start(3))
    world.run(60.0)
    assert all(process.in_view for process in world.processes)
    assert {process.core.view for process in world.processes} == {world.processes[0].core.view}
    assert len(world.lineage.settled) > before


def test_without_the_majority_rule_a_fork_is_found_soon() -> None:
    with pytest.raises(Violation, match=r"was committed in view|were committed"):
        _ = [run_schedule(seed, rule=anybody_goes_on) for seed in range(1000)]


@pytest.mark.parametrize(
    ("members", "present", "allowed"),
    [
        ("abc", "ab", True),
        ("abc", "bc", True),
        ("abc", "a", False),
        ("ab", "a", True),
        ("ab", "b", False),
        ("abcd", "ab", True),
        ("abcd", "cd", False),
        ("abcd", "bcd", True),
    ],
)
def test_a_majority_or_the_half_with_the_first_rank_goes_on(members: str, present: str, allowed: bool) -> None:
    assert may_go_on(cast(present, ballot(4, members)), Memory()) is allowed


def test_one_goes_on_when_the_others_died_in_the_view_but_not_when_they_are_silent_or_may_have_gone_on() -> None:
    alone = cast("b", ballot(4, "ab"))
    assert may_go_on(alone, Memory(vanished={"a": 4}, dead={"a"}))
    assert not may_go_on(alone, Memory(vanished={"a": 4})), "silent"
    assert not may_go_on(alone, Memory(dead={"a"})), "it may have formed a view before it died"
    last = cast("b", ballot(4, "abc"))
    assert may_go_on(last, Memory(vanished={"a": 4}, dead={"a", "c"})), "c alone could not have gone on"
    assert not may_go_on(last, Memory(dead={"a", "c"})), "a and c together could"
    later = Memory(vanished={"a": 5}, dead={"a"})
    assert not may_go_on(alone, later), "it may have gone on alone before the view in which it died"


def test_what_a_present_member_saw_of_a_death_counts_as_if_the_leader_had_seen_it() -> None:
    alone = cast("b", ballot(4, "ab"))
    silent = Memory(vanished={"a": 3})
    assert may_go_on(alone, silent.told([("a", 4)]))
    assert not may_go_on(alone, silent.told([("a", 5)])), "a may have gone on alone before it came back and died"
    assert silent.told([("a", 5), ("a", 4)]).deaths == (("a", 4),), "each of two witnesses is right"
    assert silent.deaths == (), "what is not judged yet is not told"
    assert silent.told([]).vanished == {}, "nor does it count with what another saw of the same"


def test_an_attempt_that_others_may_have_established_needs_a_majority_too() -> None:
    five, three = ballot(1, "abcde"), ballot(2, "abc", established=False)
    assert not may_go_on(cast("cde", five, three), Memory()), "a and b may train in the second view"
    assert may_go_on(cast("de" + "a" + "b", five, three), Memory())
    assert may_go_on(dict.fromkeys("cde", (five,)), Memory()), "if c never received it, it was never established"


def test_of_two_views_with_one_number_the_one_that_was_established_counts() -> None:
    held, other = ballot(4, "ab"), ballot(4, "cdef", established=False)
    ballots = {"a": (held,), "b": (held,), "c": (other,)}
    assert may_go_on(ballots, Memory()), "the other can be established nowhere: a and b were here"


def test_one_that_came_back_is_dead_no_more() -> None:
    memory = Memory()
    memory.lost("b", 2)
    memory.judged("b", dead=True)
    assert memory.deaths == (("b", 2),)
    memory.back("b")
    memory.lost("b", 3)
    assert (memory.deaths, memory.dead) == ((), set()), "nobody has called it since"


def test_a_first_rank_that_is_started_anew_does_not_begin_without_those_that_train() -> None:
    leading = Leading("a", TIMES, first=2, now=0.0, memory=Memory())
    before = ballot(6, "bcd")
    for name, hello in (("a", ()), ("b", (before,))):
        leading.join(peer(name), messages.Hello(peer(name), 6 if hello else 0, hello), 0.0)
        leading.hear(name, ready(6 if hello else 0), 0.0)
    assert not sent(leading.tick(0.5), messages.ViewFormed), "c and d may go on without b"


def test_a_late_joiner_does_not_begin_anew_when_all_that_held_the_state_are_dead() -> None:
    late = {"b": (ballot(3, "ab", established=False),)}
    dead = Memory(vanished={"a": 1}, dead={"a"})
    assert not may_go_on(late, dead)
    first = ballot(1, "ab", established=False, fresh=True)
    assert may_go_on({"b": (first,)}, dead), "nothing was committed yet"
    assert may_go_on({"b": (first, ballot(2, "ab", established=False))}, dead), "nor with b's part in the second"


def led(*names: str, first: int | None) -> tuple[Leading, list[Action]]:
    """A leader and what it did when these joined."""
    leading = Leading(names[0], TIMES, first=first, now=0.0, memory=Memory())
    done: list[Action] = []
    for name in names:
        done += leading.join(peer(name), messages.Hello(peer(name), 0, ()), 0.0)
    return leading, done


def sent(actions: list[Action], kind: type[messages.Message]) -> list[str]:
    return [action.to for action in actions if isinstance(action, Send) and isinstance(action.message, kind)]


def ready(view: int, step: int = 0, *, finished: bool = False) -> messages.Ready:
    return messages.Ready(view, 0, Report(step, f"m{step}", 0), finished)


def formed(*names: str) -> Leading:
    leading, _ = led(*names, first=len(names))
    for name in names:
        leading.hear(name, ready(0), 0.1)
    assert sent(leading.tick(0.2), messages.ViewFormed) == list(names)
    return leading


def view_formed(number: int, names: str) -> messages.ViewFormed:
    peers = tuple(peer(name) for name in names)
    return messages.ViewFormed(View(number, peers[0], len(names), peers, 0, True, False), names.index("b"))


@pytest.mark.parametrize(
    ("views", "since"),
    [((), None), ((4,), 4), ((4, 5), 4), ((4, 6), 6)],
    ids=["no view yet", "one view", "two views", "a view in between was formed without it"],
)
def test_a_lost_leader_died_in_the_views_since_the_last_gap(views: tuple[int, ...], since: int | None) -> None:
    core = Following(peer("b"), TIMES, 0.0)
    core.welcomed(LEADER, 0.0)
    core.hear(view_formed(3, "ab"), 0.0)
    core.lost(silent=True)
    core.welcomed(LEADER, 1.0)
    for number in views:
        core.hear(view_formed(number, "ab"), 1.0)
        core.hear(messages.Halt(number, "changed"), 1.0)
    assert core.lost(silent=False) == (peer("a") if since else None)
    assert core.memory.vanished == ({"a": since} if since else {})


@pytest.mark.parametrize(
    ("numbers", "kept"),
    [((3, 4), [4]), ((3, 5), [3, 5]), ((3, 5, 7), [3, 7]), ((3, 5, 6), [3, 6])],
    ids=["at once", "after a gap", "after two gaps", "after a gap, then at once"],
)
def test_an_attempt_with_the_same_members_replaces_the_one_before_unless_there_was_a_gap(
    numbers: tuple[int, ...], kept: list[int]
) -> None:
    core = Following(peer("b"), TIMES, 0.0)
    core.welcomed(LEADER, 0.0)
    core.hear(view_formed(2, "abc"), 0.0)
    core.establish(2)
    for number in numbers:
        core.hear(messages.Halt(number, "changed"), 0.0)
        core.hear(view_formed(number, "ab"), 0.0)
    assert [item.number for item in core.ballots] == [2, *kept]


def test_a_member_points_to_the_leader_that_it_follows_before_there_is_a_view() -> None:
    core = Following(peer("b"), TIMES, 0.0)
    assert core.direction(follows=False) == messages.WaitForSuccessor(None)
    core.welcomed(LEADER, 0.0)
    assert core.direction(follows=True) == messages.Redirect("host-a", 1)
    core.hear(view_formed(3, "ab"), 0.0)
    core.lost(silent=True)
    core.welcomed(("c", "host-c", 1), 0.0)
    assert core.direction(follows=True) == messages.Redirect("host-c", 1), "not to the leader of the last view"
    waits = core.leadership(None, 0.0, follows=True)
    assert waits == messages.LeadershipReply("c", "host-c", 1, True, 0), "how many follow c, only c can say"
    core.hear(view_formed(4, "ab"), 0.0)
    assert core.leadership(None, 0.0, follows=True).members == 2


def test_two_leaders_that_wait_hear_of_each_other_through_whoever_one_of_them_knows() -> None:
    core = Following(peer("d"), TIMES, 0.0)
    assert not core.gives_way(messages.LeadershipReply("c", "host-c", 1, True, 0), (False, 1))
    assert ("host-c", 1) in core.known, "so it asks c itself"
    assert core.gives_way(messages.LeadershipReply("c", "host-c", 1, True, 2), (False, 1))
    assert core.resigned_for == ("host-c", 1)


def test_a_leader_that_gave_way_before_it_formed_a_view_asks_all_others_before_it_leads_again() -> None:
    core = Following(peer("b"), TIMES, 0.0)
    core.welcomed(LEADER, 0.0)
    core.hear(view_formed(3, "abc"), 0.0)
    core.lost(silent=True)
    assert core.gives_way(messages.LeadershipReply("e", "host-e", 1, False, 2), (False, 1))
    search, asked = core.search([], 0.0, leads=False), []
    for at in range(3):
        asked.append(search.next(leads=False))
        search.answered(None, 0.1 * at, leads=False)
    assert asked == [Ask(("host-e", 1)), Ask(peer("a").endpoint), Ask(peer("c").endpoint)]


def test_a_process_that_was_in_no_view_asks_those_that_asked_it() -> None:
    core = Following(peer("c"), TIMES, 0.0)
    core.known.add(peer("b").endpoint)
    search = core.search([peer("a").endpoint], 0.0, leads=False)
    assert search.next(leads=False) == Ask(peer("a").endpoint)
    search.answered(None, 0.1, leads=False)
    assert search.next(leads=False) == Ask(peer("b").endpoint)


def test_three_of_which_only_one_saw_the_leader_of_the_last_attempt_die_go_on() -> None:
    first, attempt = ballot(1, "abc"), ballot(2, "ab", established=False)
    witness = Following(peer("b"), TIMES, 0.0)
    witness.welcomed(LEADER, 0.0)
    for number, names in ((1, "abc"), (2, "ab")):
        witness.hear(view_formed(number, names), 0.0)
        witness.hear(messages.Halt(number, "changed"), 0.0)
    witness.report(Report(5), finished=False)
    assert witness.lost(silent=False) == peer("a")
    witness.welcomed(("c", "host-c", 1), 0.0)
    leading = Leading("c", TIMES, first=None, now=0.0, memory=Memory(dead={"a"}))
    leading.join(peer("c"), messages.Hello(peer("c"), 1, (first,)), 0.0)
    leading.join(peer("b"), messages.Hello(peer("b"), 2, (first, attempt)), 0.0)
    leading.hear("c", ready(1), 0.1)
    assert witness.ready is not None
    leading.hear("b", witness.ready, 0.1)
    assert not sent(leading.tick(0.5), messages.ViewFormed), "a may have gone on before it died"
    told = witness.judged("a", dead=True)
    assert told is not None
    assert told.deaths == (("a", 1),)
    leading.hear("b", told, 0.6)
    assert sent(leading.tick(0.7), messages.ViewFormed) == ["b", "c"]


def test_a_death_that_was_judged_while_nobody_led_is_told_to_the_next_leader() -> None:
    core = Following(peer("b"), TIMES, 0.0)
    core.report(Report(5), finished=False)
    core.memory.lost("a", 1)
    core.memory.judged("a", dead=True)
    core.welcomed(("c", "host-c", 1), 0.0)
    assert core.ready is not None
    assert core.ready.deaths == (("a", 1),)
    assert core.judged("d", dead=False) is None, "nothing new to tell"


def test_a_view_is_fresh_if_nobody_in_it_was_in_a_view_before() -> None:
    leading, _ = led("a", "b", first=2)
    for view, fresh in ((0, True), (1, False)):
        for name in "ab":
            leading.hear(name, ready(view), view + 0.1)
        actions = [action for action in leading.tick(view + 0.5) if isinstance(action, Send)]
        assert {a.message.view.fresh for a in actions if isinstance(a.message, messages.ViewFormed)} == {fresh}
        leading.hear("a", messages.ViewFailed(view + 1, "trouble"), view + 0.6)


def test_a_lost_follower_died_in_the_views_since_it_came_or_was_left_out() -> None:
    leading = formed("a", "b", "c")
    leading.join(peer("d"), messages.Hello(peer("d"), 0, ()), 1.0)
    leading.hear("c", messages.Heartbeat(7, 31.0), 1.0)
    for name, view in (("a", 1), ("b", 1), ("d", 0)):
        leading.hear(name, ready(view), 1.0)
    assert sent(leading.tick(1.5) + leading.tick(1.7), messages.ViewFormed) == ["a", "b", "d"]
    for name in "bcd":
        leading.lose(name, 2.0, farewell=False)
    assert leading.judged("b", dead=True) == []
    assert leading._memory.vanished == {"b": 1, "d": 2}, "c was left out of view 2"


def test_a_ready_of_the_view_before_does_not_count_for_the_next() -> None:
    leading = formed("a", "b")
    leading.hear("b", ready(0), 0.3)  # sent twice, as the leader had changed
    leading.hear("a", messages.ViewFailed(1, "trouble"), 0.4)
    leading.hear("a", ready(1), 0.5)
    assert not sent(leading.tick(1.0), messages.ViewFormed), "b still works in view 1"
    leading.hear("b", ready(1), 1.1)
    assert sent(leading.tick(1.3), messages.ViewFormed) == ["a", "b"]


def test_the_most_advanced_is_who_committed_in_the_latest_view() -> None:
    leading, _ = led("a", "b", "c", first=3)
    for name, step, view in (("a", 8, 1), ("b", 8, 2), ("c", 8, 2)):
        leading.hear(name, messages.Ready(0, 0, Report(step, f"{view}:{step}", view), False), 0.1)
    actions = leading.tick(0.2)
    view = next(a.message.view for a in actions if isinstance(a, Send) and isinstance(a.message, messages.ViewFormed))
    assert view.source == 1
    assert not view.alike


def test_a_rank_that_hangs_in_its_own_code_is_named_and_left_behind_beyond_the_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    leading = formed("a", "b", "c")
    for second, busy in ((1.0, 5.0), (2.0, 12.0), (3.0, 12.5)):
        for name in "abc":
            leading.hear(name, messages.Heartbeat(7, busy if name == "c" else 0.0), second)
        leading.tick(second)
    assert caplog.text.count("c has been in its own code for 12 s in step 7") == 1
    for name in "abc":
        leading.hear(name, messages.Heartbeat(7, 31.0 if name == "c" else 0.0), 4.0)
    assert sent(leading.tick(4.0), messages.Halt) == ["a", "b", "c"]
    for name in "ab":
        leading.hear(name, messages.Ready(1, 1, Report(6, "m", 1), False), 4.1)
    assert sent(leading.tick(5.0), messages.ViewFormed) == ["a", "b"]
    assert sent(leading.hear("c", messages.Ready(1, 1, Report(6, "m", 1), False), 6.0), messages.Halt), "it is back"


def test_slow_steps_of_all_are_no_hang(caplog: pytest.LogCaptureFixture) -> None:
    leading = formed("a", "b")
    for name in "ab":
        leading.hear(name, messages.Heartbeat(7, 50.0), 1.0)
    leading.tick(1.0)
    assert "own code" not in caplog.text


def test_ranks_that_all_wait_for_each_other_are_named_each_time_twice_as_late(caplog: pytest.LogCaptureFixture) -> None:
    leading = formed("a", "b")
    said = {}
    for second in range(1, 60):
        for name in "ab":
            leading.hear(name, messages.Heartbeat(7 + (second > 40), 0.0), float(second))
        leading.tick(float(second))
        said[second] = caplog.text.count("all 2 ranks have waited for")
    assert [second for second in said if said[second] > said.get(second - 1, 0)] == [12, 24, 52], "41 is another step"


def test_a_view_that_was_formed_just_now_has_not_waited(caplog: pytest.LogCaptureFixture) -> None:
    leading, _ = led("a", "b", first=2)
    for second in range(1, 20):
        for name in "ab":
            leading.hear(name, messages.Heartbeat(), float(second))
        if second == 18:
            for name in "ab":
                leading.hear(name, messages.Ready(0, 0, Report(0), False), float(second))
        leading.tick(float(second))
    assert leading.number == 1
    assert "have waited for" not in caplog.text


def test_ranks_of_which_one_computes_do_not_all_wait(caplog: pytest.LogCaptureFixture) -> None:
    leading = formed("a", "b")
    for second in range(1, 40):
        leading.hear("a", messages.Heartbeat(7, 0.0), float(second))
        leading.hear("b", messages.Heartbeat(7, 0.5), float(second))
        leading.tick(float(second))
    assert "have waited for" not in caplog.text


def test_a_silent_follower_may_be_alive_and_one_whose_connection_broke_is_called_at_once() -> None:
    leading = formed("a", "b", "c")
    assert Probe(peer("b")) in leading.lose("b", 1.0, farewell=False)
    leading.hear("a", messages.Heartbeat(), 3.9)
    actions = leading.tick(2.9) + leading.tick(5.0)
    assert sent(actions, messages.Dismissal) == ["c"], "so that c knows that its leader lives"
    assert Probe(peer("c")) not in actions


def test_the_end_of_a_loop_before_does_not_end_this_one() -> None:
    core = Following(peer("a"), TIMES, 0.0)
    core.welcomed(LEADER, 0.0)
    core.report(Report(9), finished=True)
    core.hear(messages.TrainingDone(7), 0.1)
    assert core.machine.state.value == "following"
    core.hear(messages.TrainingDone(9), 0.2)
    assert core.machine.state.value == "done"


def test_what_is_said_again_of_the_loop_that_ended_does_not_end_the_one_that_follows() -> None:
    core = Following(peer("a"), TIMES, 0.0)
    core.welcomed(LEADER, 0.0)
    core.report(Report(9), finished=True)
    assert not core.resume()
    core.hear(messages.TrainingDone(9), 0.1)
    assert core.resume()
    core.hear(messages.TrainingDone(9), 0.2)
    assert core.machine.state.value == "following"
    assert core.ready is None, "whoever leads next would take it for a report of the loop that follows"
    assert not core.resume()


@pytest.mark.parametrize("ranks", [16, 160, 1600])
def test_a_view_costs_each_rank_the_same_bytes_however_many_there_are(ranks: int) -> None:
    from paceline.runtime.protocol.codec import encode_message

    peers = [Peer(f"rank{rank:05}-abcdef", rank, "10.0.100.100", 40000) for rank in range(ranks)]
    leading = Leading(peers[0].id, TIMES, first=ranks, now=0.0, memory=Memory())
    for each in peers:
        leading.join(each, messages.Hello(each, 0, ()), 0.0)
        leading.hear(each.id, ready(0), 0.0)
    frames = [
        len(encode_message(action.message)[0])
        for action in leading.tick(0.2)
        if isinstance(action, Send) and isinstance(action.message, messages.ViewFormed)
    ]
    assert len(frames) == ranks
    assert max(frames[16:], default=0) < 3000
    assert sum(frames) < 5000 * ranks


def test_a_leader_that_another_follows_for_longer_than_a_member_takes_to_notice_is_asked_itself() -> None:
    gone, other, own = ("h", 1), ("h", 2), peer("c")
    search = Search([other, gone], own, lost=gone, may_lead=True, until=(0.0, 2.0))
    search.answered(messages.Redirect(*gone), 1.9, leads=False)
    assert search.next(leads=False) == Ask(other), "it may not have noticed yet"
    search.answered(messages.Redirect(*gone), 2.1, leads=False)
    assert search.next(leads=False) == Ask(gone), "it follows still, so the leader lives"
    search.answered(None, 3.0, leads=False)
    assert search.next(leads=False) == Ask(other), "its leader may have ended just now"
    search.answered(None, 3.1, leads=False)
    assert search.next(leads=False) == Ask(gone), "the next in order"
