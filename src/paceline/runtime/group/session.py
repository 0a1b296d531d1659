"""The group of a process, and the session of one view: its wire, its balance and its gradient exchange."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from paceline.cost.buckets import LinkCost, bucket_members, schedule_buckets
from paceline.errors import InputError
from paceline.runtime.checkpoint import broadcast_state
from paceline.runtime.group.balance import Balance, UnitBalance
from paceline.runtime.group.batchnorm import WireHolder
from paceline.runtime.group.columns import ColumnReducer, columns_of, complete_units
from paceline.runtime.group.reducer import Reducer
from paceline.runtime.group.shards import spread_rows
from paceline.runtime.group.trainable import refuse_apart
from paceline.runtime.group.wire import BoardStore, Broken, Wire
from paceline.runtime.members.member import Member
from paceline.runtime.members.view import HELD, Peer, View
from paceline.runtime.samples import total_count
from paceline.runtime.training import Training

__all__ = ["GroupSession", "RankGroup"]

USUAL_LIMITS = (2**20, 25 * 2**20)
"""Bytes of the first bucket and of the others until times were seen, as in DistributedDataParallel."""
log = logging.getLogger("paceline.runtime")
ALWAYS = ("costs", "link", "terms", "identity", "sketch")
"""Parts of a report that ranks need even if they hold equal states."""
INPUT_BOUND = 0.5
"""If loading takes more than this share of a rank's step, the explanation names input as its limit."""
ARRANGE_AFTER = (4, 16)
"""Numbers of committed steps of a view after which buckets are chosen again from measured times."""


