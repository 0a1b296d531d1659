"""Sides of a comparison: files and stored launches; decided by launches, or by steps that depend on each other."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray

from paceline.cli import program
from paceline.errors import InputError
from paceline.explain.compared import compare_sides, side_of
from paceline.measurements.store import Store
from paceline.measurements.summary import compare_steps
from paceline.measurements.trace.observed import Observed, ObservedStep, record
from tests.made import Made, write


def titan_log(path: Path, step_s: NDArray[np.float64], tokens: int = 4096) -> str:
    """A log of torchtitan whose steps last this long."""
    now, lines = datetime(2026, 1, 1), []
    for number, seconds in enumerate(step_s, start=1):
        now += timedelta(seconds=float(seconds))
        rate = f"tps: {tokens / seconds:.0f}  tflops: 1.2  mfu: 12.3%"
        stamp = f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d}"
        lines.append(f"[rank0]:{stamp} - root - INFO - step: {number:2d}  loss: 7.9  memory: 0.65GiB(1.5%)  {rate}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def noisy(mean: float, count: int, seed: int, scale: float = 0.02) -> NDArray[np.float64]:
    return mean * (1 + scale * np.random.default_rng(seed).standard_normal(count))


def asked(tmp_path: Path, *words: str) -> Result:
    return CliRunner().invoke(program, ["compare", *words, "--store", str(tmp_path / "store")])


@pytest.mark.parametrize(("step_s", "code"), [(0.12, 1), (0.1, 0), (0.103, 2)])
def test_two_logs_decide_by_their_steps(tmp_path: Path, step_s: float, code: int) -> None:
    new = titan_log(tmp_path / "new.log", noisy(step_s, 300, 1))
    old = titan_log(tmp_path / "old.log", noisy(0.1, 300, 2))
    found = asked(tmp_path, new, old, "--fail-below", "0.97")
    assert found.exit_code == code, found.output
    assert f"(exit code {code})" in found.output
    assert "how much launches of one version differ is not known" in found.output
    assert not (tmp_path / "store").exists(), "files that are compared are not stored"


def test_more_tokens_in_a_longer_step_are_no_loss(tmp_path: Path) -> None:
    new = titan_log(tmp_path / "new.log", noisy(0.18, 300, 1), tokens=8192)
    old = titan_log(tmp_path / "old.log", noisy(0.1, 300, 2))
    found = asked(tmp_path, new, old, "--fail-below", "0.97", "--json")
    document = json.loads(found.output)
    assert document["exit_code"] == 0
    assert document["ratio"]["value"] == pytest.approx(2 / 1.8, rel=0.01)
    assert document["steps"] == [299, 299]
    assert "tokens/s" in document["notes"][0]


def test_several_logs_of_a_side_are_launches(tmp_path: Path) -> None:
    new = [titan_log(tmp_path / f"new{n}.log", noisy(0.12 + 0.001 * n, 30, n)) for n in range(3)]
    old = [titan_log(tmp_path / f"old{n}.log", noisy(0.1 + 0.001 * n, 30, n)) for n in range(3)]
    found = asked(tmp_path, *new, "--", *old, "--fail-below", "0.97")
    assert found.exit_code == 1, found.output
    assert "with 3 and 3 launches" in found.output
    swapped = asked(tmp_path, *old[:2], "--", *new[:1], "--fail-below", "0.97")
    assert swapped.exit_code == 0, swapped.output
    assert "of 2 and 1 launches" in swapped.output


@pytest.mark.parametrize("words", [("a", "b", "c"), ("a", "--"), ("--", "b"), ("a", "--", "b", "--", "c"), ("a",)])
def test_other_than_two_sides_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    found = asked(tmp_path, *words)
    assert found.exit_code == 2
    assert "expected two sides" in found.output


def test_a_launch_that_is_named_twice_is_no_two_launches(tmp_path: Path) -> None:
    store = write(tmp_path, [Made(ranks=1)])
    with pytest.raises(InputError, match="a launch is named twice"):
        side_of(["study=made", "ranks=1"], store)


def test_launches_of_common_rounds_are_paired_and_steps_have_the_asked_confidence(tmp_path: Path) -> None:
    store = write(tmp_path, [Made(ranks=1), Made(ranks=2)])
    sides = [side_of([f"ranks={ranks}"], store) for ranks in (1, 2)]
    assert compare_sides(*sides, 0.95)[0].num_pairs == 3
    steps = [noisy(0.1, 40, seed).tolist() for seed in (1, 2)]
    few = [
        replace(side, launches=replace(side.launches, samples_per_s=[10.0], rounds=[("c", 0)]), steps=[seconds])
        for side, seconds in zip(sides, steps, strict=True)
    ]
    wide, narrow = (compare_sides(*few, confidence)[0].ratio.width for confidence in (0.99, 0.8))
    assert wide > 1.5 * narrow


def test_few_steps_do_not_decide(tmp_path: Path) -> None:
    new = titan_log(tmp_path / "new.log", noisy(0.2, 12, 1))
    old = titan_log(tmp_path / "old.log", noisy(0.1, 300, 2))
    found = asked(tmp_path, new, old, "--fail-below", "0.97")
    assert found.exit_code == 2
    assert "not decided (exit code 2): three launches of each side are needed, or 20 steps" in found.output


def test_known_and_unknown_batches_are_not_compared(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    for name, batch in (("one", ()), ("other", ("--batch", "8"))):
        log = titan_log(tmp_path / f"{name}.log", noisy(0.1, 60, 1))
        assert CliRunner().invoke(program, ["import", log, "--name", name, *batch, "--store", store]).exit_code == 0
    with pytest.raises(InputError, match="the batch of 1 of 2 launches is not known"):
        raise asked(tmp_path, "one", "other").exception or AssertionError("compared")


def flicker(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Noise at every time scale."""
    frequencies = np.fft.rfftfreq(8 * count)[1:]
    waves = frequencies**-0.5 * (rng.standard_normal(len(frequencies)) + 1j * rng.standard_normal(len(frequencies)))
    noise = np.fft.irfft(np.concatenate([[0], waves]))
    return np.exp(0.05 * noise[:count] / noise.std())


