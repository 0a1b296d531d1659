"""A process that serves one shard of the common parameters, and the first of them the queue of samples.

python -m paceline.runtime.syncer.server SETTINGS.json [ADDRESS], with the secret in PACELINE_SECRET. Each group has one
connection at a time; a group that stays away for too long no longer counts, and its samples are handed out again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from paceline.runtime.members.channel import Channel, Message, answer
from paceline.runtime.syncer.leases import Leases
from paceline.runtime.syncer.packing import Packing, pack_numbers, unpack_numbers
from paceline.runtime.syncer.rounds import Arrival, Policy, Shard
from paceline.runtime.syncer.rules import Outer, Rule

__all__ = ["Server", "main", "policy_of"]

TICK = 0.02
log = logging.getLogger("paceline.runtime")


class Server:
    """Serves from construction until the process ends."""

    def __init__(self, shard: Shard, *, groups: int, silence: float, queue: Path | None) -> None:
        self._shard, self._queue = shard, queue
        self._leases: Leases | None = None
        self._expected, self._silence = groups, silence
        self._changed = threading.Condition(threading.RLock())
        self._born, self._restarted = time.monotonic(), shard.theta is not None
        self._active: set[str] = set()
        self._seen: set[str] = set()
        self._away: dict[str, float] = {}
        self._holders: dict[str, Channel] = {}
        if queue is not None and queue.exists():
            self._leases = Leases.of(json.loads(queue.read_text(encoding="utf-8")))

    def serve(self, server: socket.socket, secret: bytes) -> None:
        """Accept callers for ever."""
        threading.Thread(target=self._tick, daemon=True, name="paceline-rounds").start()
        while True:
            connection, _ = server.accept()
            threading.Thread(target=self._greet, args=(connection, secret), daemon=True, name="paceline-group").start()

    def _greet(self, connection: socket.socket, secret: bytes) -> None:
        group = ""
        with contextlib.suppress(ConnectionError, KeyError, ValueError, TypeError):
            channel = answer(connection, secret)
            while True:
                message = channel.receive()
                group = str(message["group"])
                with self._changed:
                    self._holders[group] = channel
                    self._away.pop(group, None)
                self._serve_one(channel, group, message)
        with self._changed:
            if group in self._active and self._holders.get(group) is channel:
                self._away[group] = time.monotonic()

    def _serve_one(self, channel: Channel, group: str, message: Message) -> None:
        kind = message["kind"]
        if kind == "start":
            theta = unpack_numbers(channel.receive_payload(message), "none")
            self._start(group, theta, message)
            self._reply_theta(channel)
        elif kind == "push":
            packing = str(message.get("packing", "none"))
            progress = unpack_numbers(channel.receive_payload(message), packing)
            self._push(Arrival(group, message["sequence"], message["base"], message["samples"], progress))
            self._reply_theta(channel, "none" if packing == "none" else "half")
        elif kind == "lease":
            channel.send(self._lease(group, message))
        elif kind in ("idle", "busy", "leave"):
            self._count(group, busy=kind == "busy")
            channel.send({"kind": "ok"})
        else:
            channel.send(self._facts())

    def _start(self, group: str, theta: np.ndarray, message: Message) -> None:
        with self._changed:
            self._shard.start(theta)
            if self._leases is None:
                self._leases = Leases(message["num_samples"], message["epochs"])
        self._count(group, busy=True)

    def _push(self, arrival: Arrival) -> None:
        with self._changed:
            if arrival.group not in self._active:
                self._count(arrival.group, busy=True)
            self._shard.arrive(arrival, time.monotonic())
            self._advance()
            self._changed.wait_for(lambda: self._shard.settled(arrival.group, arrival.sequence))

    def _reply_theta(self, channel: Channel, packing: Packing = "none") -> None:
        with self._changed:
            assert self._shard.theta is not None
            version, data = self._shard.version, pack_numbers(self._shard.theta, packing)
        channel.send({"kind": "theta", "version": version, "packing": packing}, data)

    def _lease(self, group: str, message: Message) -> Message:
        assert self._leases is not None
        with self._changed:
            lease = self._leases.take(group, message["sequence"], message["size"])
            if self._queue is not None:
                temporary = self._queue.with_suffix(".tmp")
                temporary.write_text(json.dumps(self._leases.plain()), encoding="utf-8")
                temporary.replace(self._queue)
            return {"kind": "lease", "lease": asdict(lease) if lease else None, "others": self._leases.outstanding}

    def _count(self, group: str, *, busy: bool) -> None:
        """A group takes part in rounds, or does not for now."""
        with self._changed:
            (self._active.add if busy else self._active.discard)(group)
            self._seen.add(group)
            self._recount()

    def _recount(self) -> None:
        """Who is expected and never came still counts; after a restart only for a while, since it may have left."""
        missing = max(0, self._expected - len(self._seen))
        if self._restarted and time.monotonic() - self._born > self._silence:
            missing = 0
        self._shard.count(len(self._active) + missing)
        self._advance()

    def _advance(self) -> None:
        if self._shard.advance(time.monotonic()):
            self._changed.notify_all()

    def _tick(self) -> None:
        while True:
            time.sleep(TICK)
            with self._changed:
                if self._restarted and self._seen:
                    self._recount()
                self._advance()
                gone = [group for group, since in self._away.items() if time.monotonic() - since > self._silence]
            for group in gone:
                log.warning("group %s stayed away for %.1f s and no longer counts", group, self._silence)
                with self._changed:
                    del self._away[group]
                    if self._leases is not None:
                        self._leases.release(group)
                self._count(group, busy=False)

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
    server = Server(shard, groups=settings["groups"], silence=settings.get("silence", 10.0), queue=queue)
    address = sys.argv[2] if len(sys.argv) > 2 else settings["address"]
    door = socket.create_server((address, settings["port"]), backlog=64)
    server.serve(door, os.environ["PACELINE_SECRET"].encode())


if __name__ == "__main__":
    main()
