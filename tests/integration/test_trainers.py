"""Callbacks in the trainers of other packages, where these packages are installed beside PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.bench.environments import environment_python, worker_path

TRANSFORMERS = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from paceline.integrations.transformers import PacelineCallback
torch.set_num_threads(1)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=50, n_positions=8))
data = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(50, (64, 8))]
callback = PacelineCallback(name="mine", store=sys.argv[1], quiet=True)
options = TrainingArguments(
    output_dir=sys.argv[1] + "/out", max_steps=40, per_device_train_batch_size=2, gradient_accumulation_steps=2,
    report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
)
Trainer(model=model, args=options, train_dataset=data, callbacks=[callback]).train()
"""
LIGHTNING = """
import sys, torch
import lightning.pytorch as lightning
from paceline.integrations.lightning import PacelineLightningCallback
torch.set_num_threads(1)
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)
    def forward(self, x):
        return self.layer(x)
    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(160, 16), torch.randint(4, (160,)))
callback = PacelineLightningCallback(name="mine", store=sys.argv[1], quiet=True)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = lightning.Trainer(max_steps=40, accelerator="cpu", callbacks=[callback], **quiet)
trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=4))
"""


@pytest.mark.full
@pytest.mark.parametrize(("package", "script"), [("transformers", TRANSFORMERS), ("lightning", LIGHTNING)])
def test_a_trainer_is_watched_by_its_callback(pytorch: Path, tmp_path: Path, package: str, script: str) -> None:
    python = str(environment_python(pytorch))
    ours = [str(worker_path()), next(path for path in sys.path if path.endswith("site-packages"))]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*ours, os.environ.get("PYTHONPATH", "")])}
    if subprocess.run([python, "-c", f"import {package}"], env=env, capture_output=True).returncode:
        pytest.skip(f"{package} is not installed in {pytorch}")
    done = subprocess.run([python, "-c", script, str(tmp_path)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "runs").glob("*/run.json")
    run = json.loads(path.read_text(encoding="utf-8"))
    assert (run["study"], run["ranks"], run["batch"]) == ("mine", 1, 4)
    assert run["launcher"] == "watch"
