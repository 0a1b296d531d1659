"""Processes of a job in a simulated network with a virtual clock, around the decisions that real processes run.

`Following`, `Leading` and `may_go_on` are the runtime's own. Around them this module has what `members/member.py` and
`members/leader.py` have: connections, searches, heartbeats, probes, and a training loop that commits a step when the
contributions of all ranks of its view have arrived. Connections keep their order and deliver late, or end; questions
and contributions are lost, delayed, doubled and overtake each other. Everything follows from the seed.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lib.lineage import History, Lineage
from paceline.runtime.members.view import Peer, Report, Timeouts, View
from paceline.runtime.protocol import messages
from paceline.runtime.protocol.following import Ask, Following, Search
from paceline.runtime.protocol.leading import Action, Drop, Formed, Leading, Probe, Rule, Send
from paceline.runtime.protocol.quorum import may_go_on
from paceline.runtime.protocol.states import MemberState

__all__ = ["TIMES", "Process", "World"]

TIMES = Timeouts(heartbeat_interval=1.0, heartbeat_timeout=3.0, join=8.0, settle=0.1, partition=1e9)
"""Coarser heartbeats than a job's in proportion, so that a schedule has few events besides those that matter."""
TICK, STEP, RETRY, TIMEOUT, LOOK_AROUND, STALL = 0.7, 1.0, 0.2, 1.5, 3.0, 4.0


class World:
    """The network, the clock, and what an observer of everything knows."""

    def __init__(self, seed: int, size: int, *, rule: Rule = may_go_on) -> None:
        self.random, self.rule, self.now = random.Random(seed), rule, 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.cut: set[tuple[str, str]] = set()
        """Hosts from one of which nothing reaches the other."""
        self.loss = 0.0
        """Probability that a question or a contribution is lost, doubled or late."""
        self.processes: list[Process] = []
        self._at: dict[tuple[str, int], Process] = {}
        self.roster: list[tuple[str, int]] = []
        self.lineage = Lineage()
        for rank in range(size):
            self.start(rank, first=size if rank == 0 else None)

    def start(self, rank: int, *, first: int | None = None) -> Process:
        """A new process of a rank, at the port of the rank, or at its own while another process has that port."""
        number = sum(process.peer.rank == rank for process in self.processes)
        port = 0 if self.at((f"h{rank}", 0)) is None else number
        process = Process(self, Peer(f"r{rank}.{number}", rank, f"h{rank}", port), first)
        self.processes.append(process)
        self._at[process.peer.endpoint] = process
        return process

    def at(self, endpoint: tuple[str, int]) -> Process | None:
        """The process that listens there."""
        process = self._at.get(endpoint)
        return process if process is not None and process.alive else None

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._numbers), call))

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._queue and self._queue[0][0] <= until:
            self.now, _, call = heapq.heappop(self._queue)
            call()
        self.now = until

    def delay(self) -> float:
        """Of one message."""
        late = self.random.random() < self.loss
        return self.random.uniform(0.01, 3.0 if late else 0.15)

    def reaches(self, one: Peer, other: Peer) -> bool:
        """Whether the network carries messages."""
        return (one.address, other.address) not in self.cut

    def throw(self, one: Peer, other: Peer, call: Callable[[], None]) -> None:
        """One message outside of a connection: it may be lost, arrive twice, or overtake others."""
        copies = self.random.choice((0, 2)) if self.random.random() < self.loss else 1
        for _ in range(copies):
            self.after(self.delay(), lambda: call() if self.reaches(one, other) else None)


@dataclass
class Stream:
    """A connection: messages arrive in order, late while the link is cut, until one side ends it."""

    world: World
    ends: tuple[Process, Process]
    """The member that follows, and the leader."""
    open: bool = True
    waiting: tuple[deque[Any], deque[Any]] = field(default_factory=lambda: (deque(), deque()))

    def send(self, side: int, item: Any) -> None:
        """From one side; None is the end of the connection."""
        queue = self.waiting[side]
        queue.append(item)
        if len(queue) == 1:
            self.world.after(self.world.delay(), lambda: self._deliver(side))

    def _deliver(self, side: int) -> None:
        sender, receiver = self.ends[side], self.ends[1 - side]
        queue = self.waiting[side]
        if not self.world.reaches(sender.peer, receiver.peer):
            self.world.after(RETRY, lambda: self._deliver(side))
            return
        item = queue.popleft()
        receiver.soon(lambda: receiver.receive(self, 1 - side, item))
        if queue:
            self.world.after(self.world.delay() / 10, lambda: self._deliver(side))


