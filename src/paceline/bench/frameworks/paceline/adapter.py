"""How a case becomes processes of Paceline's runtime."""

from __future__ import annotations

from paceline.bench.job import Order, Process, rank_processes
from paceline.spec.study import Case

__all__ = ["Paceline"]


class Paceline:
    """The balanced synchronous group over Gloo."""

    name = "paceline"

    def environment(self, mode: str) -> str:
        """It needs what PyTorch needs."""
        return "pytorch"

    def refusal(self, case: Case) -> str | None:
        """Only what the group does itself."""
        strategy = case.strategy
        if strategy.aggregation not in (None, "allreduce"):
            return f"the group aggregates by all-reduce, not {strategy.aggregation}"
        if strategy.transport not in (None, "gloo"):
            return f"the group runs over gloo, not {strategy.transport}"
        if strategy.compression != "none":
            return f"compression {strategy.compression!r} is not offered"
        if strategy.synchrony == "asynchronous":
            return "the group is synchronous"
        if strategy.overlap is False:
            return "the group always exchanges while it computes"
        if case.input != "resident":
            return f"input {case.input!r} is not offered; the runtime loads its own batches"
        return None

    def processes(self, order: Order) -> list[Process]:
        """One worker per rank; it lives in the runtime, which bench must not import.

        The ranks meet at a port of their own, with the launch's token as secret.
        """
        place = f"{order.meet.address}:{order.meet.ports[1]}"
        meet = {"PACELINE_JOIN": place, "PACELINE_SECRET": order.token, "PACELINE_SIZE": str(order.case.ranks)}
        return rank_processes(order, "paceline.runtime.measured", lambda placed: meet)
