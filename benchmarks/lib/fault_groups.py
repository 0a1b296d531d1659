"""Jobs of several groups around a syncer."""

from __future__ import annotations

import json
import time
from pathlib import Path

from lib.fault_jobs import SILENCE, START, Job, the_nursery
from paceline.bench.sites.local import free_ports


class SyncerJob(Job):
    """Two groups of one rank that exchange through two shards, without waiting for each other."""

    quorum = 1

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ports = free_ports(2)
        self.names = ["a", "b"]
        self.secret = self._env["PACELINE_SECRET"]
        self._env.pop("MASTER_PORT")
        for index, port in enumerate(self.ports):
            settings = {"index": index, "folder": str(folder), "address": "127.0.0.1", "port": port}
            settings |= {"groups": 2, "quorum": self.quorum, "heartbeat_timeout": SILENCE}
            (folder / f"shard-{index}.json").write_text(json.dumps(settings))

    def begin(self) -> None:
        """Shards first."""
        for index in range(len(self.ports)):
            self.start_shard(index)
        for name in self.names:
            self.start(name)
        for name in self.names:
            self.until(lambda record: record["step"] > 2, since=0.0, only=[name], timeout=START)

    def end(self) -> None:
        """Groups end one after the other: what they do then does not count."""
        self.stopped = time.monotonic()
        self.order("stop").write_text("0\n")
        self._wait_for_ends()

    def start_shard(self, index: int) -> None:
        """Start a shard; it goes on from what it had committed."""
        name = f"shard-{index}"
        order = {"shard": str(self.folder / f"{name}.json"), "env": self._env, "log": str(self.folder / f"{name}.log")}
        self.processes[name] = the_nursery().ordered(order)

    def environment(self, name: str) -> dict[str, str]:
        """A group of one."""
        places = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        told = {"PACELINE_SYNCER": places, "PACELINE_SYNCER_SECRET": self.secret, "PACELINE_GROUP": name}
        told |= {"PACELINE_GROUP_SHARE": "0.5", "PACELINE_LOCAL_STEPS": "2", "WORKER": name}
        return told | {"WORLD_SIZE": "1", "RANK": "0"}


class RoundsJob(SyncerJob):
    """Two groups that wait for each other at every exchange."""

    quorum = 2

    def lost(self, group: str, since: float) -> float | None:
        """When the last shard took a group for dead, by time.time()."""
        moments = []
        for index in range(len(self.ports)):
            said = [line.split(maxsplit=1) for line in self.log(f"shard-{index}").splitlines()]
            found = [float(at) for at, text in said if text.startswith(f"group {group} sent no heartbeat")]
            moments.append(next((at for at in found if at > since), None))
        known = [at for at in moments if at is not None]
        return max(known) if len(known) == len(moments) else None
