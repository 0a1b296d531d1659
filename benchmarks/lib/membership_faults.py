"""Random schedules of faults over simulated processes, and what must hold through all of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from lib.lineage import Violation
from lib.membership import World
from paceline.runtime.members.view import Ballot
from paceline.runtime.protocol.leading import Rule
from paceline.runtime.protocol.quorum import Memory, may_go_on, votes_needed

__all__ = ["anybody_goes_on", "run_schedule"]

BEGIN, END, HEALED = 0.5, 14.0, 80.0
"""Faults come between the first two; by the last a group that can go on has gone on."""


def anybody_goes_on(ballots: Mapping[str, Sequence[Ballot]], memory: Memory) -> bool:
    """The planted bug: no majority is asked for."""
    return bool(votes_needed(ballots))


def run_schedule(seed: int, *, rule: Rule = may_go_on) -> dict[str, int]:
    """One schedule: a violation is an exception, otherwise what happened in it."""
    chance = random.Random(seed)
    world = World(seed, chance.choice((2, 3, 3, 3, 4, 5)), rule=rule)
    kinds: dict[str, int] = {}
    for _ in range(chance.randint(1, 6)):
        kind = chance.choice(("crash", "crash", "restart", "pause", "cut", "cut", "one way", "loss"))
        kinds[kind] = kinds.get(kind, 0) + 1
        world.after(chance.uniform(BEGIN, END), lambda kind=kind: _strike(world, kind, chance))
    world.run(END)
    world.cut.clear()
    world.loss = 0.0
    for process in world.processes:
        if process.paused:
            process.resume()
    before = len(world.lineage.settled)
    while world.now < HEALED and _stuck(world, before):
        world.run(world.now + 2.0)
    if why := _stuck(world, before):
        raise Violation(why)
    return {**kinds, "settled": len(world.lineage.settled)}


def _strike(world: World, kind: str, chance: random.Random) -> None:
    alive = [process for process in world.processes if process.alive]
    hosts = sorted({process.peer.address for process in world.processes})
    if kind == "crash" and len(alive) > 1:
        chance.choice(alive).crash()
    elif kind == "restart":
        dead = sorted({process.peer.rank for process in world.processes} - {process.peer.rank for process in alive})
        world.start(chance.choice(dead) if dead else len(hosts))
    elif kind == "pause":
        chance.choice(alive).pause(chance.uniform(0.2, 8.0))
    elif kind == "loss":
        world.loss = chance.choice((0.1, 0.4))
        world.after(chance.uniform(1.0, 8.0), lambda: setattr(world, "loss", 0.0))
    elif kind in ("cut", "one way"):
        some = set(chance.sample(hosts, chance.randint(1, max(1, len(hosts) - 1))))
        pairs = {(one, other) for one in some for other in hosts if other not in some}
        pairs |= {(other, one) for one, other in pairs} if kind == "cut" else set()
        world.cut |= pairs
        world.after(chance.uniform(1.0, 12.0), lambda: world.cut.difference_update(pairs))


def _stuck(world: World, before: int) -> str:
    """Why those that are left have not gone on together, though they have the votes with what any of them saw."""
    alive = [process for process in world.processes if process.alive]
    memory = Memory(dead={process.peer.id for process in world.processes if not process.alive})
    seen = memory.told(death for process in alive for death in process.core.memory.deaths)
    if not may_go_on({process.peer.id: process.core.ballots for process in alive}, seen):
        return ""
    if len(world.lineage.settled) <= before:
        return f"nobody has gone on after step {before}, though a majority is connected"
    outside = [process.peer.id for process in alive if not process.in_view]
    return f"{', '.join(outside)} did not come back, though all are connected" if outside else ""
