"""A captured loop becomes a profile that the model can use; ranks that exchange nothing are profiled side by side."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.bench.environments import environment_python, worker_path
from paceline.measurements.profile import read_profile
from paceline.measurements.store import Store
from paceline.model.calibrate import swept_calibration
from tests.conftest import Command

LOOP = """
import sys, time, torch, paceline
from torch import nn
from paceline.errors import InputError

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.body = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
        self.head = nn.Linear(32, 100, bias=False)
        self.head.weight = self.embedding.weight
    def forward(self, x):
        return self.head(self.body(self.embedding(x))).flatten(0, 1)

class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
        self.body = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.head = nn.Linear(64, 10)
    def forward(self, x):
        return self.head(self.frozen(self.body(x * self.scale)))

model = Mixed()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
x, y = torch.randn(32, 64), torch.randint(10, (32,))

def steps(count):
    for _ in range(count):
        time.sleep(0.002)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

with paceline.capture(model, optimizer, path=sys.argv[1], name="mine") as found:
    steps(18)
assert found.profile["network"] == "mine"
tied = Tied()
optimizer_of_tied = torch.optim.SGD(tied.parameters(), lr=0.1)
with paceline.capture(tied, optimizer_of_tied, name="tied") as found:
    for _ in range(6):
        optimizer_of_tied.zero_grad()
        nn.functional.cross_entropy(tied(torch.randint(100, (4, 16))), torch.randint(100, (64,))).backward()
        optimizer_of_tied.step()
layers = {layer["name"]: layer for layer in found.profile["layers"]}
sizes = [size for layer in layers.values() for size in layer["gradients"]]
assert sum(sizes) == sum(4 * p.numel() for p in tied.parameters()), "tied weights have one gradient"
assert found.profile["tied"] == ["head.weight"]
assert layers["head"]["macs"] == 16 * 32 * 100
assert layers["body.linear1"]["macs"] == 16 * 32 * 64
assert layers["body.self_attn"]["macs"] == 16 * 32 * 32 * 4 + 2 * 16 * 16 * 32
assert layers["body.self_attn"]["kind"] == "attention"
assert layers["head"]["moved"] == 4 * 16 * (32 + 100)
try:
    with paceline.capture(model, optimizer):
        steps(3)
except InputError as error:
    print(error)
"""
THREADS = """
import sys, time, torch, paceline
from torch import nn

class Waits(nn.Linear):
    "Three times as long on one thread, and in the first steps."
    steps = 0
    def forward(self, x):
        self.steps += 1
        time.sleep(0.03 if torch.get_num_threads() == 1 or self.steps < 3 else 0.01)
        return super().forward(x)

