"""The adapter that converts a case to PyTorch processes."""

from __future__ import annotations

from paceline.bench.job import CaseLaunch, rank_processes
from paceline.bench.sites.site import Process
from paceline.spec.strategy import Strategy
from paceline.spec.study import Case

__all__ = ["PyTorch"]


class PyTorch:
    """DDP or FSDP2 over Gloo on CPUs and NCCL on GPUs; one rank runs without a wrapper."""

    name = "pytorch"

    def environment(self, mode: str) -> str:
        """All modes share one environment."""
        return "pytorch"

    def refusal(self, case: Case) -> str | None:
        """Refuse strategies that DDP or FSDP2 does not implement."""
        strategy = case.strategy
        if case.framework == "pytorch/fsdp2":
            return _refused_by_fsdp(strategy)
        if strategy.aggregation not in (None, "none", "allreduce"):
            return f"DDP aggregates by all-reduce, not {strategy.aggregation}"
        if strategy.transport not in (None, "gloo", "nccl"):
            return f"DDP runs over gloo or nccl here, not {strategy.transport}"
        if strategy.compression not in ("none", "float16"):
            return f"compression {strategy.compression!r} is not offered for DDP"
        if strategy.synchrony == "asynchronous":
            return "DDP is synchronous"
        return None

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """One worker per rank."""
        return rank_processes(launch, "paceline.bench.frameworks.pytorch.worker")


def _refused_by_fsdp(strategy: Strategy) -> str | None:
    if strategy.aggregation not in (None, "sharded") or strategy.shard_stage not in (None, 3):
        return "FSDP2 shards parameters, gradients and optimiser state: aggregation 'sharded', shard_stage 3"
    if strategy.transport not in (None, "gloo", "nccl"):
        return f"FSDP2 runs over gloo or nccl here, not {strategy.transport}"
    if strategy.overlap is False or strategy.bucket is not None or strategy.compression != "none":
        return "FSDP2 gathers and scatters layer by layer, overlapped, uncompressed: nothing of it can be switched here"
    return "FSDP2 is synchronous" if strategy.synchrony == "asynchronous" else None
