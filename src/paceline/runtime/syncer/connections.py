"""A group's connections to the shards of the syncer: one for requests and one for heartbeats to each.

A request is repeated until it is answered; sequence numbers make sure that a shard carries it out once.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TypeVar

import numpy as np

from paceline.errors import InputError, TrainingLost
from paceline.runtime.members.channel import Channel, Endpoint, Login, login_of, open_channel
from paceline.runtime.protocol import messages
from paceline.runtime.syncer.leases import GroupStatus, Lease
from paceline.runtime.syncer.packing import Packing, pack_numbers, unpack_numbers
from paceline.runtime.syncer.rounds import OuterOptimizer, StalenessRule

__all__ = ["GroupHeartbeats", "LeaseRevoked", "ShardConnections", "as_received"]

R = TypeVar("R", bound=messages.Message)
RETRY = 0.1
"""Seconds before a request is repeated: a shard that was killed is back within seconds."""
TAKEN_IN_POLL = 0.03
"""Seconds between two questions whether the first shard has taken progress in."""
POLL = 0.1
"""Seconds between two requests for samples while other groups still train on the last ones."""
CONNECT_TIMEOUT = 5.0
"""Seconds to connect to a shard, whose host may be busy with the training of its own group."""
ANSWER_TIMEOUT = 30.0
"""Seconds for an answer that waits for no other group: a shard writes its parameters to disk before it answers."""
ROUND_TIMEOUT = 600.0
"""Seconds after which a push that waits for its round is sent again; a shard that hangs is cut off long before."""
HEARTBEAT_INTERVAL = 0.1
"""Seconds between two heartbeats."""
HEARTBEAT_ANSWER = 2.0
"""Seconds within which a shard answers a heartbeat: it does so from a thread that waits for no other group."""
DOUBT_AFTER = 0.3
"""Seconds without an answer after which this process may have been suspended, so that it asks whether it still counts.
Below every heartbeat timeout of a shard: a group that was declared failed always asks."""
UNANSWERED = 20.0
"""Seconds after which a shard that does not answer heartbeats is cut off, so that requests are repeated."""
log = logging.getLogger("paceline.runtime")


class LeaseRevoked(Exception):
    """This group was declared failed: its samples were leased to others, so its progress must not count."""


class ShardConnections:
    """Connections to every shard, made anew when a shard comes back."""

    def __init__(self, shards: Sequence[Endpoint], secret: bytes, *, group: str, timeout: float = 60.0) -> None:
        """`timeout`: seconds for which a shard may not answer; one that is started again takes a few."""
        self._shards, self._group, self._timeout = list(shards), group, timeout
        self._login = login_of(secret, messages.Role.GROUP, group)
        self._channels: dict[int, Channel] = {}
        self.session = 0
        """The `start` request of the group; the next first rank of the group repeats it."""
        self.waited = 0.0
        """Seconds of the last exchange that were spent waiting for other groups."""
        self.last_reply: messages.LeaseReply | None = None
        """What the syncer said with the last lease."""
        self._granted: messages.LeaseReply | None = None
        """The lease that came with the answer to a push, until it is taken."""
        self._pool = ThreadPoolExecutor(max_workers=len(shards), thread_name_prefix="paceline-syncer")
        self._heartbeats = GroupHeartbeats(self._shards, self._login, group=group, cut_off=self._hang_up)

    def start(
        self,
        theta: np.ndarray,
        *,
        num_samples: int,
        epochs: int,
        begin: tuple[int, int] = (0, 0),
        rules: tuple[StalenessRule | None, OuterOptimizer | None] = (None, None),
        layout: tuple[tuple[str, int], ...] = (),
    ) -> tuple[np.ndarray, list[int]]:
        """Offer parameters and say what there is to train on; the common parameters and their versions come back."""
        parts = np.array_split(theta, len(self._shards))
        # One session for every repetition of these requests: a shard carries them out once.
        self.session = secrets.randbits(62)
        layout = layout or (("theta", len(theta)),)
        about = (self.session, layout, num_samples, epochs, begin, *rules)
        requests = [messages.StartGroup(self._group, *about, pack_numbers(part, "none")) for part in parts]
        return self._parameters(requests)

    def common(self) -> tuple[np.ndarray, list[int]]:
        """The common parameters and their versions, as of now."""
        return self._parameters([messages.FetchParameters(self._group)] * len(self._shards))

    def retune(self, *, local_steps: int, quorum: int, merge_at: Endpoint | None) -> None:
        """Tell all shards, and through them all groups, how to go on; with `merge_at` as one group that meets there."""
        self._tell_all(messages.Retune(self._group, local_steps, quorum, merge_at))

    def exchange(
        self,
        progress: np.ndarray,
        *,
        sequence: int,
        versions: Sequence[int],
        samples: int,
        packing: Packing = "none",
        then: tuple[int, GroupStatus | None] = (0, None),
    ) -> tuple[np.ndarray, list[int]]:
        """Hand in progress since some versions; the common parameters and their versions come back.

        `then`: size of the lease that is asked for next, and the status with it; a single shard answers both at once.
        Raises LeaseRevoked if this group was declared failed meanwhile.
        """
        # Asked before anything is handed in: only the first shard knows of leases, and the others would count progress
        # on samples that another group has by now.
        if self._heartbeats.doubtful:
            self._heartbeats.doubtful = False
            if not self._ask(0, messages.StandingQuery(self._group, 0), messages.Standing).counts:
                raise LeaseRevoked
        parts = np.array_split(progress, len(self._shards))
        requests = [
            messages.Push(self._group, self.session, sequence, version, samples, packing, pack_numbers(part, packing))
            for version, part in zip(versions, parts, strict=True)
        ]
        if len(requests) == 1:  # of several, the others may not have this progress yet: the next samples come after it
            requests[0] = replace(requests[0], wanted=then[0], status=then[1])
        return self._parameters(requests)

    def come_back(self) -> tuple[np.ndarray, list[int]]:
        """Take part again after having been declared failed; the common parameters and their versions, as of now."""
        self._tell_all(messages.Busy(self._group))
        return self.common()

    def lease(self, sequence: int, size: int, status: GroupStatus | None = None) -> Lease | None:
        """The next samples, or None when all are done; while others still work on the last ones, wait aside."""
        aside = False
        request = messages.LeaseRequest(self._group, self.session, sequence, size, status)
        while True:
            granted, self._granted = self._granted, None
            reply = self.last_reply = granted or self._ask(0, request, messages.LeaseReply)
            if reply.lease is not None or not reply.outstanding:
                if aside and reply.lease is not None:
                    self._heartbeats.busy = True
                    self._tell_all(messages.Busy(self._group))
                return reply.lease
            if not aside:
                # Heartbeats first: one that still said `busy` after `idle` would make rounds wait for this group.
                aside, self._heartbeats.busy = True, False
                self._tell_all(messages.Idle(self._group))
            time.sleep(POLL)

    def leave(self) -> None:
        """This group no longer participates."""
        # Heartbeats end first: one after `leave` would bring the group back.
        self._heartbeats.stop()
        self._tell_all(messages.LeaveSyncer(self._group))
        self.close()

    def facts(self) -> messages.Facts:
        """What the first shard says about versions and staleness."""
        return self._ask(0, messages.FactsQuery(self._group), messages.Facts)

    def close(self) -> None:
        """Close all connections."""
        self._heartbeats.stop()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self._pool.shutdown(wait=False)

    def _tell_all(self, message: messages.Message) -> None:
        for index in range(len(self._shards)):
            self._ask(index, message, messages.Done)

    def _parameters(self, requests: Sequence[messages.Message]) -> tuple[np.ndarray, list[int]]:
        """What the shards answer, put together."""
        parts = [self._part(0, requests[0])] if len(requests) == 1 else self._parts(requests)
        self.waited, self._granted = max(part.waited for part in parts), parts[0].lease
        theta = np.concatenate([unpack_numbers(part.data, part.packing) for part in parts])
        return theta, [part.version for part in parts]

    def _parts(self, requests: Sequence[messages.Message]) -> list[messages.Parameters]:
        """Ask the first shard, which alone may refuse, and once it has not, all others, each for its part."""
        first = self._pool.submit(self._part, 0, requests[0])
        # Not until its round is over: the round of another shard may wait for this group, and the first shard's for a
        # group that waits there.
        while not wait([first], timeout=TAKEN_IN_POLL).done and not self._taken_in(requests[0]):
            pass
        if first.done():
            first.result()
        asked = [self._pool.submit(self._part, index, request) for index, request in enumerate(requests[1:], start=1)]
        return [future.result() for future in (first, *asked)]

    def _taken_in(self, request: messages.Message) -> bool:
        """Whether the first shard has the progress of a push that it has not answered."""
        if not isinstance(request, messages.Push):
            return False
        try:
            channel = open_channel(*self._shards[0], self._login, listener=messages.Role.SHARD, timeout=CONNECT_TIMEOUT)
        except OSError:
            return False
        with contextlib.closing(channel), contextlib.suppress(OSError):
            channel.set_timeout(ANSWER_TIMEOUT)
            channel.send(messages.StandingQuery(self._group, request.sequence))
            standing = channel.receive(messages.Standing)
            return standing.counts and standing.taken_in
        return False

    def _part(self, index: int, request: messages.Message) -> messages.Parameters:
        answers = (messages.Parameters, messages.PushRejected, messages.StartRefused)
        expected = tuple(answer for answer in answers if answer.kind in request.answers)
        reply: messages.Message = self._ask(index, request, *expected)
        if isinstance(reply, messages.StartRefused):
            hint = "all groups need the same model and the same data"
            raise InputError(f"{self._group} cannot train with the other groups: {reply.why}", hint=hint)
        if not isinstance(reply, messages.Parameters):
            raise LeaseRevoked
        return reply

    def _ask(self, index: int, message: messages.Message, *expected: type[R]) -> R:
        """Ask one shard until it answers; what it has done already it does not do twice."""
        deadline: float | None = None
        while True:
            try:
                channel = self._channel(index)
                channel.set_timeout(ROUND_TIMEOUT if isinstance(message, messages.Push) else ANSWER_TIMEOUT)
                channel.send(message)
                return channel.receive(*expected)
            except OSError as error:
                self._hang_up(index)
                self._heartbeats.doubtful = True
                # Patience begins with the first failure: a push may have waited for its round for long before.
                deadline = deadline or time.monotonic() + self._timeout
                if time.monotonic() > deadline:
                    address, port = self._shards[index]
                    raise TrainingLost(f"the syncer at {address}:{port} does not answer: {error}") from error
                time.sleep(RETRY)

    def _hang_up(self, index: int) -> None:
        """Requests that wait for an answer of this shard are repeated."""
        broken = self._channels.pop(index, None)
        if broken is not None:
            broken.close()

    def _channel(self, index: int) -> Channel:
        channel = self._channels.get(index)  # once: the heartbeats may drop it at any moment
        if channel is None:
            channel = self._channels[index] = open_channel(
                *self._shards[index], self._login, listener=messages.Role.SHARD, timeout=CONNECT_TIMEOUT
            )
        return channel


class GroupHeartbeats:
    """Sends heartbeats to every shard from construction until `stop`, apart from the exchanges, which may take long."""

    def __init__(self, shards: Sequence[Endpoint], login: Login, *, group: str, cut_off: Callable[[int], None]) -> None:
        """`cut_off` is called with the number of a shard that does not answer any more."""
        self._shards, self._login, self._group, self._cut_off = shards, login, group, cut_off
        self.busy = True
        """Whether the group takes part in rounds; one that waits aside does not."""
        self.doubtful = True
        """Whether this group may have been declared failed since this was last set to False."""
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(index,), daemon=True, name="paceline-heartbeats")
            for index in range(len(shards))
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """No further heartbeat; waits for the one under way."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(HEARTBEAT_INTERVAL + HEARTBEAT_ANSWER)

    def _run(self, index: int) -> None:
        channel: Channel | None = None
        answered = time.monotonic()
        while not self._stopped.wait(HEARTBEAT_INTERVAL):
            # Before the next heartbeat, which would hide that this process was suspended.
            if time.monotonic() - answered > DOUBT_AFTER:
                self.doubtful = True
            channel = self._send(index, channel)
            now = time.monotonic()
            if channel is not None:
                answered = now
            elif now - answered > UNANSWERED:
                self._cut_off(index)
                answered = now
        if channel is not None:
            channel.close()

    def _send(self, index: int, channel: Channel | None) -> Channel | None:
        """One heartbeat; the channel for the next one, None if there was no answer."""
        try:
            if channel is None:
                channel = open_channel(
                    *self._shards[index], self._login, listener=messages.Role.SHARD, timeout=HEARTBEAT_ANSWER
                )
                channel.set_timeout(HEARTBEAT_ANSWER)
            channel.send(messages.GroupHeartbeat(self._group, self.busy))
            channel.receive(messages.HeartbeatReply)
            return channel
        except Exception as error:  # noqa: BLE001 - heartbeats go on whatever one of them met
            log.debug("no answer to a heartbeat: %s", error)
            if channel is not None:
                channel.close()
            return None


def as_received(progress: np.ndarray, shards: int, packing: Packing) -> np.ndarray:
    """Progress as the shards will see it."""
    parts = np.array_split(progress, shards)
    return np.concatenate([unpack_numbers(pack_numbers(part, packing), packing) for part in parts])
