"""Records of other tools, stored runs and checkpoints: sound examples, and what a command would compute from them."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import subprocess
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paceline.bench.environments import environment_python, prepare, worker_path
from paceline.errors import InputError
from paceline.explain.imports import Labels, import_files
from paceline.measurements.integrity import seal, write_sums
from paceline.measurements.run import Step
from paceline.measurements.store import Store
from paceline.measurements.tablefiles import STEPS
from paceline.report.documents import campaigns_document, results_document
from paceline.report.terminal.imports import imported_document
from tests.made import Made, write

LOGS = (
    "world size: 4\nseq_len: 2048\nlocal batch size: 8\n"
    "[rank0]:[titan] 2026-01-02 03:04:05,678 - root - INFO - step:  1  loss: 8.1  memory: 1.0GiB  tps: 5,123  "
    "tflops: 31.2  mfu: 10.01%\n"
    "[rank0]:[titan] 2026-01-02 03:04:09,678 - root - INFO - step:  2  loss: 8.0  memory: 1.0GiB  tps: 5,200  "
    "tflops: 31.9  mfu: 10.21%\n",
    " iteration 1/ 100 | consumed samples: 64 | elapsed time per iteration (ms): 812.4 | throughput per GPU "
    "(TFLOP/s/GPU): 91.2 | global batch size: 64 |\n iteration 2/ 100 | consumed samples: 128 | elapsed time per "
    "iteration (ms): 801.9 | throughput per GPU (TFLOP/s/GPU): 92.0 | global batch size: 64 |\n",
    " 3%|3  | 5/100 [00:10<03:00,  1.90s/it]\r 6%|6  | 6/100 [00:12<03:00,  1.80s/it]\r",
    "Epoch 0:  3%|3  | 5/100 [00:10<03:00,  1.90s/it, v_num=0]\rEpoch 0:  6%|6  | 6/100 [00:12<03:00,  2.10it/s]\r",
)
NCCL = """# nThread 1 nGpus 4 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid  100 on      host1 device  0 [0x07] NVIDIA A100
#  Rank  1 Group  0 Pid  101 on      host1 device  1 [0x0f] NVIDIA A100
# all_reduce_perf
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    35.10   29.87   29.87      0    35.00   29.96   29.96      0
    16777216       4194304     float     sum      -1    151.2  110.96  110.96      0    150.9  111.18  111.18      0