class GroupSession:
    """The state of a group during one view."""

    def __init__(
        self,
        member: Member,
        view: View,
        training: Training,
        *,
        holder: WireHolder,
        synced: bool,
        report: dict[str, Any],
    ) -> None:
        """`report`: what this rank sends to the others if it is the most advanced rank."""
        self.view, self._training, self._holder = view, training, holder
        self.rank, self.size = member.rank, view.size
        self._wires: list[Wire] = []
        try:
            self._set_up(member, report, synced=synced)
        except (Broken, InputError):
            self._leave()
            raise
        self._committed = 0
        self._reported: tuple[tuple[int, ...], float, float, float, float] | None = None
        """Of the previous step: shares, seconds of this rank, seconds of loading, and squared norms of the gradient of
        this rank and of the whole gradient."""
        self.loading: list[float] = []
        """Seconds of loading of each rank, in the newest step whose notes were exchanged."""
        self._began = time.perf_counter(), time.process_time()

    def _set_up(self, member: Member, report: dict[str, Any], *, synced: bool) -> None:
        # All ranks run these lines in the same order, because each is a collective. The state is shared before the
        # balance is made, because the balance starts from the costs in the report of the most advanced rank.
        self.wire = self._connect(member, "gradients ")
        self.peers = self._share_peers()
        """The peers of the view in the order of ranks."""
        chunks, ahead, *places = self._share_facts()
        self.ahead = max(ahead)
        """How many steps ahead shares are decided: the largest prefetch depth of all ranks."""
        self.units = complete_units(*places, mine=self._training.unit, rank=self.rank)
        """The units of the view: lists of ranks that hold one model together."""
        self._training.writes = any({0, self.rank} <= set(unit) for unit in self.units)
        source = self._share_state(report)
        self._holder.wire = self._connect(member, "layers ") if synced else None
        self._holder.broken = None
        # The exchanges above have completed, so all other members have received the view.
        member.establish(self.view)
        self.balance = self._balance(source, chunks, synced)
        self._link = self._measure_link(source)
        self.reducer = self._reducer(member)

    def _reducer(self, member: Member) -> Reducer | ColumnReducer:
        bucket, parameters = self._training.settings.bucket, self._training.parameters
        limits = USUAL_LIMITS if bucket is None else (bucket,)
        if len(self.units) == self.size:
            return Reducer(parameters, self.wire, limits=limits, prompt=bucket is None)
        columns = columns_of(self.units, [parameter.shape for parameter in parameters])
        return ColumnReducer(
            parameters,
            self.wire,
            columns,
            lambda number, ranks: self._connect(member, f"column {number} ", ranks),
            self._training.unit,
            limits=limits,
            prompt=bucket is None,
        )

    def exchange(self, shares: tuple[int, ...], cost: float, loading: float) -> None:
        """Finish the exchange of gradients; the notes of all ranks about the previous step arrive with it."""
        noise = self._training.settings.noise
        self.reducer.flush()
        local = self._squared_norm() if noise and shares[self.rank] else 0.0
        self.reducer.finish()
        *noted, counts, rates, norms = self.reducer.noted()
        refuse_apart(rates, norms, self._training.parameters[0].dtype)
        self._normalise(shares, counts)
        if self._training.settings.clip is not None and isinstance(self.reducer, ColumnReducer):
            self._training.norm = self.reducer.norm()
        if self._reported is not None:
            before, (costs, self.loading, small, large) = self._reported[0], noted
            self.balance.learn(before, costs)
            if noise:
                # All ranks use the norm that rank 0 computed, so that their estimates are equal.
                self._training.noise.observe_ranks(before, small, large[0])
        # With synchronised layers, or with counts, the loss was weighted before the backward pass.
        own = shares[self.rank] if self._holder.wire is not None and counts[self.rank] < 0 else counts[self.rank]
        if own > 0:
            local *= (sum(shares) / own) ** 2
        self._reported = (shares, cost, loading, local, self._squared_norm() if noise else 0.0)

    def begin(self, weight: float, *, step_began: float, count: float) -> None:
        """Exchange the gradients of the next backward pass, with the notes about the previous step."""
        before = self._reported[1:] if self._reported else (0.0, 0.0, 0.0, 0.0)
        self.reducer.begin(weight, step_began=step_began, notes=(*before, count, *self._training.alike()))

    def _normalise(self, shares: tuple[int, ...], counts: Sequence[float]) -> None:
        """Divide gradients by the number of counted items, if losses are means over items and not over samples."""
        total = total_count(shares, counts)
        for parameter in self._training.parameters:
            if parameter.grad is not None and total:
                parameter.grad.mul_(sum(shares) / total)

    def _squared_norm(self) -> float:
        gradients = [parameter.grad for parameter in self._training.parameters if parameter.grad is not None]
        return float(sum(gradient.double().square().sum() for gradient in gradients))

    def after_commit(self) -> None:
        """Choose the buckets again when enough steps were measured."""
        self._committed += 1
        if self._committed == 1 and self.size > 1:
            ready = torch.tensor(self.reducer.ready_seconds, dtype=torch.float64)
            self.wire.broadcast(ready, 0)
            self.reducer.arrange_as_ready(ready.tolist())
        if self._link is not None and self._committed in ARRANGE_AFTER:
            self._arrange(self._link)
            if self.rank == 0:
                log.info("after %d steps: %s", self._committed, self.explain(self._training.global_batch))

    def explain(self, batch: int) -> str:
        """Text that explains the split: the share of each rank, the cost of the exchange, and what would help."""
        shares = self.balance.shares(batch)
        if self.size == 1 or not self.balance.plain():
            return f"{self.size} rank takes all {batch} samples" if self.size == 1 else "nothing measured yet"
        costs = self.balance.costs()
        finish = max(cost.seconds(n) for cost, n in zip(costs, shares, strict=True))
        rates = ", ".join(f"{n} samples at {cost.b * 1e3:.2f} ms" for cost, n in zip(costs, shares, strict=True))
        text = f"shares by measured cost: {rates}; all finish after {finish * 1e3:.0f} ms"
        for rank, (cost, n, loading) in enumerate(zip(costs, shares, self.loading or [0.0] * len(costs), strict=True)):
            if n and loading > INPUT_BOUND * cost.seconds(n):
                text += (
                    f"; rank {rank} has as many as its loader delivers, in {loading * 1e3:.0f} ms: more workers help"
                )
        if self._link is None:
            return text
        exchange = self._link.seconds(sum(self.reducer.sizes))
        text += f"; {len(self.reducer.layout)} buckets, {exchange * 1e3:.0f} ms of exchange beside them"
        if exchange > finish:
            text += "; the link is the bottleneck: Settings(scheme='auto') compares groups that exchange less often"
        return text

    def link_plain(self) -> list[float] | None:
        """The measured cost of an all-reduce."""
        return [self._link.alpha, self._link.beta, self._link.effort] if self._link else None

    def facts(self) -> dict[str, Any]:
        """Results of the balance and of the exchange."""
        return {"costs": self.balance.plain(), "link": self.link_plain(), "buckets": len(self.reducer.layout)}

    def close(self) -> None:
        """End the session: remove hooks and close the wires."""
        self.reducer.close()
        self._leave()

    def _leave(self) -> None:
        self._holder.wire = None
        for wire in self._wires:
            wire.leave()

    def _connect(self, member: Member, prefix: str, ranks: Sequence[int] = ()) -> Wire:
        """A new wire between all ranks of the view, or between some."""
        store = BoardStore(member, self.view.number, prefix)
        wire = self._wire_over(store, member, ranks or range(self.size))
        self._wires.append(wire)
        return wire

    def _wire_over(self, store: BoardStore, member: Member, ranks: Sequence[int]) -> Wire:
        """The transport of the settings; by default NCCL for a model on a GPU, and Gloo otherwise."""
        transport, interrupted = self._training.settings.transport, member.interrupted
        if transport == "mpi":
            from paceline.runtime.group.mpi import MpiWire

            return MpiWire(store, self.rank, self.size, interrupted=interrupted)
        on_gpu = self._training.device.type == "cuda"
        if transport == "nccl" and not on_gpu:
            raise InputError("transport='nccl' needs a model on a GPU", hint="model.cuda(), or leave transport out")
        nccl = on_gpu and transport != "gloo"
        address = member.peer.address
        return Wire(store, ranks.index(self.rank), len(ranks), address=address, interrupted=interrupted, nccl=nccl)

    def _share_peers(self) -> tuple[Peer, ...]:
        """Broadcast the peers from the first rank; in a large view the others know only the first ranks."""
        if len(self.view.peers) == self.size <= HELD:
            return self.view.peers
        plain = self.wire.tell(json.dumps([list(vars(peer).values()) for peer in self.view.peers]), 0)
        return tuple(Peer(*values) for values in json.loads(plain))

    def _share_state(self, report: dict[str, Any]) -> dict[str, Any]:
        """Copy the state of the most advanced rank to all ranks; return the report of that rank."""
        source, alike = self.view.source, self.view.alike
        if self.size == 1:
            return report
        said = {key: value for key, value in report.items() if not alike or key in ALWAYS}
        told: dict[str, Any] = json.loads(self.wire.tell(json.dumps(said), source))
        self._agree(lambda: self._training.check_terms(told["terms"]))
        self._agree(lambda: self._training.check(told["identity"]))
        self._training.compare_samples(told["sketch"])
        if not alike:
            unit = next(unit for unit in self.units if source in unit)
            speaks, mine = source == self.rank, None
            if self.rank in unit:
                mine = [spread_rows(tensor, speaks=speaks) for tensor in self._training.tensors()]
            # Each rank of a unit contributes its rows, with zeros elsewhere: the sum is the whole state.
            send = self._sum if len(unit) > 1 else lambda tensor: self.wire.broadcast(tensor, source)
            tensors = broadcast_state(told["state"], mine, send, receive=not speaks)
            self._agree(lambda: None if speaks else self._training.take(told, tensors))
        return told

    def _agree(self, check: Callable[[], None]) -> None:
        """Run a check on all ranks and raise its error: at the start of a job on all ranks, later on refused ones."""
        own: InputError | None = None
        try:
            check()
        except InputError as error:
            own = error
        refused = torch.zeros(self.size)
        refused[self.rank] = float(own is not None)
        self.wire.all_reduce(refused)()
        reasons = {rank: self.wire.tell(str(own), rank) for rank in refused.nonzero().flatten().tolist()}
        if not reasons:
            return
        with contextlib.suppress(Broken):  # a rank that has all reasons may leave before the others have
            self.wire.barrier()
        if own is not None:
            raise own
        rank, why = next(iter(reasons.items()))
        if self.view.fresh:
            raise InputError(f"rank {rank} cannot take part: {why}")
        log.warning("rank %d cannot take part: %s", rank, why)

    def _sum(self, tensor: torch.Tensor) -> None:
        self.wire.all_reduce(tensor)()

    def _share_facts(self) -> list[list[int]]:
        """Exchange facts of each rank: samples per pass, prefetch depth, unit, and index and number of its shards."""
        training, unit = self._training, self._training.unit
        facts = torch.zeros(5, self.size, dtype=torch.int64)
        mine = [training.settings.chunk or 0, training.ahead, unit.first, unit.index, unit.ranks]
        facts[:, self.rank] = torch.tensor(mine)
        self.wire.all_reduce(facts)()
        shared: list[list[int]] = facts.tolist()
        return shared

    def _balance(self, source: dict[str, Any], chunks: Sequence[int], synced: bool) -> Balance | UnitBalance:
        ids, fixed = [peer.id for peer in self.peers], not self._training.settings.balance
        split = self._training.split
        if len(self.units) < self.size:
            balance: Balance | UnitBalance = UnitBalance(self.units, ids, fixed=fixed, split=split)
        else:
            limits = [limit or None for limit in chunks]
            balance = Balance(ids, chunks=limits, least=1 if synced else 0, fixed=fixed, split=split)
        balance.assume(source["costs"])
        return balance

    def _measure_link(self, source: dict[str, Any]) -> LinkCost | None:
        if self.size == 1 or self._training.settings.bucket is not None:
            return None
        if source["link"] is not None:
            return LinkCost(*source["link"])
        total = sum(parameter.numel() * parameter.element_size() for parameter in self._training.parameters)
        return self.wire.probe(total)

    def _arrange(self, link: LinkCost) -> None:
        """Choose the best buckets for the mean ready times of gradients over all ranks; equal on all ranks."""
        seen = torch.tensor([*self.reducer.ready_seconds, self._busy()], dtype=torch.float64)
        self.wire.all_reduce(seen)()
        *seconds, busy = (seen / self.size).tolist()
        order = sorted(range(len(seconds)), key=lambda index: (seconds[index], -index))
        sizes = [self.reducer.sizes[index] for index in order]
        last = schedule_buckets(
            sizes, [seconds[index] for index in order], lambda many: map(link.seconds, many), effort=link.effort * busy
        )
        self.reducer.arrange([[order[i] for i in bucket] for bucket in bucket_members(last)])

    def _busy(self) -> float:
        """Share of the time for which this process computes on a CPU, where messages delay the computation."""
        if self._training.device.type != "cpu":
            return 0.0
        moment, spent = self._began
        return min(1.0, (time.process_time() - spent) / (time.perf_counter() - moment))


