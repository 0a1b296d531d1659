"""A process that serves one shard of the common parameters, and the first of them the leases of samples.

python -m paceline.runtime.syncer.shard SETTINGS.json [ADDRESS], with the secret in PACELINE_SECRET. Each group has one
connection for requests and one for heartbeats. A group without heartbeats for too long no longer counts, its samples
are leased to others, and what it hands in later is rejected: it has to come back first. The states of a group are
`GroupState`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline import variables
from paceline.channel.listener import QuietLog
from paceline.errors import StoreError
from paceline.runtime.members.channel import Channel, in_background, login_of, message_listener
from paceline.runtime.protocol import messages
from paceline.runtime.protocol.codec import ProtocolError, accepted_by
from paceline.runtime.protocol.states import GROUP_TABLE, Event, GroupState, next_state
from paceline.runtime.syncer.journal import DAMAGED, FileDisk, Journal
from paceline.runtime.syncer.leases import GroupStatus, Leases
from paceline.runtime.syncer.packing import Packing, pack_numbers
from paceline.runtime.syncer.requests import check_request, request_numbers
from paceline.runtime.syncer.rounds import Array, Arrival, RoundPolicy, ShardState, saved_or_exit

__all__ = ["SyncerShard", "main"]

TICK = 0.02
"""Seconds between two looks at grace windows and heartbeats: a small part of either."""
UNUSED = 120.0
"""Seconds after which a group that never came is not waited for, and a syncer to which none came ends: the join timeout
of a group, after which its processes have given up."""
REPORTED = 1000
"""Newest updates whose staleness is reported."""
log = logging.getLogger("paceline.runtime")


class SyncerShard:
    """Serves from construction until the process ends."""

    def __init__(
        self,
        state: ShardState,
        *,
        groups: int,
        heartbeat_timeout: float,
        journal: Journal | None,
        own: Path | None = None,
    ) -> None:
        """`own`: the folder of a syncer that the groups started themselves; both go when all groups have left."""
        self._shard, self._journal, self._own = state, journal, own
        if journal is not None and journal.arrays:
            state.restore(journal.facts, journal.arrays)
        self._quiet = QuietLog()
        self._written = -1
        """The version whose parameters are in the journal."""
        self._unwritten = False
        """Whether anything has changed that is not in the journal."""
        self._sessions: dict[str, list[int]] = {}
        """How each group has begun, the last time last."""
        self._layout: list[tuple[str, int]] = []
        self._left_at = time.monotonic()
        self._leases: Leases | None = None
        self._expected, self._heartbeat_timeout = groups, heartbeat_timeout
        # One lock for rounds, leases and groups, since each decision needs all three: a group is declared failed only
        # if its progress has not arrived. Pushes wait on it for their round. Reentrant, as decisions nest.
        self._changed = threading.Condition(threading.RLock())
        self._born, self._restarted = time.monotonic(), state.theta is not None
        self._groups: dict[str, GroupState] = {}
        """Every group that was heard of since the start of this process, and those that were revoked before."""
        self._last_heard: dict[str, float] = {}
        """The last heartbeat or request of each group that takes part or holds samples."""
        self._statuses: dict[str, GroupStatus | None] = {}
        self._local_steps: int | None = None
        self._merge_at: tuple[str, int] | None = None
        if journal is not None and "books" in journal.facts:
            self._load(journal.facts["books"])

    def serve(self, server: socket.socket, secret: bytes) -> None:
        """Accept callers for ever."""
        # Without the thread that judges timeouts, groups would wait for ever: better no shard, which is started again.
        in_background("rounds", self._tick, failed=lambda: os._exit(1))
        login = login_of(secret, messages.Role.SHARD, "shard")
        message_listener(server, login, self._serve_caller, caller=messages.Role.GROUP).run()

    def _load(self, content: dict[str, Any]) -> None:
        self._leases, self._local_steps = Leases.of(content), content["local_steps"]
        self._sessions, self._written = content["sessions"], self._shard.version
        self._layout = [(name, size) for name, size in content["layout"]]
        self._merge_at = tuple(content["merge_at"]) if content["merge_at"] else None
        self._groups = dict.fromkeys(content["revoked"], GroupState.REVOKED)
        # Holders have the whole timeout to be heard again: they could not reach this shard while it was down.
        self._last_heard = dict.fromkeys(self._leases.holders, time.monotonic())

    def _serve_caller(self, channel: Channel) -> None:
        expected = accepted_by(messages.Role.SHARD, sender=messages.Role.GROUP)
        try:
            while True:
                message = channel.receive(*expected)  # for as long as a channel may be idle; then the group calls again
                assert isinstance(message, messages.GroupMessage)
                # Unpacked before the lock is taken, and on disk after it is released: groups that arrive together do
                # so side by side, and the answer travels while the disk writes, all but its end.
                check_request(message, channel.peer)
                reply = self._carry_out(message, request_numbers(message))
                beats = isinstance(reply, messages.HeartbeatReply)
                channel.answer(message, reply, hold=None if beats else self._keep)
        except ProtocolError as error:
            self._quiet.warn("a group's connection is closed: %s", error)
        finally:
            channel.close()

    def _state_of(self, group: str) -> GroupState:
        return self._groups.get(group, GroupState.UNHEARD if self._restarted else GroupState.UNKNOWN)

    def _keep(self) -> None:
        """Return when all decisions are on disk: no group is answered before."""
        if self._journal is not None:
            with saved_or_exit("the journal"):
                self._journal.synchronise()

    def _carry_out(self, message: messages.GroupMessage, numbers: Array) -> messages.Message:
        """Change what the request changes; only a push waits, for its round."""
        with self._deciding():
            if message.group in self._last_heard:
                self._last_heard[message.group] = time.monotonic()
            if isinstance(message, messages.GroupHeartbeat):
                self._change(message.group, Event.BUSY_HEARTBEAT if message.busy else Event.IDLE_HEARTBEAT)
                return messages.HeartbeatReply()
            if isinstance(message, messages.StartGroup):
                return self._start(message, numbers)
            if isinstance(message, messages.Push):
                return self._push(message, numbers)
            self._change(message.group, type(message))
            if isinstance(message, messages.FetchParameters):
                return self._parameters()
            if isinstance(message, messages.LeaseRequest):
                return self._lease(message)
            if isinstance(message, messages.StandingQuery):
                counts = self._state_of(message.group) is not GroupState.REVOKED
                return messages.Standing(counts, self._shard.has(message.group, message.sequence))
            if isinstance(message, messages.FactsQuery):
                return self._facts()
            if isinstance(message, messages.Retune):
                self._retune(message)
            elif isinstance(message, messages.LeaveSyncer):
                self._last_heard.pop(message.group, None)
                self._shard.leave(message.group)
                self._unwritten = True
            return messages.Done()

    def _change(self, group: str, cause: Event | type[messages.Message]) -> None:
        """The next state of a group; rounds count anew if it takes part now or no longer does."""
        before = self._state_of(group)
        after = next_state(GROUP_TABLE, before, cause)
        if after is not before:
            self._groups[group] = after
            if before is GroupState.REVOKED:
                self._unwritten = True  # if a restart revoked it again, its next samples would be lost
            if after is GroupState.ACTIVE:
                self._last_heard[group] = time.monotonic()
            self._recount()

    def _start(self, message: messages.StartGroup, theta: Array) -> messages.Message:
        """A group begins; if it did before, all of its processes failed, and what it had is leased again."""
        group = message.group
        sessions = self._sessions.get(group, [])
        if message.session in sessions:
            latest = sessions[-1] == message.session
            return self._parameters() if latest else messages.StartRefused("it has begun anew since")
        if why := self._unlike(message, theta):
            return messages.StartRefused(why)
        self._sessions[group] = [*sessions, message.session]
        self._shard.start(theta, message.staleness, message.outer)
        if self._leases is not None:
            done = self._shard.settled(group, self._leases.sequence_of(group))
            self._leases.release(group, handed_in=done)
            self._leases.forget(group)
        # After the lease was judged by what the group had handed in, which is forgotten here.
        self._shard.forget(group)
        if self._leases is None:
            self._leases = Leases(message.num_samples, message.epochs, begin=message.begin)
            self._layout = [(name, size) for name, size in message.layout]
        self._change(group, messages.StartGroup)
        self._last_heard[group] = time.monotonic()
        self._unwritten = True
        return self._parameters()

    def _unlike(self, message: messages.StartGroup, theta: Array) -> str:
        """Why a group cannot train with those before it; nothing if it can."""
        if self._leases is None or self._shard.theta is None:
            return ""
        asked, held = (message.num_samples, message.epochs), (self._leases.num_samples, self._leases.epochs)
        if asked != held:
            return f"it trains on {asked[0]} samples for {asked[1]} epochs, the others on {held[0]} for {held[1]}"
        for given, known in itertools.zip_longest(message.layout, self._layout):
            if given != known:
                one, other = (f"{item[0]} of {item[1]} numbers" if item else "no more" for item in (given, known))
                return f"its model has the parameter {one} where the others have {other}"
        if len(theta) != len(self._shard.theta):
            return f"its part has {len(theta)} numbers, that of the others {len(self._shard.theta)}"
        return ""

    def _counts(self, group: str, session: int) -> bool:
        """Whether a request belongs to what the group began last; a shard without memory cannot know."""
        return group not in self._sessions or self._sessions[group][-1] == session

    def _push(self, message: messages.Push, progress: Array) -> messages.Message:
        """Answered when the round is complete, or at once if other groups have the samples."""
        group, sequence = message.group, message.sequence
        self._change(group, messages.Push)
        past = (
            self._leases is not None and self._leases.is_past(group, sequence) and not self._shard.has(group, sequence)
        )
        if self._state_of(group) is GroupState.REVOKED or not self._counts(group, message.session) or past:
            return messages.PushRejected()
        if self._shard.theta is None or len(progress) != len(self._shard.theta) or message.samples < 1:
            raise ProtocolError(f"{group} pushed {len(progress)} numbers, which is not what this shard holds")
        if message.base > self._shard.version:
            raise ProtocolError(f"{group} started from version {message.base}, the newest is {self._shard.version}")
        self._shard.arrive(Arrival(group, sequence, message.base, message.samples, progress), time.monotonic())
        began = time.monotonic()
        self._advance()
        # No timeout: a group that fails no longer counts, so that every round is completed by those who are left; the
        # group that waits asks again after a while.
        self._changed.wait_for(lambda: self._shard.settled(group, sequence))
        packing: Packing = "none" if message.packing == "none" else "half"
        found = self._parameters(packing, waited=time.monotonic() - began)
        if not message.wanted:
            return found
        # Both are on disk before the one answer: a group that exchanges after every step waits for the disk once.
        wanted = messages.LeaseRequest(group, message.session, sequence + 1, message.wanted, message.status)
        return replace(found, lease=self._lease(wanted))

    def _retune(self, message: messages.Retune) -> None:
        """Another quorum, another number of local steps, or the end of all groups but one."""
        self._shard.retune(message.quorum)
        self._local_steps, self._merge_at = message.local_steps, message.merge_at
        if message.merge_at is not None and self._leases is not None:
            self._leases.halted = True
        self._unwritten = True
        self._advance()

    def _parameters(self, packing: Packing = "none", *, waited: float = 0.0) -> messages.Parameters:
        if self._shard.theta is None:
            raise ProtocolError("a group asked for parameters before any group has started")
        return messages.Parameters(self._shard.version, packing, waited, pack_numbers(self._shard.theta, packing))

    def _lease(self, message: messages.LeaseRequest) -> messages.LeaseReply:
        group, leases = message.group, self._leases
        if leases is None or message.size < 1:
            raise ProtocolError(f"{group} asked for {message.size} samples, or before any group has started")
        if not self._counts(group, message.session):
            raise ProtocolError(f"{group} has begun anew since it asked for lease {message.sequence}")
        try:
            lease = leases.take(group, message.sequence, message.size)
        except ValueError as error:
            raise ProtocolError(str(error)) from error
        self._unwritten = True
        if lease is not None:
            self._last_heard[group] = time.monotonic()
        self._statuses[group] = message.status
        return messages.LeaseReply(
            lease, leases.outstanding, self._local_steps, self._merge_at, dict(self._statuses), leases.position
        )

    @contextlib.contextmanager
    def _deciding(self) -> Iterator[None]:
        """Alone with rounds, leases and groups; what has changed then is one record.

        A push that waits for its round leaves its change to the next decision, which writes it before any answer.
        """
        with self._changed:
            try:
                yield
            finally:
                self._write_changes()

    def _write_changes(self) -> None:
        """One record of what has changed; `_keep` has it on disk before any group is told of it."""
        if self._journal is None or self._leases is None or not self._unwritten:
            return
        books = {
            **self._leases.plain(),
            "local_steps": self._local_steps,
            "merge_at": self._merge_at,
            "revoked": sorted(group for group, state in self._groups.items() if state is GroupState.REVOKED),
            "sessions": self._sessions,
            "layout": self._layout,
        }
        moved = self._written != self._shard.version
        with saved_or_exit("the journal"):
            self._journal.write({"books": books, **self._shard.facts()}, self._shard.arrays() if moved else None)
        self._written, self._unwritten = self._shard.version, False

    @property
    def _num_active(self) -> int:
        return sum(state is GroupState.ACTIVE for state in self._groups.values())

    def _recount(self) -> None:
        """Who is expected and never came still counts for a while; after a restart a short one: it may have left."""
        missing = max(0, self._expected - len(self._groups))
        if time.monotonic() - self._born > (self._heartbeat_timeout if self._restarted else UNUSED):
            missing = 0
        self._shard.count(self._num_active + missing)
        self._advance()

    def _advance(self) -> None:
        if self._shard.advance(time.monotonic()):
            self._unwritten = True
            self._changed.notify_all()

    def _tick(self) -> None:
        before = time.monotonic()
        while True:
            time.sleep(TICK)
            with self._deciding():
                now = time.monotonic()
                # It was this process that was suspended, or wrote to a slow disk: groups could not be heard meanwhile.
                if now - before > self._heartbeat_timeout / 2:
                    self._last_heard = dict.fromkeys(self._last_heard, now)
                before = now
                if self._groups:
                    self._recount()
                self._advance()
                self._end_if_left()
                silent = [group for group, at in self._last_heard.items() if now - at > self._heartbeat_timeout]
                for group in silent:
                    self._declare_failed(group)

    def _declare_failed(self, group: str) -> None:
        """A group sent no heartbeat for too long."""
        log.warning("group %s sent no heartbeat for %.1f s and is declared failed", group, self._heartbeat_timeout)
        del self._last_heard[group]
        cause = Event.TIMEOUT
        if self._leases is not None:
            number = self._leases.sequence_of(group)
            done = self._shard.has(group, number)
            self._leases.release(group, handed_in=done)
            cause = Event.TIMEOUT_WITH_LEASE if number > 0 and not done else Event.TIMEOUT
        self._shard.leave(group)
        self._change(group, cause)
        self._unwritten = True

    def _end_if_left(self) -> None:
        """A syncer that the groups started themselves ends when all of them have left it."""
        if self._own is None or self._num_active or self._last_heard:
            self._left_at = time.monotonic()
        elif time.monotonic() - self._left_at > (self._heartbeat_timeout if self._groups else UNUSED):
            shutil.rmtree(self._own, ignore_errors=True)
            os._exit(0)

    def _facts(self) -> messages.Facts:
        recent = self._shard.staleness[-REPORTED:]
        mean = sum(recent) / len(recent) if recent else 0.0
        return messages.Facts(self._shard.version, self._shard.dropped, self._num_active, mean, max(recent, default=0))


def main() -> None:
    """Serve one shard as the settings file says."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = Path(settings["folder"]) if settings.get("folder") else None
    index = settings["index"]
    try:
        journal = Journal(FileDisk(folder / f"shard-{index}.journal")) if folder else None
    except StoreError as error:
        log.critical("%s", error)
        sys.exit(DAMAGED)
    shard = SyncerShard(
        ShardState(RoundPolicy.of(settings)),
        groups=settings["groups"],
        heartbeat_timeout=settings.get("heartbeat_timeout", 10.0),
        journal=journal,
        own=folder if settings.get("ends") else None,
    )
    address = sys.argv[2] if len(sys.argv) > 2 else settings["address"]
    listener = socket.create_server((address, settings["port"]), backlog=64)
    shard.serve(listener, os.fsencode(os.environ[variables.SECRET]))


if __name__ == "__main__":
    main()
