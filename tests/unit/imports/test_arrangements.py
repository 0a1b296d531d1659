"""What ranks of a profile had: shards, stages of a pipeline, several cycles, one rank with the shapes of gradients."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.api import profile_of_run
from paceline.cli import program
from paceline.errors import InputError, Unsupported
from paceline.measurements.trace.job import read_job
from paceline.measurements.trace.kineto import shape_bytes
from paceline.measurements.trace.rank_trace import shares_of
from tests.unit.imports.generated import FIRST_STEP, STEP_US, event, kineto, write_ranks

Events = list[dict[str, Any]]


def _changed(folder: Path, change: Callable[[Events], Events], world: int = 2, steps: int = 4) -> list[Path]:
    """Profiles of all ranks with other events."""
    paths = write_ranks(folder, world, steps=steps)
    for path in paths:
        document = json.loads(path.read_text())
        document["traceEvents"] = change(document["traceEvents"])
        path.write_text(json.dumps(document))
    return paths


def _import(paths: list[Path], store: Path, *words: str) -> str:
    done = CliRunner().invoke(program, ["import", *map(str, paths), "--name", "mine", "--store", str(store), *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_an_operator_that_waits_for_an_exchange_hides_nothing(tmp_path: Path) -> None:
    """Ten of the 30 ms of forward wait for a tensor of the other rank, inside the operator that redistributes it."""

    def wait(events: Events) -> Events:
        starts = [one["ts"] for one in events if one["name"].startswith("ProfilerStep")]
        return [*events, *(event("_c10d_functional::wait_tensor", at + 10_000, at + 20_000) for at in starts)]

    job = read_job(_changed(tmp_path, wait))
    step = shares_of(job.traces[0], [FIRST_STEP])[0]
    assert step.exposed["forward"] == pytest.approx(0.020)
    assert step.exposed_s == pytest.approx(0.015 + 0.010)
    assert step.overlap_s == pytest.approx(0.020)
    assert sum(step.exposed.values()) + step.idle_s == pytest.approx(step.seconds)
    assert {phase for phase, _, _ in step.pieces} <= {"io", "forward", "backward", "aggregate", "update"}
    assert job.arrangement == "sharded"


@pytest.mark.parametrize(
    ("names", "arrangement"),
    [
        (["gloo:send"], "staged"),
        (["ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"], "staged"),
        (["gloo:all_reduce"], ""),
        (["gloo:all_reduce", "gloo:all_gather"], "sharded"),
        (["gloo:all_reduce", "nccl:all_to_all SendRecv"], ""),
    ],
)
def test_exchanges_tell_what_ranks_have(tmp_path: Path, names: list[str], arrangement: str) -> None:
    def rename(events: Events) -> Events:
        found = [one for one in events if one["name"] == "gloo:all_reduce"]
        for number, one in enumerate(found):
            one["name"] = names[number % len(names)] if names[0].startswith("gloo") else "gloo:" + names[0]
        return events

    assert read_job(_changed(tmp_path, rename)).arrangement == arrangement


def test_a_stage_is_advised_as_a_stage_and_not_predicted(tmp_path: Path) -> None:
    def send(events: Events) -> Events:
        return [{**one, "name": one["name"].replace("gloo:all_reduce", "gloo:recv")} for one in events]

    paths = _changed(tmp_path, send, steps=24)
    for path in paths[1:]:
        document = json.loads(path.read_text())
        for one in document["traceEvents"]:
            if one["name"].startswith("autograd"):
                one["dur"] += 14_000
        path.write_text(json.dumps(document))
    said = _import(paths, tmp_path / "s")
    assert "rank 1 holds up the others" in said
    assert "if its stage computes more than the others, give it fewer layers" in said
    assert "the exchange of gradients" not in said
    shown = CliRunner().invoke(program, ["explain", "mine", "--store", str(tmp_path / "s")])
    assert "give it fewer layers" in shown.output
    with pytest.raises(InputError, match="were stages of a pipeline"):
        profile_of_run("mine", tmp_path / "s")


def test_cycles_of_a_schedule_are_one_trace(tmp_path: Path) -> None:
    """Every rank wrote a file for each cycle, as TensorBoard's handler does: six steps in all."""
    whole = tmp_path / "whole"
    whole.mkdir()
    parts = []
    for path in write_ranks(whole, steps=6):
        document = json.loads(path.read_text())
        events = document["traceEvents"]
        for cycle in range(2):
            begin = 1e12 + 3 * cycle * STEP_US
            document["traceEvents"] = [one for one in events if begin <= one["ts"] < begin + 3 * STEP_US]
            parts.append(tmp_path / f"{path.stem}-{cycle}.json")
            parts[-1].write_text(json.dumps(document))
    job, other = read_job(parts[::-1]), read_job(sorted(whole.iterdir()))
    assert (job.ranks, job.steps) == (other.ranks, other.steps)
    for ours, theirs in zip(job.shares, other.shares, strict=True):
        assert ours.exposed == pytest.approx(theirs.exposed)
    assert len(job.spans()) == len(other.spans())
    with pytest.raises(InputError, match="rank 0 has two traces"):
        read_job([parts[0], parts[0], *parts[1:]])


