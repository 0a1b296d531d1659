"""A process that serves one shard of the common parameters; the first shard also leases samples.

python -m paceline.runtime.syncer.shard SETTINGS.json [ADDRESS], with the secret in PACELINE_SECRET. Each group has one
connection for requests and one for heartbeats. After the heartbeat timeout a group is declared failed: its samples are
leased to other groups, and its next push is rejected, after which it takes part again. The states of a group are in
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
"""Interval in seconds of the check of grace windows and heartbeats, well below both."""
UNUSED = 120.0
"""Seconds after which rounds do not wait for a group that never connected, and a syncer without groups ends. This is
the join timeout of a group, after which its processes have given up."""
REPORTED = 1000
"""Number of newest updates whose staleness is reported."""
log = logging.getLogger("paceline.runtime")


class SyncerShard:
    """The server of one shard."""

    def __init__(
        self,
        state: ShardState,
        *,
        groups: int,
        heartbeat_timeout: float,
        journal: Journal | None,
        own: Path | None = None,
    ) -> None:
        """`own`: the folder of a syncer that the ranks started; it is removed, and the shard ends, when all groups
        left."""
        self._shard, self._journal, self._own = state, journal, own
        if journal is not None and journal.arrays:
            state.restore(journal.facts, journal.arrays)
        self._quiet = QuietLog()
        self._written = -1
        """The version of the parameters in the journal."""
        self._unwritten = False
        """Whether there are changes that are not in the journal."""
        self._sessions: dict[str, list[int]] = {}
        """Session ids of each group; the present one last."""
        self._layout: list[tuple[str, int]] = []
        self._left_at = time.monotonic()
        self._leases: Leases | None = None
        self._expected, self._heartbeat_timeout = groups, heartbeat_timeout
        # One lock for rounds, leases and groups, because each decision needs all three: a group is declared failed only
        # if its progress has not arrived. Pushes wait on it for their round. It is reentrant because decisions nest.
        self._changed = threading.Condition(threading.RLock())
        self._born, self._restarted = time.monotonic(), state.theta is not None
        self._groups: dict[str, GroupState] = {}
        """Every group that sent a message since this process started, and groups that were revoked before."""
        self._last_heard: dict[str, float] = {}
        """Time of the last heartbeat or request of each group that is active or holds samples."""
        self._statuses: dict[str, GroupStatus | None] = {}
        self._local_steps: int | None = None
        self._merge_at: tuple[str, int] | None = None
        if journal is not None and "books" in journal.facts:
            self._load(journal.facts["books"])

    def serve(self, server: socket.socket, secret: bytes) -> None:
        """Accept connections for ever."""
        in_background("rounds", self._tick, failed=lambda: os._exit(1))
        login = login_of(secret, messages.Role.SHARD, "shard")
        message_listener(server, login, self._serve_caller, caller=messages.Role.GROUP).run()

    def _load(self, content: dict[str, Any]) -> None:
        self._leases, self._local_steps = Leases.of(content), content["local_steps"]
        self._sessions, self._written = content["sessions"], self._shard.version
        self._layout = [(name, size) for name, size in content["layout"]]
        self._merge_at = tuple(content["merge_at"]) if content["merge_at"] else None
        self._groups = dict.fromkeys(content["revoked"], GroupState.REVOKED)
        # Holders of leases get a whole timeout, because they could not reach this shard while it was down.
        self._last_heard = dict.fromkeys(self._leases.holders, time.monotonic())

    def _serve_caller(self, channel: Channel) -> None:
        expected = accepted_by(messages.Role.SHARD, sender=messages.Role.GROUP)
        try:
            while True:
                message = channel.receive(*expected)  # after the idle timeout the group connects again
                assert isinstance(message, messages.GroupMessage)
                # Decoding precedes the lock and writing to disk follows it, so that groups are served in parallel. The
                # answer is sent while the disk writes; its last part is held back until the data is on disk.
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
        """Return when all decisions are on disk; no answer is complete before."""
        if self._journal is not None:
            with saved_or_exit("the journal"):
                self._journal.synchronise()

    def _carry_out(self, message: messages.GroupMessage, numbers: Array) -> messages.Message:
        """Execute a request; only a push waits, for its round."""
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
        """Change the state of a group; recount active groups if it becomes active or stops being active."""
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
        """A group starts; if it had started before, all of its processes failed, and its lease is released."""
        group = message.group
        sessions = self._sessions.get(group, [])
        if message.session in sessions:
            latest = sessions[-1] == message.session
            return self._parameters() if latest else messages.StartRefused("it has started again since")
        if why := self._unlike(message, theta):
            return messages.StartRefused(why)
        self._sessions[group] = [*sessions, message.session]
        self._shard.start(theta, message.staleness, message.outer)
        if self._leases is not None:
            done = self._shard.settled(group, self._leases.sequence_of(group))
            self._leases.release(group, handed_in=done)
            self._leases.forget(group)
        # After the release of the lease, which depends on the pushes that are forgotten here.
        self._shard.forget(group)
        if self._leases is None:
            self._leases = Leases(message.num_samples, message.epochs, begin=message.begin)
            self._layout = [(name, size) for name, size in message.layout]
        self._change(group, messages.StartGroup)
        self._last_heard[group] = time.monotonic()
        self._unwritten = True
        return self._parameters()

    def _unlike(self, message: messages.StartGroup, theta: Array) -> str:
        """The reason why a group cannot train with the earlier groups; empty if it can."""
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
        """Whether a request belongs to the present session of the group; a shard without a journal accepts any."""
        return group not in self._sessions or self._sessions[group][-1] == session

    def _push(self, message: messages.Push, progress: Array) -> messages.Message:
        """Add progress and wait for the round; rejected at once if other groups have the samples."""
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
        # No timeout: a failed group no longer counts, so the remaining groups complete every round. A waiting group
        # repeats its push after a while.
        self._changed.wait_for(lambda: self._shard.settled(group, sequence))
        packing: Packing = "none" if message.packing == "none" else "half"
        found = self._parameters(packing, waited=time.monotonic() - began)
        if not message.wanted:
            return found
        # Push and lease are answered together: a group that exchanges after every step waits for the disk once.
        wanted = messages.LeaseRequest(group, message.session, sequence + 1, message.wanted, message.status)
        return replace(found, lease=self._lease(wanted))

    def _retune(self, message: messages.Retune) -> None:
        """Set another quorum or number of local steps, or start a merge of all groups."""
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
            raise ProtocolError(f"{group} has started again since it asked for lease {message.sequence}")
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
        """A context that holds the lock, and writes all changes as one record at its end.

        A push that waits for its round releases the lock; the next decision writes its change before any answer.
        """
        with self._changed:
            try:
                yield
            finally:
                self._write_changes()

    def _write_changes(self) -> None:
        """Write one record with all changes; `_keep` waits until it is on disk."""
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
        """Recount groups; an expected group that never connected counts for a while, shorter after a restart."""
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
                # This process was suspended or waited for a slow disk, and could not receive heartbeats meanwhile.
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
        """Declare a group failed after its heartbeat timeout."""
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
        """End a syncer that the ranks started when all groups have left."""
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
    """Serve one shard with the settings of a file."""
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