class Process:
    """One rank of the job: the decisions of the runtime, and what its threads do."""

    def __init__(self, world: World, peer: Peer, first: int | None) -> None:
        self.world, self.peer = world, peer
        self.alive, self.paused = True, False
        self._backlog: list[Callable[[], None]] = []
        self.core = Following(peer, TIMES, world.now)
        self.leading: Leading | None = None
        self._streams: dict[str, Stream] = {}
        """Of the followers, if this process leads."""
        self._link: Stream | None = None
        """To the leader."""
        self._search: Search | None = None
        self.history: History = ()
        self._mark_view = 0
        self._taken = 0
        self._views: dict[tuple[int, str], dict[Any, dict[str, Any]]] = {}
        """Contributions that have arrived, by view and step."""
        self._phase = "ready"
        self._moved = world.now
        self.core.first = first
        if first is not None:
            self._lead()
        world.after(world.random.uniform(0.0, TICK), self._tick)
        world.after(world.random.uniform(0.0, LOOK_AROUND), self._look_around)
        self._say_ready()

    # What happens to a process.

    def soon(self, call: Callable[[], None]) -> None:
        """Now, or when the process runs again; never if it is dead."""
        if self.alive and self.paused:
            self._backlog.append(call)
        elif self.alive:
            call()

    def crash(self) -> None:
        """Its connections end without a word."""
        self.alive, self._backlog = False, []
        for stream in self._streams.values():
            stream.send(1, None)
        if self._link is not None:
            self._link.send(0, None)

    def pause(self, seconds: float) -> None:
        """It does nothing for a while, and then everything that came meanwhile."""
        self.paused = True
        self.world.after(seconds, self.resume)

    def resume(self) -> None:
        """Go on after a pause."""
        self.paused = False
        backlog, self._backlog = self._backlog, []
        for call in backlog:
            self.soon(call)

    # Threads of `Member`.

    @property
    def leads(self) -> bool:
        """Whether it leads now."""
        return self.leading is not None and not self.leading.machine.ended

    def _tick(self) -> None:
        if not self.alive:
            return
        self.world.after(TICK, self._tick)
        self.soon(self._beat) if not self.paused else None

    def _beat(self) -> None:
        now, core = self.world.now, self.core
        core.asleep(now)
        core.ticked = now
        if self._link is not None:
            self._link.send(0, messages.Heartbeat())
            if now - core.last_heard > TIMES.heartbeat_timeout:
                self._hang_up(silent=True)
        elif self._search is None:
            self._begin_search()
        if self.leads:
            assert self.leading is not None
            self._do(self.leading.tick(now))
        self._train()

    def _begin_search(self) -> None:
        known = [*self.world.roster, ("h0", 0)]
        self._search = self.core.search(known, self.world.now, leads=self.leads)
        self._next_question()

    def _next_question(self) -> None:
        search = self._search
        if search is None or self._link is not None:
            return
        step = search.next(leads=self.leads)
        while step is not None and not isinstance(step, Ask):
            self._lead()
            step = search.next(leads=self.leads)
        if step is None:
            self._search = None
            return
        self._ask(search, step.endpoint)

    def _ask(self, search: Search, endpoint: tuple[str, int]) -> None:
        """As `peers.ask_to_follow`: a refused call is answered at once, a lost one by a timeout."""
        answered: list[bool] = []
        hello = self.core.hello()
        host = Peer("", 0, *endpoint)

        def answer(reply: messages.Message | None, stream: Stream | None = None) -> None:
            if answered or self._search is not search:
                if stream is not None:  # too late: the leader has to know that this process is alive
                    stream.send(0, messages.Farewell())
                    stream.send(0, None)
                return
            answered.append(True)
            if stream is not None:
                self._follow(stream, endpoint)
                return
            search.answered(reply, self.world.now, leads=self.leads)
            self.world.after(RETRY if reply is not None else 0.0, lambda: self.soon(self._next_question))

        def arrive() -> None:
            target = self.world.at(endpoint)
            if target is None:
                self.world.throw(host, self.peer, lambda: self.soon(lambda: answer(None)))
            else:
                target.soon(lambda: target._answer(self, hello, answer))

        self.world.throw(self.peer, host, arrive)
        self.world.after(TIMEOUT, lambda: self.soon(lambda: answer(None)))

    def _answer(self, caller: Process, hello: messages.Hello, answer: Callable[..., None]) -> None:
        """As `Member._answer`."""
        if self.leads:
            assert self.leading is not None
            stream = Stream(self.world, (caller, self))
            self._streams[hello.peer.id] = stream
            self._do(self.leading.join(hello.peer, hello, self.world.now))
            self.world.throw(self.peer, caller.peer, lambda: caller.soon(lambda: answer(None, stream)))
            return
        reply = self.core.direction(follows=self._link is not None)
        self.world.throw(self.peer, caller.peer, lambda: caller.soon(lambda: answer(reply)))

    def _follow(self, stream: Stream, endpoint: tuple[str, int]) -> None:
        if endpoint != self.peer.endpoint and self.leads:
            assert self.leading is not None
            self._do(self.leading.resign())
        self._search, self._link = None, stream
        self.core.welcomed((stream.ends[1].peer.id, *endpoint), self.world.now)
        if self.core.ready is not None:
            stream.send(0, self.core.ready)

    def _hang_up(self, *, silent: bool) -> None:
        """The connection to the leader is over."""
        link, self._link = self._link, None
        assert link is not None
        link.send(0, messages.Farewell())
        link.send(0, None)
        lost = self.core.lost(silent=silent)
        if lost is not None and lost.id != self.peer.id:
            self._probe(lost, self._judged)
        self._begin_search()

    def _judged(self, id: str, *, dead: bool) -> None:  # noqa: A002
        ready = self.core.judged(id, dead=dead)
        if ready is not None and self._link is not None:
            self._link.send(0, ready)

    def receive(self, stream: Stream, side: int, item: Any) -> None:
        """One message of a connection, as the threads that listen take it."""
        if side == 1:
            self._receive_of_follower(stream, item)
        elif stream is self._link:
            if item is None or isinstance(item, messages.Dismissal):
                self.core.dismissed = self.core.dismissed or item is not None
                self._hang_up(silent=False)
            elif not isinstance(item, messages.Welcome):
                self.core.hear(item, self.world.now)
                self._train()

    def _receive_of_follower(self, stream: Stream, item: Any) -> None:
        id = stream.ends[0].peer.id  # noqa: A001
        if self._streams.get(id) is not stream or not self.leads:
            return
        assert self.leading is not None
        if item is None or isinstance(item, messages.Farewell):
            del self._streams[id]
            if id in self.leading.followers:
                self._do(self.leading.lose(id, self.world.now, farewell=item is not None))
        else:
            self._do(self.leading.hear(id, item, self.world.now))

    def _lead(self) -> None:
        first = self.core.first if self.core.view is None else None
        self._streams = {}
        self.leading = Leading(
            self.peer.id, TIMES, first=first, now=self.world.now, memory=self.core.memory, rule=self.world.rule
        )

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                stream = self._streams.get(action.to)
                if stream is not None:
                    stream.send(1, action.message)
            elif isinstance(action, Drop):
                stream = self._streams.pop(action.to, None)
                if stream is not None:
                    stream.send(1, None)
            elif isinstance(action, Probe):
                leading = self.leading
                assert leading is not None
                self._probe(action.peer, leading.judged)
            elif isinstance(action, Formed):
                self.world.roster = [peer.endpoint for peer in action.view.peers]

    def _probe(self, peer: Peer, judged: Callable[..., Any]) -> None:
        """As `peers.is_dead`: only a refused call, or another process at the port, says that the process is dead."""
        answered: list[bool] = []
        self.core.known.add(peer.endpoint)

        def answer(dead: bool) -> None:
            if not answered:
                answered.append(True)
                judged(peer.id, dead=dead)

        def arrive() -> None:
            target = self.world.at(peer.endpoint)
            if target is None or (target.peer.id != peer.id and not target.paused):
                self.world.throw(peer, self.peer, lambda: self.soon(lambda: answer(True)))

        self.world.throw(self.peer, peer, arrive)
        self.world.after(TIMEOUT, lambda: self.soon(lambda: answer(False)))

    def _look_around(self) -> None:
        if not self.alive:
            return
        self.world.after(LOOK_AROUND, self._look_around)
        if self.leads and not self.paused:
            # In one order: a seed repeats its schedule in every process, whatever its hashes are.
            for endpoint in sorted({*self.core.known, *self.world.roster} - {self.peer.endpoint}):
                host = Peer("", 0, *endpoint)
                self.world.throw(self.peer, host, lambda host=host: self._query(host))

    def _query(self, host: Peer) -> None:
        target = self.world.at(host.endpoint)
        if target is None:
            self.world.throw(host, self.peer, lambda: self.soon(lambda: self.core.known.discard(host.endpoint)))
        elif not target.paused:
            led = target.leading.size if target.leads and target.leading is not None else None
            target.core.known.add(self.peer.endpoint)
            reply = target.core.leadership(led, self.world.now, follows=target._link is not None)
            self.world.throw(host, self.peer, lambda: self.soon(lambda: self._compare(target.peer.id, reply)))

    def _compare(self, asked: str, reply: messages.LeadershipReply) -> None:
        leading = self.leading
        if leading is None or not self.leads or asked in leading.followers:
            return
        if self.core.gives_way(reply, leading.size):
            self._do(leading.resign())

    # The training loop.

    def _say_ready(self) -> None:
        self._phase = "ready"
        mark = f"{self._mark_view}:{len(self.history)}:{self.history[-1:]}"
        ready = self.core.report(Report(len(self.history), mark, self._mark_view), finished=False)
        if self._link is not None:
            self._link.send(0, ready)

    def _train(self) -> None:
        core, view = self.core, self.core.view
        if core.interrupted and self._phase != "ready":
            self._say_ready()
        elif self._phase == "ready" and view is not None and view.number > self._taken and core.ready is None:
            self._taken, self._phase, self._moved = view.number, "entering", self.world.now
            self._contribute("enter", self.history if view.source == core.rank else None)
        elif self._phase != "ready" and view is not None and self.world.now - self._moved > STALL:
            self._moved = self.world.now
            if self._link is not None:
                self._link.send(0, messages.ViewFailed(view.number, "stalled"))
        else:
            self._advance()

    def _contribute(self, what: Any, content: Any) -> None:
        view = self.core.view
        assert view is not None
        for peer in view.peers:
            target = self.world.at(peer.endpoint)
            if target is not None and target.peer.id == peer.id:
                self.world.throw(self.peer, peer, functools.partial(target.offer, view, what, self.peer.id, content))

    def offer(self, view: View, what: Any, sender: str, content: Any) -> None:
        """A contribution has arrived."""
        self.soon(lambda: self._take(view, what, sender, content))

    def _take(self, view: View, what: Any, sender: str, content: Any) -> None:
        self._views.setdefault((view.number, view.leader.id), {}).setdefault(what, {})[sender] = content
        self._train()

    def _advance(self) -> None:
        view = self.core.view
        if view is None or self._phase == "ready" or view.number != self._taken or self.core.interrupted:
            return
        arrived = self._views.get((view.number, view.leader.id), {})
        what = "enter" if self._phase == "entering" else len(self.history) + 1
        if len(arrived.get(what, ())) < view.size:
            return
        self._moved = self.world.now
        if what == "enter":
            self.core.establish(view.number)
            self.history = next(item for item in arrived["enter"].values() if item is not None)
            self._mark_view = self.history[-1][0] if self.history else 0
            self._phase = "training"
            self.world.lineage.entered(self.peer.id, view, self.history)
        elif not self.core.asleep(self.world.now):
            self.history = (*self.history, (view.number, view.leader.id))
            self._mark_view = view.number
            self.world.lineage.committed(self.peer.id, view, self.history)
        else:
            return
        self.world.after(STEP, lambda: self.soon(self._step))

    def _step(self) -> None:
        if self._phase == "training" and not self.core.interrupted:
            self._contribute(len(self.history) + 1, None)

    @property
    def in_view(self) -> bool:
        """Whether it trains now."""
        return self.core.machine.state is MemberState.IN_VIEW and self._phase == "training"
