"""`paceline watch` around real PyTorch trainings that know nothing of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.bench.environments import environment_python
from paceline.measurements.results import campaign_results
from paceline.measurements.store import Store
from paceline.measurements.tables import read_spans
from paceline.runtime.watch.job import SHARDED, read_records
from paceline.runtime.watch.recorder import ORDER, TRACED_STEPS, Recorder, guarded
from tests.conftest import Command

SCRIPT = str(Path(__file__).parent / "watched_script.py")


def test_a_script_that_fails_keeps_its_exit_code_and_its_steps(paceline: Command, pytorch: Path) -> None:
    python = str(environment_python(pytorch))
    done = subprocess.run(
        [*paceline.prefix, "watch", "--name", "mine", "--json", "--", python, SCRIPT, "60", "fail"],
        env=paceline.env, text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["exit_code"] == 7
    assert verdict["steps"] == 41 - 9
    assert verdict["ranks"] == 1
    store = Store(paceline.store)
    (result,) = campaign_results(store, verdict["campaign"])
    assert (result.run.study, result.run.network, result.run.batch, result.run.ranks) == ("mine", "Net", 64, 1)
    assert result.run.labels == ("the command ended with exit code 7",)
    assert min(result.phases[name] for name in ("io", "forward", "backward", "update")) > 0
    assert result.phases["aggregate"] == 0
    spans = read_spans(store, [result.run.id])[result.run.id]
    assert {span.step for span in spans} == set(TRACED_STEPS)
    assert {span.name for span in spans if span.phase == "forward"} == {"first", "second", "last"}
    gradients = [span for span in spans if span.phase == "backward" and span.step == TRACED_STEPS[0]]
    assert sum(span.size_bytes or 0 for span in gradients) == 4 * (64 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10)
    assert gradients[0].name.startswith("last.")
    assert gradients[-1].name.startswith("first.")
    work = result.run.facts["work"]
    assert {name: layer["macs"] for name, layer in work.items()} == {
        "first": 64 * 512, "second": 512 * 512, "last": 512 * 10}  # fmt: skip
    assert (result.run.facts["unit"], result.run.facts["precision"]) == ("samples", "float32")
    paceline("predict", "--from", "mine", "--cluster", "dgx-a100", "--devices", "8")  # scaled by the work of its layers


def test_a_command_without_steps_is_left_alone_and_said(paceline: Command) -> None:
    done = subprocess.run(
        [*paceline.prefix, "watch", "--", sys.executable, "-c", "print('hello'); raise SystemExit(3)"],
        env=paceline.env, text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stdout.startswith("hello\n")
    assert "no training step was seen" in done.stdout
    assert "cannot run no-such-program" in paceline("watch", "--", "no-such-program", code=2)


def test_a_recorder_times_phases_inside_each_other(tmp_path: Path) -> None:
    recorder, clock = Recorder(str(tmp_path)), iter([float(n) for n in range(100)])
    recorder.now = lambda: next(clock)
    recorder.boundary()
    recorder.begin("update")  # a closure: the optimiser calls forward and backward
    recorder.begin("forward")
    recorder.begin("aggregate")
    recorder.end("aggregate")
    recorder.end("forward")
    recorder.begin("backward")  # one second of loss before it
    recorder.begin("io")  # left open by an exception
    recorder.end("backward", moved=0.5, to="aggregate")
    recorder.end("update")
    recorder.boundary()
    recorder.close()
    (record,) = read_records(tmp_path)
    step, _, seconds, *phases = record["rows"][0]
    named = dict(zip(ORDER, phases, strict=True))
    assert step == 1
    assert named == {"io": 0, "h2d": 0, "forward": 3, "backward": 1.5, "aggregate": 1.5, "update": 2}
    assert seconds == 10
    assert record["ended"]


def test_an_error_of_the_recorder_is_not_one_of_the_training(tmp_path: Path) -> None:
    class Owner:
        def __init__(self) -> None:
            self.recorder, self.calls = Recorder(str(tmp_path)), 0

        @guarded
        def fails(self) -> None:
            self.calls += 1
            raise KeyError("phase")

    owner = Owner()
    owner.fails()
    owner.fails()
    assert owner.calls == 1
    assert not owner.recorder.alive
    assert owner.recorder.error == "KeyError: 'phase'"
    owner.recorder.close()
    assert read_records(tmp_path) == []


def test_a_sample_of_steps_is_the_same_on_every_rank_and_of_the_size_asked(tmp_path: Path) -> None:
    taken = []
    for _ in range(2):
        recorder = Recorder(str(tmp_path), 20)
        watched = []
        for step in range(4000):
            recorder.boundary()
            watched += [step] if recorder.watching else []
        recorder.close()
        taken.append(watched[len(TRACED_STEPS) * 3 :])
    assert taken[0] == taken[1]
    assert 150 <= len(taken[0]) <= 250
    assert {step % 10 for step in taken[0]} == set(range(10)), "a regular sample misses what is regular"


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.parametrize("plant", ["tensor", "fully"])
def test_exchanges_of_sharded_models_are_seen_and_said(paceline: Command, pytorch: Path, plant: str) -> None:
    torchrun = str(environment_python(pytorch).parent / "torchrun")
    paceline("watch", "--name", plant, "--", torchrun, "--standalone", "--nproc-per-node", "2", SCRIPT, "40", plant)
    (result,) = campaign_results(Store(paceline.store), paceline.json("show", plant)["campaign"])
    assert result.phases["aggregate"] > 0.01 * sum(result.phases.values())
    assert result.run.labels == (SHARDED,)


@pytest.mark.full
@pytest.mark.alone
def test_a_rank_that_becomes_slow_under_torchrun_is_named_with_its_step(paceline: Command, pytorch: Path) -> None:
    torchrun = str(environment_python(pytorch).parent / "torchrun")
    ranks = [torchrun, "--standalone", "--nproc-per-node", "2", SCRIPT, "200", "slow"]
    text = paceline("watch", "--name", "ddp", "--", *ranks)
    assert "rank 1 trained 200 steps" in text
    (run,) = Store(paceline.store).read_all(study="ddp")
    (alert,) = [alert for alert in run.facts["alerts"] if alert["rank"] == 1]
    assert alert["phase"] == "other"
    assert abs(alert["since"] - 60) <= 2
    assert alert["at_step"] < 199, "it is reported while the training runs"
    assert alert["factor"] > 2
    assert "1. rank 1 holds up the others, mostly outside of the phases, since step " in text
    cause = paceline.json("explain", "ddp")["observed"][0]["causes"][0]
    assert (cause["kind"], cause["rank"], cause["pattern"]) == ("slow_rank", 1, "persistent")
    assert abs(cause["since"] - 60) <= 2
    (case,) = paceline.json("show", "ddp")["cases"]
    assert (case["ranks"], case["timed_steps"]) == (2, 191)
    for verb in (
        ["explain", "ddp"],
        ["report", "ddp"],
        ["predict", "--from", "ddp", "--cluster", "local", "--devices", "1,2"],
    ):
        paceline(*verb)


JOINED = """
import torch
from paceline.runtime import join
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
data = torch.utils.data.TensorDataset(torch.randn(1920, 64), torch.randint(10, (1920,)))
with join(model, torch.optim.SGD(model.parameters(), lr=0.01), data, global_batch=32) as pace:
    for inputs, targets in pace.batches(epochs=1):
        pace.step(torch.nn.functional.cross_entropy(model(inputs), targets))
"""


@pytest.mark.full
@pytest.mark.alone
def test_ranks_of_our_runtime_are_watched(paceline: Command, pytorch: Path, tmp_path: Path) -> None:
    """`paceline train` gives its ranks an environment of their own, which has to hold the hooks as well."""
    script = tmp_path / "joined.py"
    script.write_text(JOINED)
    given = ["train", str(script), "--ranks", "2", "--python", str(environment_python(pytorch))]
    paceline("watch", "--name", "ours", "--", *paceline.prefix, *given)
    (result,) = campaign_results(Store(paceline.store), paceline.json("show", "ours")["campaign"])
    assert (result.run.ranks, result.run.facts["joined"]) == (2, True)
    assert min(result.phases[name] for name in ("forward", "backward", "aggregate", "update")) > 0
    assert {span.rank for span in read_spans(Store(paceline.store), [result.run.id])[result.run.id]} == {0, 1}
