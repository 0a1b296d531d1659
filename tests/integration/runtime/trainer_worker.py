"""One rank of somebody else's trainer, or plain torch on the same samples; writes what it has learnt."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, WeightedRandomSampler

from paceline.errors import InputError
from paceline.integrations.shared_loader import SharedLoader
from paceline.runtime.group.balance import Balance
from paceline.runtime.samples import epoch_order

SAMPLES, GLOBAL_BATCH, EPOCHS = 70, 30, 3
STEPS = -(-SAMPLES // GLOBAL_BATCH)
"""Of an epoch."""
SHARES = Balance.shares


class Net(nn.Module):
    """A small classifier whose start differs between ranks; its forward pass is that of a transformers model."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.cross_entropy(self.layers(inputs), labels)}


def samples() -> list[dict[str, torch.Tensor]]:
    """For transformers a third of the labels are ignored, as padding is: it counts what the loss is the mean over."""
    generator = torch.Generator().manual_seed(1)
    inputs, labels = torch.randn(SAMPLES, 8, generator=generator), torch.randint(3, (SAMPLES,), generator=generator)
    if sys.argv[1] == "transformers":
        labels[torch.rand(SAMPLES, generator=generator) < 1 / 3] = -100
    return [{"inputs": one, "labels": label} for one, label in zip(inputs, labels, strict=True)]


def leave_at(killed: int | None, step: int) -> None:
    """End at once, as if killed."""
    if killed == step and os.environ["PACELINE_RANK"] == "1":
        os._exit(9)


def by_lightning(model: Net, killed: int | None, folder: str) -> Any:
    import lightning.pytorch as pl

    from paceline.integrations.lightning_strategy import PacelineStrategy

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            leave_at(killed, self.global_step)
            return self.net(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            optimizer, steps = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9), STEPS
            assert self.trainer.estimated_stepping_batches == EPOCHS * steps
            rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** (step // steps))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rates, "interval": "step"}}

    strategy = PacelineStrategy(GLOBAL_BATCH)
    quiet = {
        "logger": False,
        "callbacks": [pl.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=4, save_top_k=-1)],
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(max_epochs=EPOCHS, strategy=strategy, gradient_clip_val=1.0, accelerator="cpu", **quiet)
    loaders = DataLoader(samples(), batch_size=7, shuffle=True), DataLoader(samples(), batch_size=7)
    saved = Path(folder) / "step=4.ckpt"  # of an earlier job, in the middle of its second epoch
    trainer.fit(Module(), *loaders, ckpt_path=saved if saved.exists() else None)
    return strategy.pace


def by_transformers(model: Net, killed: int | None, folder: str) -> Any:
    from paceline.integrations.transformers_trainer import PacelineTrainer  # isort: skip
    from transformers import TrainerCallback, TrainingArguments

    class Kill(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            leave_at(killed, state.global_step)

    args = TrainingArguments(
        folder, num_train_epochs=EPOCHS, max_grad_norm=1.0, use_cpu=True, report_to=[], save_strategy="steps",
        save_steps=4, disable_tqdm=True, learning_rate=0.1, remove_unused_columns=False, dataloader_pin_memory=False,
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** (step // STEPS))
    trainer = PacelineTrainer(
        model, args, train_dataset=samples(), optimizers=(optimizer, rates), callbacks=[Kill()],
        global_batch=GLOBAL_BATCH,
    )  # fmt: skip
    saved = Path(folder) / "checkpoint-4"  # of an earlier job, in the middle of its second epoch
    trainer.train(resume_from_checkpoint=str(saved) if saved.exists() else None)
    return trainer.pace


def by_torch(model: Net) -> None:
    """One process with the whole batch, clipping and a rate that is halved every epoch."""
    data, optimizer = samples(), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        order = epoch_order(SAMPLES, seed=0, epoch=epoch)
        for begin in range(0, SAMPLES, GLOBAL_BATCH):
            chosen = [data[index] for index in order[begin : begin + GLOBAL_BATCH]]
            optimizer.zero_grad()
            model(**{name: torch.stack([one[name] for one in chosen]) for name in chosen[0]})["loss"].backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.5


def main() -> None:
    trainer, killed, path = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    rank, written = int(os.environ["PACELINE_RANK"]), []
    save = torch.save
    torch.save = lambda what, path, *rest, **options: (written.append(str(path)), save(what, path, *rest, **options))
    Balance.shares = lambda self, total: (  # type: ignore[method-assign]
        (22, 8) if total == GLOBAL_BATCH and len(self._ids) == 2 else SHARES(self, total)
    )
    model, alone = Net(rank), Net(0)
    pace = {"lightning": by_lightning, "transformers": by_transformers}[trainer](model, killed, str(path.parent))
    by_torch(alone)
    loader = DataLoader(samples(), sampler=WeightedRandomSampler(torch.ones(SAMPLES), SAMPLES))
    try:
        SharedLoader(loader, global_batch=None, settings=None)
        refused = ""
    except InputError as error:
        refused = error.message
    found = {
        "refused": refused,
        "written": written,
        "values": torch.cat([one.detach().flatten() for one in model.parameters()]).tolist(),
        "alone": torch.cat([one.detach().flatten() for one in alone.parameters()]).tolist(),
        "steps": pace.position.step,
        "trained": len(pace.records),
        "ranks": pace.size,
    }
    path.write_text(json.dumps(found))
    os._exit(0)


if __name__ == "__main__":
    main()
