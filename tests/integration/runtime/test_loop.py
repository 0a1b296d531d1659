"""The user's own loop around `backward` and `update`: what plain torch computes in one process."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from paceline.bench.environments import worker_path
from tests.integration.runtime.conftest import StartRanks

STEPS = 8


@pytest.mark.parametrize(
    ("shares", "chunk"),
    [
        pytest.param([23, 7], None, marks=pytest.mark.full),
        ([30, 0], None),
        pytest.param([19, 11], 8, marks=pytest.mark.full),
    ],
    ids=["uneven", "nothing", "chunks"],
)
def test_clipping_scaling_and_schedules_equal_plain_torch(
    ranks: StartRanks, shares: list[int], chunk: int | None
) -> None:
    options = {"shares": shares, "chunk": chunk, "steps": STEPS}
    jobs = [ranks("loop", 1, plain=True, **options), ranks("loop", 2, plain=False, **options)]
    (plain,), both = (job.wait() for job in jobs)
    for found in both:
        assert np.abs(np.array(found["parameters"]) - np.array(plain["parameters"])).max() < 1e-12
        assert found["rates"] == plain["rates"]
        assert found["scale"] == plain["scale"] > 1024
        assert sum(found["committed"]) == STEPS
        # Of passes before the last there is nothing to clip yet.
        norms = [norm for norm, done in zip(found["norms"], found["committed"], strict=True) if done]
        assert norms == pytest.approx(plain["norms"], abs=1e-12)
        assert all(norm == 0 for norm, done in zip(found["norms"], found["committed"], strict=True) if not done)


REFUSED = """
import os
import sys
import tempfile
import threading
import torch
from torch import nn
from torch.utils.data import TensorDataset
from paceline.errors import InputError
from paceline.runtime import Settings, join

data = TensorDataset(torch.randn(8, 4))

def said(act, model=None, optimizer=torch.optim.SGD, settings=None, **given):
    model = model or nn.Linear(4, 1)
    try:
        with join(model, optimizer(model.parameters(), lr=0.1), data, global_batch=4, settings=settings) as pace:
            for batch in pace.batches(steps=2):
                act(pace, model, model(batch.inputs).square().mean())
    except InputError as error:
        print(error.message, "|", error.hint)
    else:
        print("nothing")

def thaw(pace, model, loss):
    model[0].requires_grad_(True)
    pace.step(loss)

class Looked(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 2, sparse=True)

frozen = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 1))
said(lambda pace, model, loss: None, Looked())
said(lambda pace, model, loss: None, optimizer=torch.optim.LBFGS)
said(lambda pace, model, loss: None)
said(lambda pace, model, loss: pace.backward(loss))
said(lambda pace, model, loss: pace.update())
said(lambda pace, model, loss: (pace.backward(loss), pace.backward(loss)))
said(lambda pace, model, loss: (pace.step(loss), pace.update()))
said(thaw, frozen)
scaler = torch.amp.GradScaler("cpu")
said(lambda pace, model, loss: (pace.backward(scaler.scale(loss)), pace.update(scaler)), settings=Settings(clip=1.0))
said(lambda pace, model, loss: pace.step(loss.repeat(3)))
said(lambda pace, model, loss: pace.step(loss.item()))
said(lambda pace, model, loss: None, optimizer=lambda _, lr: torch.optim.SGD([*nn.Linear(4, 1).parameters()], lr))
said(lambda pace, model, loss: pace.step(loss))
pace = join(model := nn.Linear(4, 1), torch.optim.SGD(model.parameters(), lr=0.1), data, global_batch=4)
for _ in range(2):
    for batch in pace:
        pace.step(model(batch.inputs).square().mean())
print("without with:", pace.position, flush=True)
with join(model, torch.optim.SGD(model.parameters(), lr=0.1), data, global_batch=4) as pace:
    for batch in pace:
        if not os.fork():
            sys.exit()  # ends the block in the child, whose connections are those of its parent
        os.wait()
        pace.step(model(batch.inputs).square().mean())
    print("after a fork:", pace.position, len(pace.views), flush=True)
settings = Settings(checkpoint=tempfile.mkdtemp() + "/state")
with join(model, torch.optim.SGD(model.parameters(), lr=0.1), data, global_batch=4, settings=settings) as pace:
    for batch in pace:
        pace.step(model(batch.inputs).square().mean())
print("writers left:", [each.name for each in threading.enumerate() if "checkpoint" in each.name])
"""


def test_what_cannot_be_shared_is_refused_with_a_reason(torch_python: Path) -> None:
    env = {"PYTHONPATH": str(worker_path()), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([str(torch_python), "-c", REFUSED], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = [
        "layers with sparse gradients: table",
        "LBFGS calls a closure",
        "a batch was not followed by backward() and update()",
        "a batch was not followed by backward() and update()",
        "update() was called without backward()",
        "backward() was called without a batch, or twice for one",
        "update() was called without a batch",
        "0.weight, 0.bias: frozen, released, or moved",
        "Settings(clip=...) would clip scaled gradients",
        "the loss is a tensor of shape (3,), expected a tensor with one number",
        "the loss is a float, expected a tensor with one number",
        "2 of the 2 parameters of SGD are not in the model",
        "nothing",
        "without with: Position(step=4, epoch=2, cursor=0)",
        "after a fork: Position(step=2, epoch=1, cursor=0) 1",
        "writers left: []",
    ]
    for line, words in zip(done.stdout.splitlines(), expected, strict=True):
        assert line.startswith(words)


@pytest.mark.parametrize(
    ("why", "words"),
    [
        (
            "frozen",
            ["rank 1 cannot take part: this process trains with trained parameters", "this process trains with"],
        ),
        ("seed", ["rank 1 cannot take part: this process trains on", "this process trains on"]),
        ("second", ["join() was called while an earlier join() is still open"] * 2),
    ],
)
def test_what_one_rank_is_refused_ends_the_start_of_all(ranks: StartRanks, why: str, words: list[str]) -> None:
    found = ranks("refused", 2, why=why).wait()
    assert [one["error"].startswith(said) for one, said in zip(found, words, strict=True)] == [True, True], found


@pytest.mark.parametrize(
    ("why", "words", "steps"),
    [
        ("rate", "rates, momenta or decays of the optimizers of ranks [1] are not those of rank 0", 1),
        ("weights", "parameters of ranks [1] are not those of rank 0", 1),
        ("beside", "parameters of ranks [1] are not those of rank 0", 1),
        ("weighted", "a loss is the mean over a part of its targets, or over their weights", 0),
    ],
)
def test_ranks_that_would_train_models_of_their_own_are_refused(
    ranks: StartRanks, why: str, words: str, steps: int
) -> None:
    found = ranks("apart", 2, why=why).wait()
    assert [(one["error"].startswith(words), one["steps"]) for one in found] == [(True, steps)] * 2, found
