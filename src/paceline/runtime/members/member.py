"""One process's membership: it follows the leader, leads when it is its turn, and tells the training loop of changes.

If the leader falls silent, the members that are left turn to the first of them in the order of the last view; that one
leads. Whoever wakes up after being taken for dead finds the leader of the day and joins again.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from pathlib import Path
from typing import Any

from paceline.errors import TrainingLost, TrainingOver
from paceline.runtime.members import around
from paceline.runtime.members.background import in_background
from paceline.runtime.members.channel import Channel, Message, answer
from paceline.runtime.members.leader import Leader
from paceline.runtime.members.view import Patience, Peer, View

__all__ = ["Member"]

RETRY = 0.05
LAST_WORD = 0.1
LOOK_AROUND = 1.0
log = logging.getLogger("paceline.runtime")


class Member:
    """Takes part from construction until `leave`."""

    def __init__(self, server: socket.socket, secret: bytes, *, peer: Peer, patience: Patience) -> None:
        self.peer, self.secret, self._patience = peer, secret, patience
        self._server = server
        self.roster: Path | None = None
        """Where this member leaves word for late ones when it leads."""
        self.interrupted = threading.Event()
        """Set while the view that the training loop works in is over."""
        self.noticed: list[float] = []
        """Each moment at which that became known, by time.monotonic()."""
        self._changed = threading.Condition()
        self._view: View | None = None
        self._taken = 0
        self._board: dict[str, bytes] = {}
        self._over = self._left = self._closed = False
        self._lost: TrainingLost | None = None
        self._leader: Leader | None = None
        self._channel: Channel | None = None
        self._ready: Message | None = None
        self._heard = time.monotonic()
        self._ticked, self._slept = time.monotonic(), False
        self._known: dict[str, Peer] = {}
        """Everybody who was in a view with us and may still live."""
        self._turn_to: tuple[str, int] | None = None
        """A leader that we resigned for."""
        self._heir: str | None = None
        """Who we expect to lead next, while we follow nobody."""
        in_background("door", self._serve, failed=self._fail)

    def start(self, meet: tuple[str, int], *, first: int | None, roster: Path | None = None) -> None:
        """Join the job that meets there; with `first`, lead it from its beginning unless it runs already."""
        self.roster = roster
        known = [place for place in around.read_roster(roster) if place != (self.peer.address, self.peer.port)]
        if first is not None and not any(around.answers(place, self.secret) for place in known):
            self._lead(first=first)
            known, meet = [], (self.peer.address, self.peer.port)
        in_background("follow", lambda: self._follow([*known, meet]), failed=self._fail)
        in_background("beat", self._beat, failed=self._fail)
        in_background("look", self._look_around, failed=self._fail)

    def next_view(self, report: dict[str, Any]) -> View:
        """Report for the next view and wait for it."""
        self._say_ready(report, finished=False)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._fresh() or self._closed or self._lost, timeout=1.0)
                if self._lost:
                    raise self._lost
                if self._fresh():
                    return self._take()
                if self._closed:
                    log.warning("training was over before this process could take part in it")
                    raise TrainingOver

    def go_on(self) -> None:
        """There is more to train, even if all had finished before."""
        if self._over:
            self._over = False
            self._send({"kind": "again"})

    def finish(self, report: dict[str, Any]) -> View | None:
        """Wait until all have finished; a view if the group changes before, None if it is over."""
        self._say_ready(report, finished=True)
        with self._changed:
            self._changed.wait_for(lambda: self._fresh() or self._over or self._lost)
            return None if self._over or self._lost else self._take()

    def trouble(self, view: View, why: str) -> None:
        """Tell the leader that this view cannot go on."""
        self._send({"kind": "trouble", "view": view.number, "why": why[:200]})

    def put(self, view: int, key: str, value: bytes) -> None:
        """Write on a view's board."""
        self._send({"kind": "put", "view": view, "key": key, "value": value.hex()})

    def read(self, view: int, key: str) -> bytes | None:
        """What a view's board says under a key; waits for it until the view ends."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._board or self._ended(view))
            return None if self._ended(view) else self._board[key]

    def glance(self, view: int, key: str) -> bool:
        """Whether a view's board has a key already."""
        with self._changed:
            return not self._ended(view) and key in self._board

    def leave(self) -> None:
        """Hang up for good; who leads gives the last word time to arrive, then lets the others find another leader."""
        self._left = True
        self._server.close()
        leader = self._leader
        if leader is not None and leader.leading:
            time.sleep(LAST_WORD if self._over else 0.0)
            leader.resign()
            if self._over:
                around.close_roster(self.roster)
        channel = self._channel
        if channel is not None:
            channel.close()

    @property
    def doubtful(self) -> bool:
        """Whether the others may have gone on without this process: what it has just received must not count."""
        return self.interrupted.is_set() or self._was_asleep()

    @property
    def leads(self) -> bool:
        """Whether this process leads now."""
        leader = self._leader
        return leader is not None and leader.leading

    def _ended(self, view: int) -> bool:
        return self.interrupted.is_set() or self._view is None or self._view.number != view

    def _fresh(self) -> bool:
        return self._view is not None and self._view.number > self._taken

    def _take(self) -> View:
        assert self._view is not None
        self._taken = self._view.number
        self._ready = None
        return self._view

    def _say_ready(self, report: dict[str, Any], *, finished: bool) -> None:
        self._ready = {"kind": "ready", "report": report, "finished": finished}
        self._send(self._ready)

    def _send(self, message: Message) -> None:
        """To the leader; if it is gone, whoever leads next asks anew."""
        channel = self._channel
        if channel is not None:
            with contextlib.suppress(ConnectionError):
                channel.send(message)

    def _beat(self) -> None:
        while not self._left:
            self._was_asleep()
            self._ticked = time.monotonic()
            self._send({"kind": "beat"})
            channel, silent = self._channel, time.monotonic() - self._heard
            if channel is not None and silent > self._patience.silence:
                log.warning("the leader was silent for %.1f s", silent)
                channel.close()
            time.sleep(self._patience.beat)

    def _was_asleep(self) -> bool:
        """Whether it was this process that fell silent: then the others have a leader, most likely the same."""
        with self._changed:
            if time.monotonic() - self._ticked > self._patience.silence:
                self._slept = True
            return self._slept

    def _follow(self, places: list[tuple[str, int]]) -> None:
        """Find the leader, follow it until it is gone, and again."""
        deadline = time.monotonic() + self._patience.join
        while not self._left and not self._over:
            channel = self._find(places)
            if channel is None:
                if around.is_closed(self.roster):
                    self._give_up(None)
                    return
                if time.monotonic() > deadline:
                    why = f"nobody who leads this job answered for {self._patience.join:.0f} s"
                    self._give_up(TrainingLost(why, hint="does the job still run, and is the secret the same?"))
                    return
                time.sleep(RETRY)
                continue
            self._awake(channel)
            if not self.leads:
                # Having resigned once must not change the order of succession, which all members have to share.
                self._leader = None
            if self._ready is not None:
                self._send(self._ready)
            self._obey(channel)
            self._channel = None
            places = self._successors()
            deadline = time.monotonic() + self._patience.join

    def _awake(self, channel: Channel) -> None:
        """From now on we follow; having slept before must not change the order of the next succession."""
        with self._changed:
            self._heard = self._ticked = time.monotonic()
            self._channel, self._slept, self._heir = channel, False, None

    def _obey(self, channel: Channel) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                message = channel.receive()
                self._heard = time.monotonic()
                self._take_in(message)
        channel.close()
        with self._changed:
            self._interrupt()
            self._changed.notify_all()

    def _interrupt(self) -> None:
        if not self.interrupted.is_set():
            self.noticed.append(time.monotonic())
            self.interrupted.set()

    def _take_in(self, message: Message) -> None:
        kind = message.get("kind")
        if kind == "beat":
            return
        with self._changed:
            if kind == "view":
                self._view, self._board = View.of(message["view"]), {}
                # Whoever slept is in the group again, even if nobody had noticed and there was no leader to find anew.
                self._ticked, self._slept = time.monotonic(), False
                self._known |= {peer.id: peer for peer in self._view.peers if peer.id != self.peer.id}
                self.interrupted.clear()
            elif kind == "halt":
                self._interrupt()
            elif kind == "board" and self._view is not None and message["view"] == self._view.number:
                self._board[message["key"]] = bytes.fromhex(message["value"])
            elif kind == "over":
                self._over = True
            self._changed.notify_all()

    def _successors(self) -> list[tuple[str, int]]:
        """Where the next leader may be, in the order in which members must agree; the lost leader comes last."""
        if self._view is None:
            return [*around.read_roster(self.roster)]
        last = self._view.leader
        order = [peer for peer in self._view.peers if peer.id != last]
        order += [peer for peer in self._view.peers if peer.id == last]
        resigned = self._leader is not None and not self._leader.leading
        if resigned or self._was_asleep():
            order.sort(key=lambda peer: (peer.id == self.peer.id, peer.id != last))
        self._heir = order[0].id
        first = [self._turn_to] if self._turn_to is not None else []
        self._turn_to = None
        return [*first, *((peer.address, peer.port) for peer in order)]

    def _find(self, places: list[tuple[str, int]]) -> Channel | None:
        """The first place that leads, or where it points to; ourselves lead if all before us are silent."""
        for place in places:
            if place == (self.peer.address, self.peer.port) and not self.leads:
                self._lead(first=None)
            channel = self._ask(place)
            if channel is not None:
                return channel
        return None

    def _ask(self, place: tuple[str, int]) -> Channel | None:
        """Follow whoever leads according to this place; None if it is silent itself.

        A live member that has not noticed yet that its leader is gone is asked again until it knows: who turned to
        the next place now would lead a second group.
        """
        deadline = time.monotonic() + 2 * self._patience.silence + 2.0
        asked = place
        while time.monotonic() < deadline and not self._left:
            reply, channel = self._greet(asked)
            if channel is not None:
                return channel
            if reply is None and asked == place:
                return None
            if reply is not None and reply.get("for") == self.peer.id and not self.leads:
                # It lost its leader too and waits for us: waiting for each other would be a hang.
                self._lead(first=None)
                return self._greet((self.peer.address, self.peer.port))[1]
            pointed = (str(reply["address"]), int(reply["port"])) if reply and reply.get("kind") == "follow" else place
            asked = pointed if pointed != self._lost_place() else place
            time.sleep(RETRY)
        return None

    def _greet(self, place: tuple[str, int]) -> tuple[Message | None, Channel | None]:
        return around.greeted(place, self.secret, self.peer, seen=self._view.number if self._view else 0)

    def _lost_place(self) -> tuple[str, int] | None:
        """Where the leader was that this member lost, unless it lost it by sleeping."""
        if self._view is None or self._was_asleep():
            return None
        leader = self._view.peers[self._view.place(self._view.leader)]
        return (leader.address, leader.port)

    def _lead(self, *, first: int | None) -> None:
        number = self._view.number if self._view else 0
        log.info("%s leads after view %d", self.peer.id, number)
        self._leader = Leader(
            self.peer.id,
            self._patience,
            first=first,
            last=self._view,
            formed=lambda view: around.write_roster(self.roster, view),
            may_be_alive=lambda peer: around.may_be_alive(peer, self.secret),
        )

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # the door is closed when this process leaves
            while not self._left:
                connection, _ = self._server.accept()
                threading.Thread(target=self._receive, args=(connection,), daemon=True, name="paceline-greet").start()

    def _receive(self, connection: socket.socket) -> None:
        try:
            channel = answer(connection, self.secret)
        except OSError:
            return
        try:
            channel.settle(5.0)
            hello = channel.receive()
            channel.settle(None)
            if hello["kind"] == "who":
                channel.send(self._who())
            elif self._admitted(hello, channel):
                return
            else:
                channel.send(self._direction())
        except (OSError, KeyError, TypeError):
            log.debug("a caller hung up")
        channel.close()

    def _admitted(self, hello: Message, channel: Channel) -> bool:
        """Whether the caller follows us from now on."""
        peer, leader = Peer(**hello["peer"]), self._leader
        if leader is None or not leader.leading:
            return False
        leader.admit(peer, channel, seen=int(hello["view"]))
        return True

    def _direction(self) -> Message:
        """Where the leader is, as far as we know."""
        if self._channel is None or self._view is None:
            return {"kind": "wait", "for": self._heir}
        leader = self._view.peers[self._view.place(self._view.leader)]
        return {"kind": "follow", "address": leader.address, "port": leader.port}

    def _who(self) -> Message:
        leader = self._leader
        led = leader.size if leader is not None and leader.leading else 0
        return {"kind": "who", "leads": self.leads and not self._was_asleep(), "id": self.peer.id, "members": led}

    def _look_around(self) -> None:
        """While we lead, ask those we lost whether they lead too: of two groups that were cut apart, one gives way."""
        while not self._left:
            time.sleep(LOOK_AROUND)
            for peer in list(self._known.values()):
                leader = self._leader
                if leader is None or not leader.leading or self._over:
                    break
                if not leader.follows(peer.id) and self._outranked(leader, peer):
                    log.warning("%s leads another part of this job; this one gives way", peer.id)
                    self._turn_to = (peer.address, peer.port)
                    leader.resign()

    def _outranked(self, leader: Leader, peer: Peer) -> bool:
        """Whether a lost peer leads a larger group, or one as large and has the higher name."""
        try:
            theirs = around.asked_who(peer, self.secret)
        except ConnectionRefusedError:
            self._known.pop(peer.id, None)
            return False
        return theirs is not None and theirs > (leader.size, self.peer.id)

    def _fail(self) -> None:
        """Half alive, this member would hold up the others."""
        self._give_up(TrainingLost("a thread of this process failed", hint="its log says how; please report it"))

    def _give_up(self, why: TrainingLost | None) -> None:
        """There is nobody to follow: training is lost, or over if there is no reason why."""
        with self._changed:
            self._lost, self._closed = why, why is None
            self.interrupted.set()
            self._changed.notify_all()
