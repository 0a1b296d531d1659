"""Trainings as strangers write them: what is seen of each, and a clear word where something is not."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.environments import environment_python, prepare, worker_path
from paceline.measurements.results import campaign_results
from paceline.measurements.store import Store
from paceline.runtime.watch.job import read_records
from paceline.runtime.watch.recorder import ORDER, TRACED_STEPS
from tests.conftest import Command

SCRIPT = str(Path(__file__).parent / "strange_scripts.py")
GRAPHS = str(Path(__file__).parent / "graph_scripts.py")
STEPS = 40
KINDS = (
    "again", "whole_again", "accumulated", "mixed", "tied", "data_parallel", "gan", "gan_of_five", "closures", "folds",
    "functional", "elsewhere", "compiled", "compiled_in_place", "compiled_step", "compiled_part",
)  # fmt: skip
SPLIT = ("again", "whole_again", "accumulated", "mixed", "tied", "data_parallel", "gan", "closures",
         "compiled", "compiled_in_place", "compiled_step", "compiled_part")  # fmt: skip
"""Kinds whose forward, backward and update are all seen."""


@pytest.fixture(scope="module")
def seen(pytorch: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The record of each kind, all of one process."""
    place = tmp_path_factory.mktemp("seen")
    python = str(environment_python(pytorch))
    command = [python, SCRIPT, "each", ",".join(KINDS), str(STEPS), str(place)]
    env = {**os.environ, "PYTHONPATH": str(worker_path())}
    done = subprocess.run(command, text=True, capture_output=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "paceline" not in done.stderr, "hooks make PyTorch warn"
    return {kind: read_records(place / kind)[0] for kind in KINDS}


def rows_of(record: dict[str, Any]) -> list[dict[str, float]]:
    """The steps that count, phase by phase."""
    return [dict(zip(("step", "start", "seconds", *ORDER), row, strict=True)) for row in record["rows"] if row[0] > 8]


def sizes_of(record: dict[str, Any]) -> int:
    """Bytes of all gradients of the first traced step."""
    spans = [span for span in record["spans"] if span["step"] == TRACED_STEPS[0]]
    return sum(span["size_bytes"] or 0 for span in spans)


@pytest.mark.full
class TestOneProcess:
    """Kinds that train in one process, one after the other."""

    def test_every_step_is_seen_with_its_phases(self, seen: dict[str, Any]) -> None:
        for kind in SPLIT:
            assert seen[kind]["error"] == "", kind
            assert [row["step"] for row in rows_of(seen[kind])] == list(range(9, STEPS)), kind
            for phase in ("forward", "backward", "update"):
                assert all(row[phase] > 0 for row in rows_of(seen[kind])), (kind, phase)

    def test_layers_are_traced_but_not_those_of_graphs(self, seen: dict[str, Any]) -> None:
        weights = 4 * (32 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10)
        for kind in ("again", "accumulated", "mixed", "data_parallel"):
            assert sizes_of(seen[kind]) == weights, kind
            assert not seen[kind]["compiled"], kind
        assert sizes_of(seen["tied"]) == weights, "a tied layer has one gradient, an unused one none"
        for kind in ("compiled", "compiled_in_place", "compiled_step", "compiled_part"):
            assert seen[kind]["compiled"], kind
            assert not seen[kind]["spans"], kind

    def test_hooks_break_no_graph(self, seen: dict[str, Any]) -> None:
        for kind in ("compiled", "compiled_in_place", "compiled_step", "compiled_part"):
            assert seen[kind]["graph_breaks"] == 0, kind
            assert seen[kind]["graph_count"] <= 2, kind

    def test_samples_are_counted_once(self, seen: dict[str, Any]) -> None:
        batches = {kind: seen[kind]["batch"] for kind in SPLIT if kind not in ("gan", "closures")}
        assert batches == {**dict.fromkeys(batches, 64), "accumulated": 3 * 64}

    def test_a_step_of_two_optimisers_ends_with_the_one_that_is_called_least(self, seen: dict[str, Any]) -> None:
        assert seen["gan"]["optimizers"] == seen["gan_of_five"]["optimizers"] == 2
        assert seen["gan"]["steps"] == STEPS
        late = [row["step"] for row in rows_of(seen["gan_of_five"])]
        assert STEPS - 9 < len(late) < STEPS, "five updates of the judge are one step"

    def test_models_that_are_trained_one_after_the_other_are_all_seen(self, seen: dict[str, Any]) -> None:
        rows = rows_of(seen["folds"])
        assert len(rows) > 2 * STEPS - 9 - 51 - 4
        assert all(row["forward"] > 0 for row in rows)

    def test_without_modules_there_are_steps_but_no_forward(self, seen: dict[str, Any]) -> None:
        rows = rows_of(seen["functional"])
        assert len(rows) > STEPS - 9 - 7
        assert all(row["backward"] > 0 and row["forward"] == 0 for row in rows)

    def test_copies_to_a_device_are_a_phase(self, seen: dict[str, Any]) -> None:
        assert all(row["h2d"] > 0 for row in rows_of(seen["elsewhere"]))
        assert all(row["h2d"] == 0 for row in rows_of(seen["again"]))


def watched(paceline: Command, python: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and verdict of a watched script."""
    process = paceline.start("watch", "--name", "mine", "--json", "--", str(environment_python(python)), *words)
    output, _ = process.communicate()
    return process.returncode, json.loads(output)


@pytest.mark.full
@pytest.mark.parametrize(("kind", "code"), [("raises", 1), ("interrupted", 130), ("killed", 137)])
def test_whatever_ends_a_script_its_steps_are_judged(paceline: Command, pytorch: Path, kind: str, code: int) -> None:
    ended, verdict = watched(paceline, pytorch, SCRIPT, kind, "400")
    assert ended == verdict["exit_code"] == code
    assert verdict["steps"] > 300 - (100 if kind == "killed" else 0)
    assert f"the command ended with exit code {code}" in verdict["notes"]


@pytest.mark.full
@pytest.mark.parametrize(("kind", "note"), [("forked", None), ("fsdp1", "FSDP")])
def test_ranks_that_a_script_starts_itself_are_seen(
    paceline: Command, pytorch: Path, kind: str, note: str | None
) -> None:
    code, verdict = watched(paceline, pytorch, SCRIPT, kind, str(STEPS))
    assert (code, verdict["ranks"], verdict["steps"]) == (0, 2, STEPS - 9)
    assert (note is None and not verdict["notes"]) or (note is not None and note in verdict["notes"][0])
    if kind == "fsdp1":
        refused = paceline("predict", "--from", "mine", "--cluster", "local", code=2)
        assert "watch the same training on one rank" in refused


@pytest.mark.full
def test_a_script_without_optimiser_is_told_why_nothing_is_stored(paceline: Command, pytorch: Path) -> None:
    code, verdict = watched(paceline, pytorch, SCRIPT, "by_hand", "30")
    assert code == 0
    assert verdict["campaign"] is None
    assert "30 backward passes, but no step() of an optimiser" in verdict["note"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("environment", "kind", "framework", "note"),
    [
        ("jax", "jax", "jax/data_parallel", "a step is a call of train_step"),
        ("keras", "keras", "keras/jax", "keras on jax: forward holds all of a batch's graph"),
        ("tensorflow", "tensorflow", "tensorflow/multiworker", "a step is a call of train_step"),
    ],
)
def test_steps_of_other_frameworks_are_seen(
    paceline: Command, environment: str, kind: str, framework: str, note: str
) -> None:
    python = prepare(environment, lambda line: None)
    code, verdict = watched(paceline, python, GRAPHS, kind, "60")
    assert code == 0, verdict
    assert verdict["steps"] > 60 - 9 - 5
    assert any(note in word for word in verdict["notes"])
    (result,) = campaign_results(Store(paceline.store), verdict["campaign"])
    assert result.run.framework == framework
    assert result.phases["forward"] > 0.3 * sum(result.phases.values())
    assert result.phases["other" if kind != "keras" else "io"] > 0
