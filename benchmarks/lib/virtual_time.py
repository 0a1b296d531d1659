"""Which settings learn a problem soonest, in virtual time: every setting of a grid, in one process.

python benchmarks/lib/virtual_time.py < SETTINGS, as benchmarks/lib/tuned.py starts it

Gradients, momentum, the syncer's rules and leases are real; the seconds of a step and of an exchange are those that the
settings name. One group is one process with the whole batch, which data parallel steps equal.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script
from lib.digits import Problem, Watch
from lib.problems import problem_of
from paceline.runtime.large.recipe import LargeBatch
from paceline.runtime.samples import epoch_order, even_part
from paceline.runtime.syncer.leases import Lease, Leases
from paceline.runtime.syncer.rounds import Arrival, RoundPolicy, ShardState

Told = dict[str, Any]
CLOCK = -1
"""In place of a group: time has passed."""


def together(told: Told) -> dict[str, Any]:
    """One group; a step lasts as long as its slowest rank and one exchange."""
    problem, watch = problem_of(told), Watch(told["accuracy"], told["looks"])
    optimizer, chance, now = problem.optimizer(told), random.Random(told["seed"]), 0.0
    total, batch, curve = len(problem.labels), told["batch"], Curve(told)
    for epoch in range(told["epochs"]):
        order = epoch_order(total, seed=told["seed"], epoch=epoch)
        for begin in range(0, total - batch + 1, batch):
            _step(problem, optimizer, order[begin : begin + batch])
            now += max(_seconds(told, chance) for _ in range(told["devices"])) + told["exchange"]
            accuracy = problem.accuracy()
            watch.look(accuracy, now)
            curve.add(now, accuracy)
    return {**watch.result(problem.accuracy(), now), **curve.plain()}


class Curve:
    """Accuracy over time, if it is asked for."""

    def __init__(self, told: Told) -> None:
        self._asked, self._points = told.get("curve", False), list[tuple[float, float]]()

    def add(self, now: float, accuracy: float) -> None:
        """A point."""
        self._points.append((round(now, 3), round(accuracy, 4)))

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {"curve": self._points} if self._asked else {}


def _step(
    problem: Problem,
    optimizer: torch.optim.Optimizer,
    samples: np.ndarray,
    recipe: tuple[LargeBatch, float] | None = None,
) -> None:
    """With a recipe: and the factor that it has now."""
    chosen = torch.from_numpy(samples.copy())
    optimizer.zero_grad(set_to_none=True)
    problem.loss(problem.images[chosen], problem.labels[chosen]).backward()
    with recipe[0].applied([optimizer], recipe[1]) if recipe else contextlib.nullcontext():
        optimizer.step()


def _seconds(told: Told, chance: random.Random) -> float:
    """Of one rank's part of a step."""
    slow = 10.0 if chance.random() < told["straggle"] else 1.0
    return float(told["per_sample"] * told["batch"] / told["devices"] * slow)


class Swarm:
    """Groups around a syncer of one shard."""

    def __init__(self, told: Told) -> None:
        self.told, self.chance = told, random.Random(told["seed"])
        groups = told["groups"]
        self.problems = [problem_of(told) for _ in range(groups)]
        self.optimizers = [problem.optimizer(told) for problem in self.problems]
        self.shard = ShardState(RoundPolicy.of({**told, "rule": {"name": told["rule"], **told.get("with", {})}}))
        self.busy = set(range(groups))
        self.shard.start(parameters_to_vector(self.problems[0].model.parameters()).detach().numpy())
        self.leases = Leases(len(self.problems[0].labels), told["epochs"])
        self.held: dict[int, tuple[int, int, Lease]] = {}
        """Sequence number, version and samples that a group works on."""
        self.events: list[tuple[float, int]] = []
        self.recipe = LargeBatch(told["reference"], told["warmup"]) if "reference" in told else None
        self.steps = [0] * groups

    def give(self, group: int, sequence: int, now: float) -> None:
        """Common parameters and the next samples for a group."""
        share = self.told["batch"] // self.told["groups"]
        lease = self.leases.take(str(group), sequence, share * self.told["local_steps"])
        if lease is None:
            self.busy.discard(group)
            self.shard.count(len(self.busy))
            return
        assert self.shard.theta is not None
        model = self.problems[group].model
        vector_to_parameters(torch.from_numpy(self.shard.theta.astype(np.float32).copy()), model.parameters())
        self.held[group] = (sequence, self.shard.version, lease)
        steps = -(-(lease.end - lease.begin) // share)
        ranks = self.told["devices"] // self.told["groups"]
        lasts = sum(max(_seconds(self.told, self.chance) for _ in range(ranks)) for _ in range(steps))
        heapq.heappush(self.events, (now + lasts + self.told["exchange"], group))

    def work(self, group: int, now: float) -> None:
        """The steps that a group has done by now, and what it hands in."""
        sequence, version, lease = self.held[group]
        problem, share = self.problems[group], self.told["batch"] // self.told["groups"]
        before = parameters_to_vector(problem.model.parameters()).detach().clone()
        order = epoch_order(len(problem.labels), seed=self.told["seed"], epoch=lease.epoch)
        begin = lease.begin
        while begin < lease.end:
            part = order[begin : begin + even_part(lease.end - begin, share)]
            recipe, self.steps[group] = self.recipe, self.steps[group] + 1
            factor = recipe.factor(self.steps[group] - 1, batch=self.told["batch"], noise=None) if recipe else 1.0
            _step(problem, self.optimizers[group], part, (recipe, factor) if recipe else None)
            begin += len(part)
        progress = (before - parameters_to_vector(problem.model.parameters()).detach()).numpy()
        self.shard.arrive(Arrival(str(group), sequence, version, lease.end - lease.begin, progress), now)

    def accuracy(self) -> float:
        """Of the common parameters."""
        assert self.shard.theta is not None
        model = self.problems[0].model
        kept = parameters_to_vector(model.parameters()).detach().clone()
        vector_to_parameters(torch.from_numpy(self.shard.theta.astype(np.float32).copy()), model.parameters())
        found = self.problems[0].accuracy()
        vector_to_parameters(kept, model.parameters())
        return found


def apart(told: Told) -> dict[str, Any]:
    """Several groups; those that have handed in go on when their round is over, which the clock may bring about."""
    swarm, watch, now = Swarm(told), Watch(told["accuracy"], told["looks"]), 0.0
    every, waiting, curve = max(1, told["groups"] // told["quorum"]), set[int](), Curve(told)
    for group in range(told["groups"]):
        swarm.give(group, 1, 0.0)
    while swarm.events:
        now, group = heapq.heappop(swarm.events)
        if group != CLOCK:
            swarm.work(group, now)
            waiting.add(group)
        while swarm.shard.advance(now):
            if swarm.shard.version % every == 0 and (not watch.reached or "curve" in told):
                accuracy = swarm.accuracy()
                watch.look(accuracy, now)
                curve.add(now, accuracy)
            for ready in sorted(waiting):
                swarm.give(ready, swarm.held[ready][0] + 1, now)
            waiting.clear()
        if waiting and group != CLOCK:
            heapq.heappush(swarm.events, (now + told["grace"] + 1e-9, CLOCK))
    return {**watch.result(swarm.accuracy(), now), **curve.plain()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for told in json.loads(sys.stdin.read()):
        print(json.dumps((apart if told["way"] == "groups" else together)(told)), flush=True)
