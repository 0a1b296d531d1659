"""Trainers of others on two unequal devices: how fully they are used with Paceline's adapter, and with their own DDP.

    .venv/bin/python benchmarks/trainers.py [--quick]

Achieved throughput over the sum of what each device does alone under the same trainer. Devices are emulated by timed
waits at 4:1, gradients are real and travel over Gloo. Needs `make trainers`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lib import ranks
from lib.result import median_figure, parser_of, publish

from paceline.bench.environments import worker_path

SPEEDS, PER_SAMPLE, GRADIENTS, WARMUP = (4.0, 1.0), 0.002, 1e6, 12
"""Relative speeds, seconds per sample at speed 1, bytes, and first steps that are not counted."""
BATCH = 500
"""0.2 s of both devices together."""


def main() -> None:
    """Run every trainer in turn."""
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one turn of ten steps")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.turns, args.steps = 1, 10
    if args.worker:
        worker(args)
    found: dict[str, list[float]] = {}
    for _ in range(args.turns):
        for trainer in RUN:
            with ThreadPoolExecutor() as pool:
                alone = sum(pool.map(lambda speed, name=trainer: launch(args, name, "paceline", (speed,)), SPEEDS))
            for scheme in ("paceline", "ddp"):
                rate = launch(args, trainer, scheme, SPEEDS)
                found.setdefault(f"utilisation, {trainer}, {scheme}", []).append(rate / alone)
    publish(args, [median_figure(name, values) for name, values in found.items()], turns=found)


def launch(args: argparse.Namespace, trainer: str, scheme: str, speeds: tuple[float, ...]) -> float:
    """Samples per second, as the first rank saw it."""
    given = ["--steps", str(args.steps), "--worker", trainer, scheme, ",".join(map(str, speeds))]
    python, env = (
        Path(sys.prefix) / "trainers" / "bin" / "python",
        {"PYTHONPATH": str(worker_path()), "TORCHELASTIC_RUN_ID": "trainers"},
    )

    def command(rank: int, words: list[str]) -> list[str]:
        local = [f"LOCAL_RANK={rank}", f"LOCAL_WORLD_SIZE={len(speeds)}", "GROUP_RANK=0"]
        return ["env", *local, str(python), *words[1:]]

    return float(ranks.run(__file__, given, len(speeds), on=command, env=env)[0])


def worker(args: argparse.Namespace) -> None:
    """One rank."""
    import torch
    from lib.layers import network

    from paceline.runtime.emulate import Emulated

    trainer, scheme, speeds = args.worker
    speed = [float(each) for each in speeds.split(",")][int(os.environ["RANK"])]
    size = int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network(GRADIENTS, Emulated(per_sample=PER_SAMPLE, speed=speed))

        def forward(self, inputs: Any, labels: Any) -> Any:
            return {"loss": (self.layers(inputs) - labels).square().mean()}

    batch = BATCH if size > 1 else round(BATCH * speed / sum(SPEEDS))
    data = [{"inputs": torch.randn(1), "labels": torch.randn(1)} for _ in range(batch * 4)]
    ends: list[float] = []
    RUN[trainer](Net(), data, scheme, batch, args.steps + WARMUP, ends)
    timed = ends[WARMUP : WARMUP + args.steps]
    ranks.finish(batch * (len(timed) - 1) / (timed[-1] - timed[0]))


def run_lightning(net: Any, data: Any, scheme: str, batch: int, steps: int, ends: list[float]) -> None:
    """Lightning's Trainer."""
    import lightning.pytorch as pl
    import torch

    from paceline.integrations.lightning_strategy import PacelineStrategy

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> Any:
            return self.net(**batch)["loss"]

        def on_train_batch_end(self, *rest: Any) -> None:
            ends.append(time.perf_counter())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    size = int(os.environ["WORLD_SIZE"])
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    how = {"strategy": PacelineStrategy(batch)} if scheme == "paceline" else {"strategy": "ddp", "devices": size}
    trainer = pl.Trainer(max_epochs=-(-steps // 4), accelerator="cpu", **how, **quiet)
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=batch // size))


def run_transformers(net: Any, data: Any, scheme: str, batch: int, steps: int, ends: list[float]) -> None:
    """The Trainer of transformers."""
    size, kind, more = int(os.environ["WORLD_SIZE"]), None, {}
    if scheme == "paceline":
        from paceline.integrations.transformers_trainer import PacelineTrainer

        kind, more = PacelineTrainer, {"global_batch": batch}
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, num_train_epochs=-(-steps // 4), per_device_train_batch_size=batch // size, use_cpu=True,
            report_to=[], save_strategy="no", disable_tqdm=True, optim="sgd", remove_unused_columns=False,
            dataloader_pin_memory=False, logging_strategy="no",
        )  # fmt: skip
        (kind or Trainer)(net, args, train_dataset=data, callbacks=[Clock()], **more).train()


RUN = {"lightning": run_lightning, "transformers": run_transformers}

if __name__ == "__main__":
    main()