torch.set_num_threads(2)
model = nn.Sequential(Waits(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with paceline.capture(model, optimizer, path=sys.argv[1], name="waits", quiet=True):
    for _ in range(20):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
assert torch.get_num_threads() == 2
"""
OUTLINE = """
import sys, torch, paceline
from torch import nn
from torch.nn import functional as F
from paceline.errors import InputError

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm, self.qkv = heads, nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.frozen = nn.Linear(1, 1).requires_grad_(False)
    def forward(self, x):
        b, t, w = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w)
        return x + self.down(F.gelu(self.up(x + self.out(y))))

class Own(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.tokens, self.block = nn.Embedding(1000, width), Block(width, 8)
        self.head = nn.Linear(width, 1000, bias=False)
        self.head.weight = self.tokens.weight
    def forward(self, tokens, extra=None):
        return self.head(self.block(self.tokens(tokens)))

with torch.device("meta"):
    huge, tokens = Own(16384), torch.empty(4, 128, dtype=torch.long)
found = paceline.outline(huge, {"tokens": tokens}, path=sys.argv[1], name="huge")
w, t = 16384, 128
layers = {layer["name"]: layer for layer in found["layers"]}
macs = t * (w * 3 * w + w * w + 8 * w * w) + 2 * t * t * w + t * w * 1000
assert abs(sum(layer["macs"] for layer in layers.values()) / macs - 1) < 1e-9
assert layers["head"]["gradients"] == [] and layers["tokens"]["gradients"] == [4 * 1000 * w]
assert "block.frozen" not in layers or layers["block.frozen"]["gradients"] == []
# norm: in, out; qkv; q, k, v, out of attention; the copy of its transpose; out, two sums, up, gelu, down; tokens, head
bytes = 4 * t * w * (2 + 4 + 4 + 2 + 2 + 6 + 5 + 8 + 5) + t * (8 + 4 * w) + 4 * t * (w + 1000)
assert abs(sum(layer["moved"] for layer in layers.values()) / bytes - 1) < 1e-4
small = Own(16)
same = paceline.outline(small, torch.zeros(4, 128, dtype=torch.long), quiet=True)
with torch.device("meta"):
    there = paceline.outline(Own(16), (tokens,), quiet=True)
assert same["layers"] == there["layers"], "a real model and one without memory count alike"
normed = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
paceline.outline(normed, torch.ones(8, 4), quiet=True)
assert normed[1].num_batches_tracked == 0 and normed[1].running_mean.abs().sum() == 0, "the model is as it was"

class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.graph = nn.Linear(4, 4), torch.eye(8).to_sparse()
    def forward(self, x):
        return torch.sparse.mm(self.graph, self.linear(x))

assert paceline.outline(Sparse(), torch.ones(8, 4), quiet=True)["layers"][0]["macs"] >= 16

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.attention = nn.LSTM(8, 8, 2, batch_first=True), nn.MultiheadAttention(8, 2, batch_first=True)
    def forward(self, x):
        y = self.lstm(x)[0]
        return self.attention(y, y, y)[0]

lstm, attention = paceline.outline(Recurrent(), torch.ones(4, 30, 8), quiet=True)["layers"]
assert lstm["steps"] == 60 and lstm["macs"] == 30 * 2 * 2 * 8 * 32, "positions wait for each other on each level"
assert sorted(attention["gradients"]) == [32, 96, 256, 768], "the output projection is never called by itself"
assert "steps" not in attention
alone = nn.Sequential(nn.LSTM(8, 8, 2, batch_first=True))
(only,) = paceline.outline(alone, torch.ones(4, 30, 8), quiet=True)["layers"]
assert only["macs"] == 30 * 2 * 2 * 8 * 32, "a model of nothing but a recurrent layer"
for wrong in (torch.zeros(4, 8), None):
    try:
        paceline.outline(small, wrong)
    except InputError as error:
        print(error)
"""
STUDY = """
name = "beside"
networks = ["lenet"]
frameworks = ["pytorch"]
devices = [2]
batch = [8]
[[strategy]]
name = "alone"
aggregation = "none"
[protocol]
launches = 1
max_launches = 1
steps = 8
warmup = 2
threads = 1
"""


def test_what_threads_gain_is_measured_on_one_thread_and_not_while_the_loop_warms_up(
    pytorch: Path, tmp_path: Path
) -> None:
    path = tmp_path / "waits.profile"
    env = {**os.environ, "PYTHONPATH": str(worker_path())}
    subprocess.run([str(environment_python(pytorch)), "-c", THREADS, str(path)], env=env, timeout=120, check=True)
    host = read_profile(path).host
    assert host is not None
    assert host.thread_gain == pytest.approx(3, abs=0.7)


def with_another_name(path: Path) -> Path:
    """A file of an earlier run, and a second name for it: what is replaced at once stays whole under that name."""
    path.write_text("an earlier one")
    other = path.with_name("earlier")
    other.hardlink_to(path)
    return other


def test_a_loop_is_captured_and_predicted(pytorch: Path, paceline: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.profile"
    earlier = with_another_name(path)
    env = {**os.environ, "PYTHONPATH": str(worker_path()), "OMP_NUM_THREADS": "2"}
    argv = [str(environment_python(pytorch)), "-c", LOOP, str(path)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=True)
    assert "3 steps were captured, too few" in done.stdout
    assert earlier.read_text() == "an earlier one", "a reader sees the old profile or the new one, never a part"
    profile = read_profile(path)
    layers = {layer.name: layer for layer in profile.layers}
    assert profile.batch == 32
    assert profile.device == "host-cpu"
    assert sorted(layers["body.0"].gradients) == [512 * 4.0, 512 * 64 * 4.0]
    assert layers["frozen"].gradients == layers["body.1"].gradients == ()
    assert profile.ready.index("head") < profile.ready.index("body.0")
    assert "whole model" in layers, "a parameter of the model itself"
    assert profile.io > 0.0015
    assert profile.host is not None
    assert profile.host.threads == 2
    assert profile.host.thread_gain is not None, "some steps ran on one thread"
    assert profile.precision == "float32"
    assert layers["body.0"].macs == 64 * 512
    assert layers["body.1"].kind == "elementwise"
    for said in ("captured mine: batch 32", "multiply-adds", "2 threads on", "next: paceline predict --profile"):
        assert said in done.stdout
    assert "tied weights, counted once: head.weight" in done.stdout
    moved = paceline.json("predict", "--profile", str(path), "--cluster", "dgx-a100", "--devices", "1,8")
    assert "the profile gives layers, not their times" in moved["curves"][0]["basis"][0]
    assert all(layer.forward >= 0 and layer.backward >= 0 for layer in profile.layers)
    found = paceline.json("predict", "--profile", str(path), "--cluster", "local", "--devices", "1,2")
    alone = found["predictions"][0]["step_s"]
    if profile.host.cores >= 2:
        assert alone == pytest.approx(profile.step)


def test_a_model_that_no_machine_holds_is_outlined_and_predicted(
    pytorch: Path, paceline: Command, tmp_path: Path
) -> None:
    path = tmp_path / "huge.profile"
    earlier = with_another_name(path)
    env = {**os.environ, "PYTHONPATH": str(worker_path())}
    argv = [str(environment_python(pytorch)), "-c", OUTLINE, str(path)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "outlined huge: " in done.stdout
    assert earlier.read_text() == "an earlier one"
    assert done.stdout.count("the forward pass of Own failed: ") == 2
    found = paceline.json("predict", "--profile", str(path), "--cluster", "8x h100", "--devices", "8", "--framework",
                          "pytorch/fsdp2")  # fmt: skip
    assert "counted and not run" in found["curves"][0]["basis"][0]


def test_a_probe_of_ranks_that_share_cores_says_how_far_its_turns_agree(
    pytorch: Path, paceline: Command, tmp_path: Path
) -> None:
    paceline("bench-collectives", "--ranks", "2", "--collectives", "all_reduce", "--sizes", "4 KiB,64 KiB,1 MiB",
             "--seconds", "0.05", "--store", str(tmp_path / "store"))  # fmt: skip
    probes = swept_calibration(Store(tmp_path / "store")).sharing
    assert {probe.ranks for probe in probes} == {2}
    assert all(probe.excess > 0 and probe.spread > 0 for probe in probes), probes


@pytest.mark.full
def test_ranks_that_exchange_nothing_make_a_profile(
    pytorch: Path, paceline: Command, study_file: Callable[..., Path], tmp_path: Path
) -> None:
    paceline("run", str(study_file(STUDY)))
    folder = tmp_path / "profiles"
    paceline("calibrate", "--profiles", str(folder), "--output", str(tmp_path / "calibration.json"))
    (path,) = folder.iterdir()
    plain = json.loads(path.read_text())
    assert plain["crowd"] == 2
    assert read_profile(path).step > 0
