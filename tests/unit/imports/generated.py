"""Traces, dumps and logs that tests generate, with answers that are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

STEP_US = 100_000.0
FIRST_STEP = 3


def event(name: str, begin: float, end: float, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    """One complete event, in microseconds."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": 1, "ts": begin, "dur": end - begin, "args": args}


def step_events(number: int, *, slow: float = 0.0, origin: float = 1e12) -> list[dict[str, Any]]:
    """A step of 100 ms: forward 30, backward 40, exchange 35 of which 20 hidden, update 5, reading 4, idle 6.

    With `slow`, backward takes so many microseconds longer, and the exchange is exposed by as much less.
    """
    at = origin + (number - FIRST_STEP) * STEP_US
    return [
        event(f"ProfilerStep#{number}", at, at + STEP_US, "user_annotation"),
        event("enumerate(DataLoader)#_Iter.__next__", at, at + 4_000, "user_annotation"),
        event("aten::stack", at + 1_000, at + 3_000),
        event("aten::conv2d", at + 4_000, at + 34_000),
        event("aten::convolution", at + 5_000, at + 33_000),
        event("DistributedDataParallel.forward", at + 4_000, at + 40_000, "user_annotation"),
        event("autograd::engine::evaluate_function: ConvBackward", at + 34_000, at + 74_000 + slow),
        event("aten::mul", at + 35_000, at + 60_000),
        event("c10d::allreduce_", at + 54_000, at + 54_050),
        event("record_param_comms", at + 54_001, at + 54_040, **{"In msg nelems": 1000, "dtype": "Float"}),
        event("gloo:all_reduce", at + 54_000, at + 89_000, "user_annotation"),
        event("Optimizer.step#SGD.step", at + 89_000, at + 94_000, "user_annotation"),
        event("aten::add_", at + 90_000, at + 93_000),
    ]


def kineto(rank: int = 0, world: int = 2, steps: int = 4, slow: float = 0.0) -> dict[str, Any]:
    """A profile of one rank on a host without devices."""
    events = [one for number in range(FIRST_STEP, FIRST_STEP + steps) for one in step_events(number, slow=slow)]
    info = {"backend": "gloo", "rank": rank, "world_size": world}
    return {"schemaVersion": 1, "distributedInfo": info, "traceEvents": events, "traceName": "t"}


def write_ranks(folder: Path, world: int = 2, **options: Any) -> list[Path]:
    """A profile of every rank."""
    paths = [folder / f"trace-rank{rank}.json" for rank in range(world)]
    for rank, path in enumerate(paths):
        path.write_text(json.dumps(kineto(rank, world, **options)))
    return paths


def entry(number: int, name: str = "nccl:all_reduce", state: str = "completed", group: str = "0") -> dict[str, Any]:
    """One collective of a flight recorder's dump."""
    frames = [{"name": "all_reduce", "filename": "/lib/torch/distributed.py", "line": 1},
              {"name": "train", "filename": "/home/me/train.py", "line": 88}]  # fmt: skip
    return {"record_id": number, "pg_id": 0, "process_group": (group, "undefined"), "collective_seq_id": number,
            "p2p_seq_id": 0, "op_id": number, "profiling_name": name, "time_created_ns": 10**18 + number,
            "input_sizes": [[1024]], "state": state, "is_p2p": False, "frames": frames}  # fmt: skip


def dump(entries: list[dict[str, Any]], groups: dict[str, str] | None = None) -> dict[str, Any]:
    """The dump of one rank."""
    config = {key: {"name": key, "desc": key, "ranks": ranks} for key, ranks in (groups or {"0": "[0, 1, 2]"}).items()}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}


NCCL_TEXT = """# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
#  Rank  0 Group  0 Pid   6899 on  host-a device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   6900 on  host-a device  1 [0000:05:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    20.00   52.43   52.43      0    19.9   52.6   52.6      0
    16777216       4194304     float     sum      -1    70.00  239.67  239.67      0    70.1  239.3  239.3      0
   268435456      67108864     float     sum      -1   700.00  383.48  383.48      0   699.0  384.0  384.0      0
  1073741824     268435456     float     sum      -1  2700.00  397.68  397.68      0  2699.0  397.8  397.8      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 268.3
"""
TITAN_HEAD = "[rank0]:[titan] 2025-10-30 14:3{time},000 - root - INFO - "
TITAN = "".join(
    [
        TITAN_HEAD.format(time="2:50") + "local batch size 8, global batch size 64, sequence length 2048\n",
        TITAN_HEAD.format(time="2:59")
        + "\x1b[31mstep:  1  \x1b[32mloss:  8.02  tps: 4,096  tflops: 0.41  mfu: 0.04%\n",
        TITAN_HEAD.format(time="3:01") + "step:  2  loss:  7.02  tps: 8,192  tflops: 101.61  mfu: 10.27%\n",
        TITAN_HEAD.format(time="3:02") + "validate step:  2  loss:  7.02  tps: 1\n",
        TITAN_HEAD.format(time="3:03") + "step:  3  loss:  6.02  tps: 8,192  tflops: 101.61  mfu: 10.31%\n",
    ]
)
MEGATRON_LINE = (
    " [2025-04-13 23:41:12] iteration {step:8d}/    1000 | samples: 160 | elapsed time per iteration (ms): {ms} "
    "| throughput per GPU (TFLOP/s/GPU): 210.5 | global batch size:    64 | lm loss: 7.4E+00 |\n"
)
MEGATRON = " using world size: 16, data-parallel size: 8\n" + "".join(
    MEGATRON_LINE.format(step=step, ms=ms) for step, ms in ((10, 1147.6), (20, 1000.0))
)
BAR = "  {step}%|#         | {step}/100 [00:02<03:18,  {rate}]\r"
HF_BAR = "".join(BAR.format(step=step, rate=rate) for step, rate in ((1, "2.00s/it"), (2, "1.50s/it"), (3, "2.50it/s")))
LIGHTNING = "".join(
    f"Epoch 0:  {step}%|#    | {step}/100 [00:10<03:10, {rate}, v_num=0]\r"
    for step, rate in ((5, "2.00s/it"), (6, "4.00it/s"))
)
