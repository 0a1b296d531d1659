"""The pilot chooses the strategy: it measures the first steps, asks the model, and repeats both when costs drift.

One group:       every few steps the first rank compares the step time with the step time after the last decision. If
                 it has changed, or the share of straggling steps has, links are measured and the model is asked again.
Several groups:  each group reports the cost of its samples and of its exchange to the syncer; the first group compares.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from paceline.cost.split import Cost
from paceline.runtime.auto.choose import (
    SMALL,
    Choice,
    Links,
    Measured,
    choose,
    large_message,
    links_from,
    one_group,
    pairs_of,
)
from paceline.runtime.auto.regroup import GROUP_NAME, Listener, open_listener
from paceline.runtime.group.session import GroupSession
from paceline.runtime.group.wire import Wire
from paceline.runtime.syncer.client import SyncerClient
from paceline.runtime.syncer.leases import GroupStatus

__all__ = ["NoPilot", "Pilot", "measure_links"]

EVERY = 8
"""Number of steps between two checks."""
DRIFT = 1.25
"""Ratio of the step time to the step time after the last decision that triggers a new plan."""
DRIFT_OF_LINK = 2.0
"""The same ratio for an exchange with the syncer, whose time varies more."""
FIRST = GROUP_NAME.format(0)
STRAGGLING = 0.03
"""Share of straggling steps that triggers a new plan."""


class NoPilot:
    """A pilot that keeps the strategy of the launch."""

    regroups = False
    reasons: Sequence[str] = ()

    def look(self, session: GroupSession, seconds: float, *, step: int, may_split: bool) -> Choice | None:
        """None: the strategy does not change."""
        return None

    def status(self, session: GroupSession, seconds: float) -> GroupStatus | None:
        """None: there is no report."""
        return None

    def retune(self, client: SyncerClient, address: str) -> Listener | None:
        """None: the strategy does not change."""
        return None

    def merged(self) -> None:
        """No effect: groups that were launched separately stay separate."""


class Pilot:
    """The decisions of one process. The first rank broadcasts its decision, so that all ranks of a view agree."""

    regroups = True

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self.choice: Choice | None = None
        self.reasons: list[str] = []
        """The reason of every decision, in order; filled on the rank that decided."""
        self._recent: list[float] = []
        self._usual: float | None = None
        """Seconds of a step, or of an exchange with the syncer, after the last decision."""
        self._measured: Measured | None = None
        self._grouping: tuple[tuple[int, ...], ...] = ()

    def look(self, session: GroupSession, seconds: float, *, step: int, may_split: bool) -> Choice | None:
        """Called after each step of one group: the new choice, or None if the strategy stays."""
        self._recent.append(seconds)
        if session.size == 1 or step % EVERY:
            return None
        if session.wire.tell("yes" if self._due(session) else "no", 0) == "no":
            return None
        self._recent, self._usual = [], None
        addresses = [peer.address for peer in session.peers]
        links = measure_links(session.wire, addresses, gradient_bytes=float(sum(session.reducer.sizes)))
        return self._decide(session, links, may_split=may_split)

    def _due(self, session: GroupSession) -> bool:
        """Whether a decision is due: there is none for these ranks yet, or the costs have changed."""
        if self.choice is None or len(self.choice.groups[0]) != session.size or self._measured is None:
            return True
        now, self._recent = statistics.median(self._recent), []
        usual = self._usual
        if usual is None:
            self._usual = now
        drifted = usual is not None and not usual / DRIFT < now < usual * DRIFT
        late, before = _most_late(session.balance.straggling()), _most_late(self._measured.straggling)
        return drifted or (late > STRAGGLING) != (before > STRAGGLING)

    def _decide(self, session: GroupSession, links: Links, *, may_split: bool) -> Choice | None:
        balance, present = session.balance, one_group(session.size, self._batch)
        size = float(sum(session.reducer.sizes))
        self._measured = Measured(tuple(balance.costs()), links, tuple(balance.straggling()), size)
        mine = choose(self._measured, self._batch, present=present, may_split=may_split)
        self.choice = Choice.of(json.loads(session.wire.tell(json.dumps(mine.plain()), 0)))
        if session.rank == 0:
            self._say(self.choice.reason)
        self._grouping = self.choice.groups
        return self.choice if self.choice.arrangement != present.arrangement else None

    def merged(self) -> None:
        """Reset the measurements, because all ranks are one group again."""
        self.choice, self._usual, self._recent = None, None, []

    def status(self, session: GroupSession, seconds: float) -> GroupStatus | None:
        """What this group reports to the other groups."""
        balance = session.balance
        costs = tuple((cost.a, cost.b) for cost in balance.costs()) if balance.plain() else None
        return GroupStatus(costs, tuple(balance.straggling()), seconds, session.size)

    def retune(self, client: SyncerClient, address: str) -> Listener | None:
        """On the first rank of the first group: retune all groups, or return the listener at which all ranks merge."""
        choice = self.better_choice(client.statuses) if client.where.group == FIRST else None
        if choice is None:
            return None
        # The listener is opened before the other groups are told: a group may connect as soon as it is told.
        listener = open_listener(address) if choice.groups != self._grouping else None
        merge_at = listener.endpoint if listener else None
        client.retune(local_steps=choice.local_steps, quorum=choice.quorum, merge_at=merge_at)
        return listener

    def better_choice(self, statuses: Mapping[str, GroupStatus | None]) -> Choice | None:
        """A better choice than the present one, computed from the reports of all groups; None if there is none."""
        present, measured = self.choice, self._measured
        if present is None or measured is None:
            return None
        names = [GROUP_NAME.format(index) for index in range(len(present.groups))]
        groups = [status for name in names if (status := statuses.get(name)) is not None and _has_spoken(status)]
        if len(groups) < len(names):
            return None
        exchange = max(group.seconds for group in groups)
        now = _updated(measured, present, groups, slower=exchange / (self._usual or exchange))
        self._recent.append(exchange)
        if self._usual is None:
            if len(self._recent) >= EVERY // 2:
                self._usual, self._recent = statistics.median(self._recent), []
                self._measured = replace(now, links=measured.links)
            return None
        if not _differs(now, measured, exchange / self._usual):
            return None
        choice = choose(now, self._batch, present=present)
        if choice.arrangement == present.arrangement:
            return None
        self.choice, self._measured, self._usual, self._recent = choice, now, None, []
        self._say(choice.reason)
        return choice

    def _say(self, reason: str) -> None:
        self.reasons.append(reason)
        sys.stderr.write(f"paceline: {reason}\n")
        sys.stderr.flush()


def _has_spoken(status: GroupStatus) -> bool:
    """Whether a group has reported the costs of its samples and of an exchange; it knows them after two exchanges."""
    return bool(status.costs) and status.seconds > 0


def _most_late(straggling: Sequence[tuple[float, float]]) -> float:
    return max(share for share, _ in straggling)


def _updated(measured: Measured, present: Choice, groups: Sequence[GroupStatus], *, slower: float) -> Measured:
    """The measurements with the present costs of the groups, and with links slowed by as much as the exchanges."""
    costs, late = list(measured.costs), list(measured.straggling)
    for ranks, status in zip(present.groups, groups, strict=True):
        for rank, (a, b), straggling in zip(ranks, status.costs or (), status.straggling, strict=False):
            costs[rank] = Cost(a, b, chunk=costs[rank].chunk, least=costs[rank].least)
            late[rank] = straggling
    links = measured.links
    between = tuple((bandwidth / slower, latency) for bandwidth, latency in links.between)
    inside = between if len(set(links.sites)) == 1 else links.inside
    links = replace(links, inside=inside, between=between)
    return replace(measured, costs=tuple(costs), straggling=tuple(late), links=links)


def _differs(now: Measured, then: Measured, slower: float) -> bool:
    """Whether the cost of a rank or of the links has changed since `then`."""
    pairs = zip(now.costs, then.costs, strict=True)
    drifted = any(not old.b / DRIFT < new.b < old.b * DRIFT for new, old in pairs)
    return drifted or not 1 / DRIFT_OF_LINK < slower < DRIFT_OF_LINK


def measure_links(wire: Wire, addresses: Sequence[str], *, gradient_bytes: float) -> Links:
    """Time messages between all pairs, one pair after the other. All ranks call this and get the same result."""
    pairs, large = pairs_of(addresses), large_message(gradient_bytes)
    times = torch.zeros(len(pairs), 2, dtype=torch.float64)
    for index, (one, other) in enumerate(pairs):
        for column, size in enumerate((SMALL, large)):
            seconds = wire.ping(one, other, size)
            if wire.rank == one:
                times[index, column] = seconds
    wire.all_reduce(times)()
    timings = dict(zip(pairs, [(row[0], row[1]) for row in times.tolist()], strict=True))
    return links_from(addresses, timings, large=large)
