"""Connections of a group to the shards of the syncer: one for requests and one for heartbeats per shard.

A request is repeated until it is answered; sequence numbers ensure that a shard executes it once.
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
"""Seconds before a request is repeated; a killed shard restarts within seconds."""
TAKEN_IN_POLL = 0.03
"""Interval in seconds of the query whether the first shard has received a push."""
POLL = 0.1
"""Interval in seconds of lease requests while other groups train on the last samples."""
CONNECT_TIMEOUT = 5.0
"""Seconds to connect to a shard, whose host may be busy with training."""
ANSWER_TIMEOUT = 30.0
"""Seconds for an answer that does not wait for other groups; a shard writes its parameters to disk before it."""
ROUND_TIMEOUT = 600.0
"""Seconds after which an unanswered push is repeated; a shard without heartbeats is disconnected long before."""
HEARTBEAT_INTERVAL = 0.1
"""Seconds between two heartbeats."""
HEARTBEAT_ANSWER = 2.0
"""Seconds within which a shard answers a heartbeat, from a thread that does not wait for other groups."""
DOUBT_AFTER = 0.3
"""Seconds without an answered heartbeat after which this process asks whether it was declared failed; it may have been
suspended. Below every heartbeat timeout of a shard, so that a group that was declared failed always asks."""
UNANSWERED = 20.0
"""Seconds without an answered heartbeat after which the connections to a shard are closed, so that requests repeat."""
log = logging.getLogger("paceline.runtime")


class LeaseRevoked(Exception):
    """The group was declared failed and its samples were leased to other groups, so its progress must not count."""


class ShardConnections:
    """Connections to all shards; made again when a shard restarts."""

    def __init__(self, shards: Sequence[Endpoint], secret: bytes, *, group: str, timeout: float = 60.0) -> None:
        """`timeout`: seconds for which a shard may fail to answer; a restart takes a few seconds."""
        self._shards, self._group, self._timeout = list(shards), group, timeout
        self._login = login_of(secret, messages.Role.GROUP, group)
        self._channels: dict[int, Channel] = {}
        self.session = 0
        """Id of the group's `start` request; the next first rank of the group uses it as well."""
        self.waited = 0.0
        """Seconds of the last exchange for which this group waited for other groups."""
        self.last_reply: messages.LeaseReply | None = None
        """The last answer to a lease request."""
        self._granted: messages.LeaseReply | None = None
        """The lease from the answer to a push, until it is used."""
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
        """Start the group with its parameters and data; returns the common parameters and their versions."""
        parts = np.array_split(theta, len(self._shards))
        # Repeated requests have the same session id, so that a shard executes them once.
        self.session = secrets.randbits(62)
        layout = layout or (("theta", len(theta)),)
        about = (self.session, layout, num_samples, epochs, begin, *rules)
        requests = [messages.StartGroup(self._group, *about, pack_numbers(part, "none")) for part in parts]
        return self._parameters(requests)

    def common(self) -> tuple[np.ndarray, list[int]]:
        """The present common parameters and their versions."""
        return self._parameters([messages.FetchParameters(self._group)] * len(self._shards))

    def retune(self, *, local_steps: int, quorum: int, merge_at: Endpoint | None) -> None:
        """Change the settings of all groups through the shards; with `merge_at`, all groups merge at that endpoint."""
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
        """Push progress since the given versions; returns the common parameters and their versions.

        `then`: size of the next lease, and the status to send with its request; a single shard answers both at once.
        Raises LeaseRevoked if this group was declared failed meanwhile.
        """
        # Asked before the push: only the first shard knows leases, and the other shards would apply progress on samples
        # that were leased to another group.
        if self._heartbeats.doubtful:
            self._heartbeats.doubtful = False
            if not self._ask(0, messages.StandingQuery(self._group, 0), messages.Standing).counts:
                raise LeaseRevoked
        parts = np.array_split(progress, len(self._shards))
        requests = [
            messages.Push(self._group, self.session, sequence, version, samples, packing, pack_numbers(part, packing))
            for version, part in zip(versions, parts, strict=True)
        ]
        if len(requests) == 1:  # with several shards, the lease is requested after all have the push
            requests[0] = replace(requests[0], wanted=then[0], status=then[1])
        return self._parameters(requests)

    def come_back(self) -> tuple[np.ndarray, list[int]]:
        """Take part again after being declared failed; returns the present common parameters and their versions."""
        self._tell_all(messages.Busy(self._group))
        return self.common()

    def lease(self, sequence: int, size: int, status: GroupStatus | None = None) -> Lease | None:
        """The next samples; None if all samples are done. While others train on the last ones, wait as idle."""
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
                # Heartbeats change first: a busy heartbeat after `idle` would make rounds wait for this group.
                aside, self._heartbeats.busy = True, False
                self._tell_all(messages.Idle(self._group))
            time.sleep(POLL)

    def leave(self) -> None:
        """This group no longer participates."""
        # Heartbeats end first: a heartbeat after `leave` would make the group active again.
        self._heartbeats.stop()
        self._tell_all(messages.LeaveSyncer(self._group))
        self.close()

    def facts(self) -> messages.Facts:
        """Counts of versions and staleness from the first shard."""
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
        """Send one request to each shard; returns the joined parameters and their versions."""
        parts = [self._part(0, requests[0])] if len(requests) == 1 else self._parts(requests)
        self.waited, self._granted = max(part.waited for part in parts), parts[0].lease
        theta = np.concatenate([unpack_numbers(part.data, part.packing) for part in parts])
        return theta, [part.version for part in parts]

    def _parts(self, requests: Sequence[messages.Message]) -> list[messages.Parameters]:
        """Send to the first shard, which alone may refuse; when it has accepted, send to the others."""
        first = self._pool.submit(self._part, 0, requests[0])
        # Do not wait for the round of the first shard: it may wait for a group that waits for the round of another
        # shard, which waits for this group.
        while not wait([first], timeout=TAKEN_IN_POLL).done and not self._taken_in(requests[0]):
            pass
        if first.done():
            first.result()
        asked = [self._pool.submit(self._part, index, request) for index, request in enumerate(requests[1:], start=1)]
        return [future.result() for future in (first, *asked)]

    def _taken_in(self, request: messages.Message) -> bool:
        """Whether the first shard has received a push that it has not answered yet."""
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
        """Repeat a request to one shard until it answers; a shard executes a repeated request once."""
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
                # The deadline starts at the first failure, because a push may have waited for its round before.
                deadline = deadline or time.monotonic() + self._timeout
                if time.monotonic() > deadline:
                    address, port = self._shards[index]
                    raise TrainingLost(f"the syncer at {address}:{port} does not answer: {error}") from error
                time.sleep(RETRY)

    def _hang_up(self, index: int) -> None:
        """Close the connection to a shard, so that waiting requests are repeated."""
        broken = self._channels.pop(index, None)
        if broken is not None:
            broken.close()

    def _channel(self, index: int) -> Channel:
        channel = self._channels.get(index)  # read once: the heartbeat thread may close it at any time
        if channel is None:
            channel = self._channels[index] = open_channel(
                *self._shards[index], self._login, listener=messages.Role.SHARD, timeout=CONNECT_TIMEOUT
            )
        return channel


