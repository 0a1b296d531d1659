"""Scripts of users of other trainers, each with Paceline's callback; argv is the store. 40 steps of 4 samples."""

from __future__ import annotations

TRANSFORMERS = """
import contextlib, os, sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from paceline.integrations.kubeflow import report_progress
from paceline.integrations.transformers import PacelineCallback
torch.set_num_threads(1)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=50, n_positions=8))
data = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(50, (64, 8))]
progress = contextlib.ExitStack()

class Reporting(PacelineCallback):
    def on_train_begin(self, *given, **rest):
        super().on_train_begin(*given, **rest)
        if "PROGRESS" in os.environ:
            progress.enter_context(report_progress(self.watch, int(os.environ["PROGRESS"]), every_s=0.05))

    def on_train_end(self, *given, **rest):
        progress.close()
        super().on_train_end(*given, **rest)

callback = Reporting(name="mine", store=sys.argv[1], quiet=True)
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
ACCELERATE = """
import sys, torch
from accelerate import Accelerator
from paceline.integrations.accelerate import PacelineTracker
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True, log_with=[PacelineTracker(run="mine", store=sys.argv[1], quiet=True)])
accelerator.init_trackers("project")
data = torch.utils.data.TensorDataset(torch.randn(160, 16), torch.randint(4, (160,)))
model = torch.nn.Sequential(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=4))
for inputs, targets in loader:
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    accelerator.log({"loss": loss.item()})
accelerator.end_training()
"""
RAY = """
import sys, torch
import ray
from ray.train import ScalingConfig, RunConfig
from ray.train.torch import TorchTrainer, prepare_model
from paceline.integrations.ray import watched_loop
def loop(config):
    torch.set_num_threads(1)
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(16, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    data = torch.utils.data.TensorDataset(torch.randn(160, 16), torch.randint(4, (160,)))
    for inputs, targets in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
scaling, run = ScalingConfig(num_workers=2), RunConfig(storage_path=sys.argv[1] + "/ray")
watched = watched_loop(loop, name="mine", store=sys.argv[1], quiet=True)
TorchTrainer(watched, train_loop_config={"lr": 0.01}, scaling_config=scaling, run_config=run).fit()
ray.shutdown()
"""
TORCHTITAN = """
import sys, torch
from paceline.integrations.torchtitan import PacelineProfiler
torch.set_num_threads(1)
config = PacelineProfiler.Config(run="mine", store=sys.argv[1], quiet=True)
model = torch.nn.Sequential(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(160, 16), torch.randint(4, (160,)))
with config.build(global_step=0, base_folder=sys.argv[1]) as profiler:  # as torchtitan's own Trainer.train()
    for inputs, targets in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        profiler.step()
"""
