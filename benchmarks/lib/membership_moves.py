"""Everything that may happen next in a state of `membership_model.Job`, and whether a state is no dead end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from lib.lineage import Violation
from lib.membership_model import Job, Node
from paceline.runtime.protocol.quorum import Memory, may_go_on
from paceline.runtime.protocol.states import LeaderState

__all__ = ["Move", "heal", "moves"]

ROUNDS = 400
"""Moves within which a job that may go on has gone on."""
ORDER = ("deliver", "judge", "resign", "follow", "tick", "advance", "lead")
"""What comes first when nothing fails: what is under way, then one leader, then its decisions."""


class Move(NamedTuple):
    """Something that may happen."""

    kind: str
    what: str
    act: Callable[[Job], None]
    spends: str = ""
    """Which of the limits."""

    def after(self, job: Job) -> Job:
        """The state that it leads to."""
        after = job.copy()
        if self.spends:
            after.spend(self.spends)
        self.act(after)
        after.hear_oneself()
        return after


def moves(job: Job) -> Iterator[Move]:
    """Everything that may happen within the limits."""
    some = (*_arrivals(job), *_decisions(job), *_faults(job))
    return (move for move in some if not move.spends or getattr(job.limits, move.spends))


def _alive(job: Job) -> Iterator[tuple[int, Node]]:
    return ((rank, node) for rank, node in enumerate(job.nodes) if node.alive)


def _arrivals(job: Job) -> Iterator[Move]:
    for link, queues in job.links.items():
        for side in (0, 1):
            if queues[side] and job.nodes[link[1 - side]].alive:
                what = f"r{link[side]} to r{link[1 - side]}: {getattr(queues[side][0], 'kind', 'end')}"
                yield Move("deliver", what, lambda job, a=link, b=side: job.deliver(a, b))
    for to, hello in job.late:
        if job.nodes[to].alive and job.nodes[to].leads:
            what = f"r{to} gets a late greeting of {hello.peer.id}"
            yield Move("deliver", what, lambda job, a=to, b=hello: job.greet_late(a, b))
    for rank, node in _alive(job):
        for probe in node.probes:
            for dead in (False,) if job.node(probe[0].id).alive else (True, False):
                what = f"r{rank} takes {probe[0].id} for {'dead' if dead else 'alive'}"
                yield Move("judge", what, lambda job, a=rank, b=probe, c=dead: job.judge(a, b, c))


def _decisions(job: Job) -> Iterator[Move]:
    for rank, node in _alive(job):
        if job.is_complete(node):
            what = f"r{rank} {'takes over the state' if node.phase == 'entering' else 'commits a step'}"
            yield Move("advance", what, lambda job, a=rank: job.advance(a))
        led = node.leading
        waits = led is not None and node.leads and led.machine.state is not LeaderState.VIEW_ACTIVE
        if waits and led is not None and led.number < job.limits.views:
            yield Move("tick", f"r{rank} decides", lambda job, a=rank: job.tick(a))
        if node.link is None:
            yield from _searches(job, rank, node)


def _searches(job: Job, rank: int, node: Node) -> Iterator[Move]:
    for to, other in _alive(job):
        if other.leads:
            yield Move("follow", f"r{rank} follows r{to}", lambda job, b=to: job.join(rank, b))
            if to != rank:
                vain, twice = f"r{rank} greets r{to} in vain", f"r{rank} follows r{to} and greets twice"
                yield Move("fault", vain, lambda job, b=to: job.greet_in_vain(rank, b), "faults")
                yield Move("fault", twice, lambda job, b=to: job.greet_twice(rank, b), "faults")
    if not node.leads and node.core.view is not None:
        yield Move("lead", f"r{rank} leads", lambda job: job.take_over(rank), "takeovers")


def _faults(job: Job) -> Iterator[Move]:
    for rank, node in _alive(job):
        if sum(other.alive for other in job.nodes) > 1:
            yield Move("fault", f"r{rank} crashes", lambda job, a=rank: job.crash(a), "crashes")
        if node.link is not None and node.link[1] != rank:
            what = f"r{rank} gives up its leader"
            yield Move("fault", what, lambda job, a=rank: job.hang_up(a, silent=True), "faults")
            if node.phase != "ready":
                what = f"r{rank} reports a failure"
                yield Move("fault", what, lambda job, a=rank: job.report_failure(a), "faults")
        if node.leads and node.leading is not None:
            yield Move("fault", f"r{rank} was suspended", lambda job, a=rank: job.tick(a, slept=True), "faults")
            for id in node.leading.followers:  # noqa: A001
                if id != node.core.peer.id:
                    act = lambda job, a=rank, b=id: job.tick(a, silent=b)  # noqa: E731
                    yield Move("fault", f"r{rank} gives up {id}", act, "faults")


def heal(job: Job) -> bool:
    """Nothing fails any more: whether those that are left go on, as they must with the votes and what they saw."""
    before = len(job.lineage.settled)
    job = Move("heal", "", Job.go_on).after(job)
    for _ in range(ROUNDS):
        if job.in_view() and len(job.lineage.settled) > before:
            return True
        move = _next_move(job)
        if move is None:
            break
        job = move.after(job)
    memory = Memory(dead={node.core.peer.id for node in job.nodes if not node.alive})
    seen = memory.told(death for _, node in _alive(job) for death in node.core.memory.deaths)
    if may_go_on({node.core.peer.id: node.core.ballots for _, node in _alive(job)}, seen):
        raise Violation(f"nobody has gone on after step {before}, though all that are left are connected")
    return False


def _next_move(job: Job) -> Move | None:
    leaders = [rank for rank, node in _alive(job) if node.leads]
    best = max(leaders, key=lambda rank: (*job.nodes[rank].leading.size, rank), default=None)  # type: ignore[union-attr]
    found = [Move("resign", "", lambda job, a=rank: job.tick(a, slept=True)) for rank in leaders if rank != best]
    others = {"lead"} if leaders else set()
    found += [m for m in moves(job) if m.kind not in others and (m.kind != "follow" or m.what.endswith(f"r{best}"))]
    return min(found, key=lambda move: ORDER.index(move.kind), default=None)