class GroupHeartbeats:
    """Sends heartbeats to every shard until `stop`, in separate threads, because exchanges may take long."""

    def __init__(self, shards: Sequence[Endpoint], login: Login, *, group: str, cut_off: Callable[[int], None]) -> None:
        """`cut_off` is called with the index of a shard that no longer answers."""
        self._shards, self._login, self._group, self._cut_off = shards, login, group, cut_off
        self.busy = True
        """Whether the group participates in rounds; a group that waits for samples does not."""
        self.doubtful = True
        """Whether this group may have been declared failed since this was set to False."""
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(index,), daemon=True, name="paceline-heartbeats")
            for index in range(len(shards))
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop sending; waits for a heartbeat that is being sent."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(HEARTBEAT_INTERVAL + HEARTBEAT_ANSWER)

    def _run(self, index: int) -> None:
        channel: Channel | None = None
        answered = time.monotonic()
        while not self._stopped.wait(HEARTBEAT_INTERVAL):
            # Checked before the next heartbeat, which would hide that this process was suspended.
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
        """Send one heartbeat; returns the channel for the next one, or None without an answer."""
        try:
            if channel is None:
                channel = open_channel(
                    *self._shards[index], self._login, listener=messages.Role.SHARD, timeout=HEARTBEAT_ANSWER
                )
                channel.set_timeout(HEARTBEAT_ANSWER)
            channel.send(messages.GroupHeartbeat(self._group, self.busy))
            channel.receive(messages.HeartbeatReply)
            return channel
        except Exception as error:  # noqa: BLE001 - heartbeats continue after any error
            log.debug("no answer to a heartbeat: %s", error)
            if channel is not None:
                channel.close()
            return None


def as_received(progress: np.ndarray, shards: int, packing: Packing) -> np.ndarray:
    """Progress as the shards receive it, after packing."""
    parts = np.array_split(progress, shards)
    return np.concatenate([unpack_numbers(pack_numbers(part, packing), packing) for part in parts])
