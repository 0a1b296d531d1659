"""A job of a few processes as a graph of states, around the decisions that real processes run, for exhaustive search.

`Following`, `Leading` and `may_go_on` are the runtime's own. There is no clock: whatever time decides in a job happens
at any moment here, or never. A member that follows nobody asks any leader, or leads; a connection is given up by either
side; a leader is suspended. Connections keep their order. A contribution to a view reaches each of its members at any
time or never, and twice is as once; a greeting may arrive late, twice, or without an answer. `Limits` bound it all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lib.lineage import History, Lineage
from paceline.runtime.members.view import Peer, Report, Timeouts
from paceline.runtime.protocol import messages
from paceline.runtime.protocol.following import Following
from paceline.runtime.protocol.leading import Action, Drop, Leading, Probe, Rule, Send
from paceline.runtime.protocol.quorum import Memory
from paceline.runtime.protocol.states import MemberState

__all__ = ["Job", "Limits", "Link", "Node"]

TIMES = Timeouts(heartbeat_interval=0.0, heartbeat_timeout=1.0, join=1.0, settle=0.0, partition=1e9)
LONG_AGO = -10.0
END = "end"
"""Of a connection."""
Link = tuple[int, int, int]
"""The member, the leader, and a number that tells two connections of theirs."""


@dataclass(frozen=True)
class Limits:
    """How much may happen on the way to a state."""

    crashes: int = 1
    faults: int = 1
    """Connections given up, leaders suspended, views reported as failed, greetings late or doubled."""
    takeovers: int = 1
    """Times that a member begins to lead."""
    views: int = 3
    steps: int = 1
    """Steps in each view."""


def _clone(thing: Any, **changed: Any) -> Any:
    """A shallow copy; `copy.copy` takes three times as long."""
    other = object.__new__(type(thing))
    other.__dict__.update(thing.__dict__)
    other.__dict__.update(changed)
    return other


class Node:
    """One process; only the state that acts is copied."""

    def __init__(self, peer: Peer) -> None:
        self.alive, self.core = True, Following(peer, TIMES, 0.0)
        self.leading: Leading | None = None
        self.link: Link | None = None
        """To the leader."""
        self.streams: dict[str, Link] = {}
        """Of the followers, if it leads."""
        self.history: History = ()
        self.mark, self.phase, self.taken = 0, "ready", 0
        self.probes: frozenset[tuple[Peer, bool]] = frozenset()
        """Who is called, and whether as a leader."""
        self._digest: int | None = None

    def copy(self) -> Node:
        """A node that may change."""
        old, memory = self.core, self.core.memory
        memory = Memory(dict(memory.vanished), set(memory.dead), memory.formed)
        core = _clone(old, memory=memory, machine=_clone(old.machine))
        leading = self.leading
        if leading is not None:
            followers = {id: _clone(follower) for id, follower in leading.followers.items()}  # noqa: A001
            leading = _clone(
                leading, followers=followers, machine=_clone(leading.machine), _memory=memory, _out=[], _probed={},
                _members=set(leading._members),
            )  # fmt: skip
        return _clone(self, core=core, leading=leading, streams=dict(self.streams), _digest=None)

    @property
    def leads(self) -> bool:
        """Whether it leads now."""
        return self.leading is not None and not self.leading.machine.ended

    def digest(self) -> int:
        """Of the state; taken once, as a state that others know changes no more."""
        if self._digest is None:
            self._digest = hash(self._key()) if self.alive else 0
        return self._digest

    def _key(self) -> object:
        """What tells this state of the process from others; nothing of it that has no effect any more."""
        core, memory = self.core, self.core.memory
        own = (
            core.machine.state, core.view, core.rank, core.ballots, core.ready, core.interrupted, core._since,
            core.dismissed, frozenset(memory.vanished.items()), frozenset(memory.dead), memory.formed,
        )  # fmt: skip
        return (own, self._leading_key(), self.link, self.history, self.mark, self.phase, self.taken, self.probes)

    def _leading_key(self) -> object:
        if self.leading is None or not self.leads:
            return None
        led = self.leading
        followers = tuple(
            (id, f.ballots, f.seen, f.since, f.report, f.deaths)
            for id, f in sorted(led.followers.items())  # noqa: A001
        )
        return (led.machine.state, led.number, followers, frozenset(led._members), tuple(sorted(self.streams.items())))


@dataclass
class Job:
    """All processes, what is under way between them, and what an observer knows."""

    nodes: tuple[Node, ...]
    rule: Rule
    limits: Limits
    links: dict[Link, tuple[tuple[Any, ...], tuple[Any, ...]]]
    """What is under way on each connection, to the leader and to the member."""
    late: frozenset[tuple[int, messages.Hello]]
    """Greetings that a leader may still get, though nobody waits for the answer."""
    offered: dict[tuple[int, str], dict[Any, Any]]
    """Contributions to each view: who has made them, and the common state."""
    lineage: Lineage

    @classmethod
    def begin(cls, size: int, rule: Rule, limits: Limits) -> Job:
        """All have come together, and the leader is about to form the first view."""
        nodes = tuple(Node(Peer(f"r{rank}", rank, f"h{rank}", 1)) for rank in range(size))
        job = cls(nodes, rule, limits, {}, frozenset(), {}, Lineage())
        nodes[0].core.first = size
        job._lead(0)
        for rank in range(size):
            job.join(rank, 0)
            job._say_ready(rank)
        # Up to the first view: what happens before it has no state to lose.
        while any(up for up, _ in job.links.values()):
            for link, (up, _) in list(job.links.items()):
                job.deliver(link, 0) if up else None
        return job

    def digest(self) -> int:
        """64 bits that tell this state from others."""
        current = min((node.core.seen for node in self.nodes if node.alive), default=0)
        offered = frozenset(
            (view, frozenset(whats.items())) for view, whats in self.offered.items() if view[0] >= current
        )
        nodes = tuple(node.digest() for node in self.nodes)
        return hash((nodes, frozenset(self.links.items()), self.late, offered, self.lineage.key(), self.limits))

    def copy(self) -> Job:
        """A job that may change; nodes are copied when they act."""
        offered = {view: dict(whats) for view, whats in self.offered.items()}
        return Job(self.nodes, self.rule, self.limits, dict(self.links), self.late, offered, self.lineage.copy())

    def hear_oneself(self) -> None:
        """What a process sends to itself arrives before anything else happens."""
        for link in [link for link in self.links if link[0] == link[1]]:
            for side in (0, 1):
                while link in self.links and self.links[link][side] and self.nodes[link[0]].alive:
                    self.deliver(link, side)
                    self.hear_oneself()

    def node(self, id: str) -> Node:  # noqa: A002
        """The process of an id."""
        return self.nodes[int(id[1:])]

    def _write(self, rank: int) -> Node:
        node = self.nodes[rank].copy()
        self.nodes = (*self.nodes[:rank], node, *self.nodes[rank + 1 :])
        return node

    def _send(self, link: Link, side: int, *items: Any) -> None:
        if link in self.links:
            queues = list(self.links[link])
            queues[side] = (*queues[side], *items)
            self.links[link] = (queues[0], queues[1])

    def _forget(self, link: Link) -> None:
        """A connection ends when neither side listens to it any more."""
        member, leader = self.nodes[link[0]], self.nodes[link[1]]
        heard = leader.alive and leader.leads and link in leader.streams.values()
        if not heard and not (member.alive and member.link == link):
            self.links.pop(link, None)

    def _do(self, rank: int, actions: list[Action]) -> None:
        node = self.nodes[rank]
        for action in actions:
            if isinstance(action, Send) and action.to in node.streams:
                if not isinstance(action.message, messages.Welcome | messages.LeaderHeartbeat):
                    self._send(node.streams[action.to], 1, action.message)
            elif isinstance(action, Drop) and action.to in node.streams:
                link = node.streams.pop(action.to)
                self._send(link, 1, END)
                self._forget(link)
            elif isinstance(action, Probe):
                node.probes |= {(action.peer, True)}

    def _lead(self, rank: int) -> None:
        node = self._write(rank)
        first, node.streams = (node.core.first if node.core.view is None else None), {}
        node.leading = Leading(
            node.core.peer.id, TIMES, first=first, now=0.0, memory=node.core.memory, rule=self.rule
        )  # fmt: skip

    def take_over(self, rank: int) -> None:
        """Begin to lead."""
        self._lead(rank)

    def _admit(self, to: int, hello: messages.Hello) -> Link:
        member = hello.peer.rank
        number = next(n for n in range(9) if (member, to, n) not in self.links)
        link = (member, to, number)
        leader = self._write(to)
        old, leader.streams[hello.peer.id] = leader.streams.get(hello.peer.id), link
        self.links[link] = ((), ())
        assert leader.leading is not None
        self._do(to, leader.leading.join(hello.peer, hello, 0.0))
        if old is not None:
            self._send(old, 1, END)
            self._forget(old)
        return link

    def join(self, rank: int, to: int) -> None:
        """Follow a leader."""
        link = self._admit(to, self.nodes[rank].core.hello())
        node = self._write(rank)
        if to != rank and node.leads:
            assert node.leading is not None
            self._do(rank, node.leading.resign())
        node.link = link
        node.core.welcomed((f"r{to}", f"h{to}", 1), 0.0)
        if node.core.ready is not None:
            self._send(link, 0, node.core.ready)

    def greet_in_vain(self, rank: int, to: int) -> None:
        """Greet a leader and not wait for its answer."""
        self.late |= {(to, self.nodes[rank].core.hello())}

    def greet_twice(self, rank: int, to: int) -> None:
        """Follow a leader that gets the greeting once more."""
        self.greet_in_vain(rank, to)
        self.join(rank, to)

    def greet_late(self, to: int, hello: messages.Hello) -> None:
        """A leader gets a greeting whose sender has gone on."""
        self.late -= {(to, hello)}
        self._send(self._admit(to, hello), 0, messages.Farewell(), END)

    def spend(self, what: str) -> None:
        """One of the limits."""
        self.limits = replace(self.limits, **{what: getattr(self.limits, what) - 1})

    def crash(self, rank: int) -> None:
        """End without a word."""
        node = self._write(rank)
        node.alive = False
        for link in list(self.links):
            if rank in link[:2]:
                self._send(link, link.index(rank), END)
                self._forget(link)

    def hang_up(self, rank: int, *, silent: bool) -> None:
        """The connection to the leader is over."""
        node = self._write(rank)
        link, node.link = node.link, None
        assert link is not None
        self._send(link, 0, messages.Farewell(), END)
        lost = node.core.lost(silent=silent)
        if lost is not None and lost.id != node.core.peer.id:
            node.probes |= {(lost, False)}
        self._forget(link)
        self._train(rank)

    def report_failure(self, rank: int) -> None:
        """Tell the leader that the view cannot go on."""
        node = self.nodes[rank]
        assert node.link is not None
        self._send(node.link, 0, messages.ViewFailed(node.core.seen, "trouble"))

    def tick(self, rank: int, *, slept: bool = False, silent: str = "") -> None:
        """A leader does what is due; perhaps it finds that it slept, or that a follower is silent for too long."""
        node = self._write(rank)
        assert node.leading is not None
        if slept:
            node.leading._last_tick = LONG_AGO
        if silent:
            node.leading.followers[silent].last_heard = LONG_AGO
        self._do(rank, node.leading.tick(0.0))

    def judge(self, rank: int, probe: tuple[Peer, bool], dead: bool) -> None:
        """A call has been answered, or not."""
        node = self._write(rank)
        node.probes -= {probe}
        if not probe[1]:
            ready = node.core.judged(probe[0].id, dead=dead)
            if ready is not None and node.link is not None:
                self._send(node.link, 0, ready)
        elif node.leading is not None:
            node.leading.judged(probe[0].id, dead=dead)

    def deliver(self, link: Link, side: int) -> None:
        """The next message of a connection arrives."""
        queues = list(self.links[link])
        item, queues[side] = queues[side][0], queues[side][1:]
        self.links[link] = (queues[0], queues[1])
        receiver = self.nodes[link[1 - side]]
        if side == 0 and receiver.leads and link in receiver.streams.values():
            self._hear_follower(link, item)
        elif side == 1 and receiver.link == link:
            self._hear_leader(link, item)

    def _hear_follower(self, link: Link, item: Any) -> None:
        node, id = self._write(link[1]), self.nodes[link[0]].core.peer.id  # noqa: A001
        assert node.leading is not None
        if item is END or isinstance(item, messages.Farewell):
            del node.streams[id]
            if id in node.leading.followers:
                self._do(link[1], node.leading.lose(id, 0.0, farewell=item is not END))
            self._forget(link)
        else:
            self._do(link[1], node.leading.hear(id, item, 0.0))

    def _hear_leader(self, link: Link, item: Any) -> None:
        node = self._write(link[0])
        if item is END or isinstance(item, messages.Dismissal):
            node.core.dismissed = node.core.dismissed or item is not END
            self.hang_up(link[0], silent=False)
        else:
            node.core.hear(item, 0.0)
            self._train(link[0])

    # The training loop.

    def _say_ready(self, rank: int) -> None:
        node = self.nodes[rank]
        node.phase = "ready"
        mark = f"{node.mark}:{len(node.history)}:{node.history[-1:]}"
        ready = node.core.report(Report(len(node.history), mark, node.mark), finished=False)
        if node.link is not None:
            self._send(node.link, 0, ready)

    def _train(self, rank: int) -> None:
        node = self.nodes[rank]
        core, view = node.core, node.core.view
        if core.interrupted and node.phase != "ready":
            self._say_ready(rank)
        elif node.phase == "ready" and view is not None and view.number > node.taken and core.ready is None:
            node.taken, node.phase = view.number, "entering"
            self._offer(node, "enter", node.history if view.source == core.rank else None)

    def _offer(self, node: Node, what: Any, state: Any) -> None:
        view = node.core.view
        assert view is not None
        whats = self.offered.setdefault((view.number, view.leader.id), {})
        who, known = whats.get(what, (frozenset(), None))
        whats[what] = (who | {node.core.rank}, state if state is not None else known)

    def _awaited(self, node: Node) -> Any:
        return "enter" if node.phase == "entering" else len(node.history) + 1

    def is_complete(self, node: Node) -> bool:
        """Whether everybody has contributed to what a process waits for."""
        view = node.core.view
        if view is None or node.phase == "ready" or node.core.interrupted:
            return False
        whats = self.offered.get((view.number, view.leader.id), {})
        return len(whats.get(self._awaited(node), ((),))[0]) == view.size

    def advance(self, rank: int) -> None:
        """Take over the common state, or commit a step."""
        node = self._write(rank)
        view = node.core.view
        assert view is not None
        name = (view.number, view.leader.id)
        if node.phase == "entering":
            node.core.establish(view.number)
            node.history = self.offered[name]["enter"][1]
            node.mark, node.phase = (node.history[-1][0] if node.history else 0), "training"
            self.lineage.entered(node.core.peer.id, view, node.history)
        else:
            node.history = (*node.history, name)
            node.mark = view.number
            self.lineage.committed(node.core.peer.id, view, node.history)
        if sum(step == name for step in node.history) < self.limits.steps:
            self._offer(node, len(node.history) + 1, None)

    def go_on(self) -> None:
        """From now on nothing fails, and nobody stops after so many steps."""
        self.limits = Limits(crashes=0, faults=0, takeovers=self.limits.takeovers + 99, views=10**6, steps=10**6)
        for node in self.nodes:
            if node.alive and node.phase == "training":
                self._offer(node, len(node.history) + 1, None)

    def in_view(self) -> bool:
        """Whether all that live train, in one view."""
        alive = [node for node in self.nodes if node.alive]
        views = {node.core.view for node in alive}
        return len(views) == 1 and all(
            node.core.machine.state is MemberState.IN_VIEW and node.phase == "training" for node in alive
        )