"""
OPERATIONS = "dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mb_id,gmc\n" + "".join(
    f"0,{stage},{stage},{step},{kind},{step + at + stage / 10},0.05,{number},0,{stage}\n"
    for step in range(3)
    for stage, moved in enumerate(((("forward-send", 0.05), ("backward-recv", 0.25)),
                                   (("forward-recv", -0.05), ("backward-send", 0.15))))
    for number, (kind, at) in enumerate((("forward-compute", 0.0), ("backward-compute", 0.3 - stage / 5),
                                         ("grads-sync", 0.6), *moved))
)  # fmt: skip


def logs(folder: Path) -> list[bytes]:
    """Lines of four programs."""
    return [text.encode() for text in LOGS]


def nccl_json(folder: Path) -> list[bytes]:
    """As `-J` writes it."""
    column = {"time": 35.1, "alg_bw": 29.9, "bus_bw": 44.8, "nwrong": 0}
    small = {"time": 20.5, "alg_bw": 0.05, "bus_bw": 0.07, "nwrong": 0}
    rows = [{"size": size, "out_of_place": one, "in_place": one} for size, one in ((1024, small), (1 << 20, column))]
    devices = [{"rank": rank, "hostname": "host1", "device_info": "A100"} for rank in range(4)]
    config = {"nthreads": 1, "ngpus": 1, "devices": devices}
    return [json.dumps({"nccl_version": "2.27", "test": "all_reduce_perf", "config": config, "results": rows}).encode()]


def dump_document() -> dict[str, Any]:
    """Of one rank that waits in its second collective."""
    frames = [{"name": "step", "filename": "train.py", "line": 7}]
    entries = [
        {"process_group": ["0", "default"], "collective_seq_id": number, "profiling_name": "nccl:all_reduce",
         "state": state, "input_sizes": [[1024]], "time_created_ns": 10**18 + number, "frames": frames}
        for number, state in ((1, "completed"), (2, "scheduled"))
    ]  # fmt: skip
    groups = {"0": {"name": "0", "desc": "default", "ranks": "[0, 1]"}}
    return {"version": "2.4", "rank": 0, "pg_config": groups, "entries": entries}


def dumps(folder: Path) -> list[bytes]:
    """As JSON."""
    return [json.dumps(dump_document()).encode()]


def pickles(folder: Path) -> list[bytes]:
    """As PyTorch writes them."""
    return [pickle.dumps(dump_document(), protocol=2), pickle.dumps(dump_document(), protocol=4)]


def profile(folder: Path) -> list[bytes]:
    """A trace of torch.profiler: steps, an operator in each, and an exchange."""
    parts = (("user_annotation", "ProfilerStep#{}", 0, 900), ("cpu_op", "aten::conv2d", 10, 200),
             ("cpu_op", "autograd::engine::evaluate_function", 300, 300),
             ("user_annotation", "gloo:all_reduce", 650, 100))  # fmt: skip
    events = [
        {"ph": "X", "cat": cat, "name": name.format(step), "pid": 1, "tid": 1, "ts": 1000 * step + at, "dur": dur}
        for step in range(1, 6)
        for cat, name, at, dur in parts
    ]
    return [json.dumps({"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}).encode()]


def of_import(path: Path) -> Any:
    """As `paceline import` reads it, into a store of its own."""
    store = path.parent / "imports"
    shutil.rmtree(store, ignore_errors=True)
    return imported_document(import_files([path], Store(store), Labels()))


def headers(folder: Path) -> list[bytes]:
    """The header of a stored run."""
    return [(_stored(folder).runs / "made-1-0000-000" / "run.json").read_bytes()]


def rows(folder: Path) -> list[bytes]:
    """The steps of a stored run, as columns in JSON; `of_rows` makes a table of them."""
    columns = {name: [] for name in Step.__dataclass_fields__}  # type: dict[str, list[Any]]
    for number in range(3):
        for name, value in asdict(Step("clean", 0, number, False, 0.1 * number, 0.1)).items():
            columns[name].append(value)
    return [json.dumps(columns).encode()]


def campaigns(folder: Path) -> list[bytes]:
    """The document of a campaign, without its checksum; `of_campaign` seals it."""
    document = json.loads((_stored(folder).campaigns / "made-1.json").read_text())
    return [json.dumps({name: value for name, value in document.items() if name != "checksum"}).encode()]


def of_header(path: Path) -> Any:
    """The results of a store in which this is the header of one of the runs, with a checksum that fits."""
    return _results(path.parent, lambda folder: (folder / "run.json").write_bytes(path.read_bytes()))


def of_rows(path: Path) -> Any:
    """The results of a store in which one of the runs has these steps."""
    return _results(path.parent, lambda folder: _write_rows(folder / "steps.parquet", path.read_bytes()))


def of_campaign(path: Path) -> Any:
    """The list of the campaigns of a store in which one has this document."""
    store = _stored(path.parent)
    try:
        text = seal(json.loads(path.read_bytes()))
    except (ValueError, TypeError, RecursionError):
        text = path.read_bytes().decode(errors="replace")
    (store.campaigns / "made-1.json").write_text(text)
    found = campaigns_document(Store(store.root))
    if not any(item["campaign"] == "made-1" for item in found):
        raise InputError("named as damaged")
    return found


def _stored(folder: Path) -> Store:
    """A store with two launches; files of one launch are about to change."""
    root = folder / "store"
    if not root.exists():
        write(root, [Made(ranks=2, batch=8, aggregate=0.01, launches=2)])
    return Store(root)


def _results(folder: Path, change: Any) -> Any:
    shutil.rmtree(folder / "changed", ignore_errors=True)
    shutil.copytree(_stored(folder).root, folder / "changed")
    store = Store(folder / "changed")
    run = store.runs / "made-1-0000-000"
    change(run)
    write_sums(run)
    found = results_document(store, "made-1")
    if store.damaged:
        raise InputError("named as damaged")
    return found


def _write_rows(path: Path, text: bytes) -> None:
    """With the columns of a run if the values fit, else with whatever columns they make."""
    for schema in (STEPS, None):
        with contextlib.suppress(ValueError, TypeError, OverflowError, AttributeError, RecursionError, KeyError):
            pq.write_table(pa.table(json.loads(text), schema=schema), path)
            return
    path.write_bytes(text)


@cache
def _loader() -> subprocess.Popen[str]:
    """A process with torch that loads checkpoints."""
    argv = [environment_python(prepare("pytorch")), Path(__file__).with_name("checkpoint_loader.py")]
    env = {**os.environ, "PYTHONPATH": str(worker_path())}
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, text=True)


def checkpoints(folder: Path) -> list[bytes]:
    """The header of a checkpoint; `of_checkpoint` makes a file of it whose checksum fits."""
    _ask(f"make {folder / 'made.safetensors'}")
    whole = (folder / "made.safetensors").read_bytes()
    return [whole[8 : 8 + int.from_bytes(whole[:8], "little")]]


def of_checkpoint(path: Path) -> Any:
    """Load the checkpoint with this header."""
    outcome = _ask(f"load {path}")
    if outcome.startswith("StoreError: "):
        raise InputError(outcome)
    assert outcome == "loaded", outcome


def _ask(order: str) -> str:
    loader = _loader()
    assert loader.stdin is not None
    assert loader.stdout is not None
    loader.stdin.write(order + "\n")
    loader.stdin.flush()
    return loader.stdout.readline().strip()