def after_another(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Each step as long as the one before, but for a tenth."""
    noise = rng.standard_normal(count)
    for place in range(1, count):
        noise[place] = 0.9 * noise[place - 1] + 0.19**0.5 * noise[place]
    return 1 + 0.05 * noise


def stalled(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return 1 + 0.02 * rng.standard_normal(count) + 5 * ((np.arange(count) + rng.integers(50)) % 50 == 0)


@pytest.mark.parametrize("steps_of", [flicker, after_another, stalled])
def test_steps_that_depend_on_each_other_raise_no_false_alarm(steps_of) -> None:  # type: ignore[no-untyped-def]
    rng, alarms, turns = np.random.default_rng(3), 0, 200
    for _ in range(turns):
        sides = [[(1 / steps.mean(), list(steps))] for steps in (steps_of(200, rng), steps_of(200, rng))]
        result = compare_steps(*sides)
        assert result is not None
        alarms += result.verdict != "no difference shown"
    assert alarms / turns <= 0.13, "of independent steps the same interval would give 40 % and more"


@pytest.mark.parametrize("note", ["the batch is not known: no tensor was given to the model", "4 threads of each rank"])
def test_a_watched_run_without_a_batch_is_not_compared_with_one_that_has_it(tmp_path: Path, note: str) -> None:
    for name, labels, batch in (("new", (note,), 1), ("old", (), 8)):
        steps = [ObservedStep(0, n, 0.1 * n, float(s), {}) for n, s in enumerate(noisy(0.1, 40, 3))]
        observed = Observed(name=name, network="net", framework="pytorch/ddp", ranks=1, steps=steps, launcher="watch",
                            labels=labels, batch=batch)  # fmt: skip
        record(observed, Store(tmp_path / "store"))
    found = asked(tmp_path, "study=new", "study=old")
    assert isinstance(found.exception, InputError) is note.startswith("the batch"), found.output
    assert not found.exception or "the batch of 1 of 2 launches is not known" in str(found.exception)
