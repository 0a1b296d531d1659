"""How a case becomes PyTorch processes."""

from __future__ import annotations

from paceline.bench.job import Order, Process, rank_processes
from paceline.spec.study import Case

__all__ = ["PyTorch"]


class PyTorch:
    """DistributedDataParallel over Gloo on CPUs and NCCL on GPUs; one rank runs without a wrapper."""

    name = "pytorch"

    def environment(self, mode: str) -> str:
        """All modes share one environment."""
        return "pytorch"

    def refusal(self, case: Case) -> str | None:
        """Only what DDP does itself."""
        strategy = case.strategy
        if strategy.aggregation not in (None, "allreduce"):
            return f"DDP aggregates by all-reduce, not {strategy.aggregation}"
        if strategy.transport not in (None, "gloo", "nccl"):
            return f"DDP runs over gloo or nccl here, not {strategy.transport}"
        if strategy.compression not in ("none", "float16"):
            return f"compression {strategy.compression!r} is not offered for DDP"
        if strategy.synchrony == "asynchronous":
            return "DDP is synchronous"
        return None

    def processes(self, order: Order) -> list[Process]:
        """One worker per rank."""
        return rank_processes(order, "paceline.bench.frameworks.pytorch.worker")
