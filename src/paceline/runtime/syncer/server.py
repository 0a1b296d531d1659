"""A process that serves one shard of the common parameters, and the first of them the queue of samples.

python -m paceline.runtime.syncer.server SETTINGS.json [ADDRESS], with the secret in PACELINE_SECRET. Each group has one
connection for exchanges and one for signs of life; a group that is silent for too long no longer counts, its samples
are handed out again, and what it hands in later is refused: it has to come back first.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from paceline.runtime.members.background import in_background
from paceline.runtime.members.channel import Channel, Message, answer
from paceline.runtime.syncer.keeping import kept_or_ended
from paceline.runtime.syncer.leases import Leases
from paceline.runtime.syncer.packing import Packing, pack_numbers, unpack_numbers
from paceline.runtime.syncer.rounds import Arrival, Policy, Shard
from paceline.runtime.syncer.rules import Outer, Rule

__all__ = ["Server", "main", "policy_of"]

TICK = 0.02
UNUSED = 120.0
"""Seconds after which a group that never came is not waited for, and a syncer to which none came ends."""
log = logging.getLogger("paceline.runtime")


class Server:
    """Serves from construction until the process ends."""

    def __init__(
        self, shard: Shard, *, groups: int, silence: float, queue: Path | None, own: Path | None = None
    ) -> None:
        """`own`: the folder of a syncer that the groups started themselves; both go when all groups have left."""
        self._shard, self._queue, self._own = shard, queue, own
        self._left_at = time.monotonic()
        self._leases: Leases | None = None
        self._expected, self._silence = groups, silence
        self._changed = threading.Condition(threading.RLock())
        self._born, self._restarted = time.monotonic(), shard.theta is not None
        self._active: set[str] = set()
        self._seen: set[str] = set()
        self._heard: dict[str, float] = {}
        """The last sign of life of each group that takes part or holds samples."""
        self._revoked: set[str] = set()
        """Groups that were taken for dead, whose samples others have, until they come back."""
        self._told: dict[str, Any] = {}
        """What each group last said of itself."""
        self._news: dict[str, Any] = {}
        """What all groups are to know: another number of local steps, or where to meet as one group."""
        if queue is not None and queue.exists():
            content = json.loads(queue.read_text(encoding="utf-8"))
            self._leases, self._news, self._revoked = Leases.of(content), content["news"], set(content["revoked"])
            self._heard = dict.fromkeys(self._leases.holders, time.monotonic())

    def serve(self, server: socket.socket, secret: bytes) -> None:
        """Accept callers for ever."""
        in_background("rounds", self._tick, failed=lambda: os._exit(1))
        while True:
            connection, _ = server.accept()
            threading.Thread(target=self._greet, args=(connection, secret), daemon=True, name="paceline-group").start()

    def _greet(self, connection: socket.socket, secret: bytes) -> None:
        with contextlib.suppress(ConnectionError, KeyError, ValueError, TypeError):
            channel = answer(connection, secret)
            while True:
                message = channel.receive()
                group = str(message["group"])
                self._hear(group)
                self._serve_one(channel, group, message)

    def _hear(self, group: str) -> None:
        with self._changed:
            if group in self._heard:
                self._heard[group] = time.monotonic()

    def _serve_one(self, channel: Channel, group: str, message: Message) -> None:
        kind = message["kind"]
        if kind == "beat":
            self._beat(group, busy=bool(message["busy"]))
            channel.send({"kind": "beat"})
        elif kind == "start":
            theta = unpack_numbers(channel.receive_payload(message), "none")
            self._start(group, theta, message)
            self._reply_theta(channel)
        elif kind == "push":
            packing = str(message.get("packing", "none"))
            progress = unpack_numbers(channel.receive_payload(message), packing)
            waited = self._push(Arrival(group, message["sequence"], message["base"], message["samples"], progress))
            if waited is None:
                channel.send({"kind": "gone"})
            else:
                self._reply_theta(channel, "none" if packing == "none" else "half", waited=waited)
        elif kind == "theta":
            self._reply_theta(channel)
        elif kind == "retune":
            self._retune(message)
            channel.send({"kind": "ok"})
        elif kind == "lease":
            channel.send(self._lease(group, message))
        elif kind == "counts":
            channel.send({"kind": "counts", "counts": group not in self._revoked})
        elif kind in ("idle", "busy", "leave"):
            self._count(group, busy=kind == "busy")
            if kind == "leave":
                self._heard.pop(group, None)
            channel.send({"kind": "ok"})
        else:
            channel.send(self._facts())

    def _start(self, group: str, theta: np.ndarray, message: Message) -> None:
        """A group begins; if it did before, all of its processes died, and what it had not handed in is free again."""
        with self._changed:
            self._shard.start(theta)
            if self._leases is not None:
                done = self._shard.settled(group, self._leases.sequence_of(group))
                self._leases.release(group, handed_in=done)
            self._shard.forget(group)
            if self._leases is None:
                begin = message.get("begin", (0, 0))
                self._leases = Leases(message["num_samples"], message["epochs"], begin=begin)
        self._count(group, busy=True)

    def _push(self, arrival: Arrival) -> float | None:
        """Seconds that the group waited for others; None if others have its samples."""
        group = arrival.group
        with self._changed:
            if group in self._revoked:
                return None
            if group not in self._active:
                self._count(group, busy=True)
            self._shard.arrive(arrival, time.monotonic())
            began = time.monotonic()
            self._advance()
            self._changed.wait_for(lambda: self._shard.settled(group, arrival.sequence))
            return time.monotonic() - began

    def _beat(self, group: str, *, busy: bool) -> None:
        """A sign of life; it also tells a shard that was started again who takes part."""
        with self._changed:
            known = group in self._seen or self._restarted
            if known and group not in self._revoked and busy != (group in self._active):
                self._count(group, busy=busy)

    def _retune(self, message: Message) -> None:
        """Another quorum, another number of local steps, or the end of all groups but one."""
        with self._changed:
            self._shard.retune(message["quorum"])
            self._news = {"local_steps": message["local_steps"], "meet": message["meet"]}
            if message["meet"] is not None and self._leases is not None:
                self._leases.halted = True
            self._write_queue()
            self._advance()

    def _reply_theta(self, channel: Channel, packing: Packing = "none", *, waited: float = 0.0) -> None:
        with self._changed:
            assert self._shard.theta is not None
            version, data = self._shard.version, pack_numbers(self._shard.theta, packing)
        channel.send({"kind": "theta", "version": version, "packing": packing, "waited": waited}, data)

    def _lease(self, group: str, message: Message) -> Message:
        assert self._leases is not None
        with self._changed:
            lease = self._leases.take(group, message["sequence"], message["size"])
            self._write_queue()
            if lease is not None:
                self._heard[group] = time.monotonic()
            self._told[group] = message.get("told")
            news = {**self._news, "told": self._told, "at": self._leases.position}
            given = asdict(lease) if lease else None
            return {"kind": "lease", "lease": given, "others": self._leases.outstanding, "news": news}

    def _write_queue(self) -> None:
        """What was handed out and what all are to know is on disk before anybody hears of it."""
        if self._queue is None or self._leases is None:
            return
        temporary = self._queue.with_suffix(".tmp")
        content = {**self._leases.plain(), "news": self._news, "revoked": sorted(self._revoked)}
        with kept_or_ended(self._queue):
            temporary.write_text(json.dumps(content), encoding="utf-8")
            temporary.replace(self._queue)

    def _count(self, group: str, *, busy: bool) -> None:
        """A group takes part in rounds, or does not for now."""
        with self._changed:
            (self._active.add if busy else self._active.discard)(group)
            self._seen.add(group)
            if busy:
                self._heard[group] = time.monotonic()
                self._revoked.discard(group)
            self._recount()

    def _recount(self) -> None:
        """Who is expected and never came still counts for a while; after a restart a short one: it may have left."""
        missing = max(0, self._expected - len(self._seen))
        if time.monotonic() - self._born > (self._silence if self._restarted else UNUSED):
            missing = 0
        self._shard.count(len(self._active) + missing)
        self._advance()

    def _advance(self) -> None:
        if self._shard.advance(time.monotonic()):
            self._changed.notify_all()

    def _tick(self) -> None:
        before = time.monotonic()
        while True:
            time.sleep(TICK)
            with self._changed:
                now = time.monotonic()
                if now - before > self._silence / 2:  # it was this process that slept, or wrote
                    self._heard = dict.fromkeys(self._heard, now)
                before = now
                if self._seen:
                    self._recount()
                self._advance()
                self._end_if_left()
                for group in [group for group, at in self._heard.items() if now - at > self._silence]:
                    self._lose(group)

    def _lose(self, group: str) -> None:
        """A group was silent for too long."""
        log.warning("group %s was silent for %.1f s and no longer counts", group, self._silence)
        del self._heard[group]
        if self._leases is not None:
            number = self._leases.sequence_of(group)
            done = self._shard.has(group, number)
            self._leases.release(group, handed_in=done)
            if number > 0 and not done:
                self._revoked.add(group)
            self._write_queue()
        self._count(group, busy=False)

    def _end_if_left(self) -> None:
        """A syncer that the groups started themselves ends when all of them have left it."""
        if self._own is None or self._active or self._heard:
            self._left_at = time.monotonic()
        elif time.monotonic() - self._left_at > (self._silence if self._seen else UNUSED):
            shutil.rmtree(self._own, ignore_errors=True)
            os._exit(0)

    def _facts(self) -> Message:
        with self._changed:
            recent = self._shard.staleness[-1000:]
            mean = sum(recent) / len(recent) if recent else 0.0
            largest = max(recent, default=0)
            queue = len(self._active)
        facts = {"version": self._shard.version, "dropped": self._shard.dropped, "groups": queue}
        return {"kind": "facts", **facts, "mean_staleness": mean, "largest_staleness": largest}


def policy_of(plain: dict[str, Any]) -> Policy:
    """A policy from JSON data."""
    rule, outer = Rule(**plain.get("rule", {})), Outer(**plain.get("outer", {}))
    return Policy(plain["groups"], plain["quorum"], plain.get("grace", 0.0), rule, outer)


def main() -> None:
    """Serve one shard as the settings file says."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = Path(settings["folder"]) if settings.get("folder") else None
    index = settings["index"]
    shard = Shard(policy_of(settings), folder / f"shard-{index}.npz" if folder else None)
    queue = folder / "queue.json" if folder and index == 0 else None
    server = Server(
        shard,
        groups=settings["groups"],
        silence=settings.get("silence", 10.0),
        queue=queue,
        own=folder if settings.get("ends") else None,
    )
    address = sys.argv[2] if len(sys.argv) > 2 else settings["address"]
    door = socket.create_server((address, settings["port"]), backlog=64)
    server.serve(door, os.environ["PACELINE_SECRET"].encode())


if __name__ == "__main__":
    main()