class RankGroup:
    """The group of this process over all views: its member, and the session of the present view."""

    def __init__(self, member: Member, training: Training, *, holder: WireHolder, synced: bool) -> None:
        self.member, self.training = member, training
        self._holder, self._synced = holder, synced
        self._session: GroupSession | None = None
        self.views: list[tuple[int, int, float]] = []
        """Each view of this rank: number, number of ranks, and time.monotonic() at its begin."""
        self.last_end = time.perf_counter()
        """When the last step, exchange or change of the group ended; the time of the next step starts here."""

    @property
    def session(self) -> GroupSession:
        """The session of the present view."""
        if self._session is None:
            raise InputError("the group is joined by `with join(...) as pace:`")
        return self._session

    def report(self) -> dict[str, Any]:
        """The report of this rank for the next view."""
        session = self._session
        if session is None:
            return self.training.report(self.training.costs, None)
        return self.training.report(session.balance.plain(), session.link_plain())

    def enter(self, view: View | None = None) -> None:
        """Enter the next view; if it breaks while it is set up, enter the one after it."""
        while True:
            # The report needs the measurements of the session, so it is made first. The session closes before the next
            # view is requested, so that no hook of the old exchange runs in the new view.
            report = self.report()
            if self._session is not None:
                self._session.close()
            view = view or self.member.next_view(self.training.standing())
            try:
                self._session = GroupSession(
                    self.member, view, self.training, holder=self._holder, synced=self._synced, report=report
                )
                break
            except Broken as error:
                self.member.report_failure(view, str(error))
                view = None
        self.views.append((view.number, view.size, time.monotonic()))
        self.last_end = time.perf_counter()

    def check_certain(self) -> None:
        """Raise `Broken` if the other ranks may have continued without this process."""
        if self.member.doubtful:
            raise Broken("this process may have been declared failed while it waited")

    def recover(self, error: Broken) -> None:
        """Enter the next view after the present one has failed."""
        self.member.report_failure(self.session.view, str(error))
        self.enter()

    def move(self, member: Member) -> None:
        """Continue with another group; costs of samples are kept, costs of links are measured again."""
        self.member = member
        session, self._session = self.session, None
        self.training.costs = session.balance.plain()
        session.close()
        self.enter()

    def leave(self) -> None:
        """Leave the group."""
        if self._session is not None:
            self._session.close()
        self.member.leave()