@pytest.mark.parametrize(
    ("args", "size"),
    [
        ({"Input type": ["float"], "Input Dims": [[10, 3]]}, 120),
        ({"Input type": ["c10::BFloat16", "Scalar"], "Input Dims": [[10, 3], []]}, 60),
        ({"Input type": ["TensorList"], "Input Dims": [[[10, 3]]]}, None),
        ({"Input type": "float", "Input Dims": [[10]]}, None),
        ({"Input type": ["float"], "Input Dims": [[-10]]}, None),
        ({"Input type": ["float"], "Input Dims": [[True]]}, None),
        ({"Input type": ["float"], "Input Dims": [[2**39, 2**39]]}, None),
        ({}, None),
    ],
)
def test_shapes_state_bytes(args: dict[str, Any], size: int | None) -> None:
    assert shape_bytes(args) == size


def test_exchanges_without_messages_have_the_sizes_of_their_shapes(tmp_path: Path) -> None:
    """What PyTorch 2.13 writes over Gloo: no size without `record_shapes=True`, and then the shape of the bucket."""
    shapes = {"Input type": ["float"], "Input Dims": [[500]]}

    def strip(events: Events, args: dict[str, Any]) -> Events:
        return [{**one, "args": args if one["name"] == "gloo:all_reduce" else {}} for one in events]

    _import(_changed(tmp_path, lambda events: strip(events, shapes)), tmp_path / "s")
    assert [layer.gradients for layer in profile_of_run("mine", tmp_path / "s").layers] == [(2000.0,)]
    _import(_changed(tmp_path, lambda events: strip(events, {})), tmp_path / "s")
    with pytest.raises(Unsupported, match="sizes of their gradients") as caught:
        profile_of_run("mine", tmp_path / "s")
    assert "record_shapes=True" in str(caught.value.hint)


@pytest.mark.parametrize("passes", [1, 3])
def test_a_trace_of_one_rank_has_its_gradients_as_layers(tmp_path: Path, passes: int) -> None:
    """Two gradients, ready 10 and 30 ms after the backward pass began; only those of the last pass are exchanged."""
    events = [event(f"ProfilerStep#{n}", 1e6 * n, 1e6 * (n + 1), "user_annotation") for n in range(3, 7)]
    for n in range(3, 7):
        for number in range(passes):
            at = 1e6 * n + 100_000 * number
            events += [event("aten::linear", at, at + 20_000)]
            events += [event("autograd::engine::evaluate_function: Addmm", at + 20_000, at + 50_000)]
            events += [
                event("torch::autograd::AccumulateGrad", at + ready - 1, at + ready, **{
                    "Input type": ["float"], "Input Dims": [[length]]})
                for ready, length in ((30_000, 10), (50_000, 1000))
            ]  # fmt: skip
        events += [event("Optimizer.step#SGD.step", 1e6 * n + 900_000, 1e6 * n + 910_000, "user_annotation")]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({**kineto(world=1), "traceEvents": events}))
    _import([path], tmp_path / "s", "--batch", "4", "--cluster", "dgx-a100")
    profile = profile_of_run("mine", tmp_path / "s")
    assert [layer.gradients for layer in profile.layers] == [(4000.0,), (40.0,)]
    assert sum(layer.backward for layer in profile.layers) == pytest.approx(passes * 0.030, rel=0.01)
    if passes == 1:
        assert [round(layer.backward, 3) for layer in profile.layers] == [0.02, 0.01]


@pytest.mark.parametrize("kind", ["chrome", "chakra-measured"])
def test_all_steps_of_an_imported_run_are_exported_and_read_back(tmp_path: Path, kind: str) -> None:
    """What is read back has the same compute and exchange; time after the last event of a step is nobody's."""
    store, path = str(tmp_path / "s"), tmp_path / "back"
    _import(write_ranks(tmp_path, steps=5), tmp_path / "s")
    done = CliRunner().invoke(program, ["export", "mine", "--to", kind, "-o", str(path), "--store", store])
    assert done.exit_code == 0, done.output
    found = read_job([path] if path.is_file() else sorted(path.rglob("*.et")))
    assert (found.ranks, len(found.steps)) == ((0, 1), 5)
    for one in found.shares:
        assert (one.compute_s, one.communication_s, one.exposed_s) == pytest.approx((0.075, 0.035, 0.015))
