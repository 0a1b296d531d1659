"""What logs say beside the times of steps: devices, batch, tokens, starts; and what other verbs say of such runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli import program
from paceline.errors import InputError
from paceline.explain.imports import Imported, Labels, import_files
from paceline.measurements.foreign.logs import read_log
from paceline.measurements.store import Store
from tests.unit.imports.generated import MEGATRON, MEGATRON_LINE

HEAD = "local batch size 8, global batch size 128, gradient accumulation steps 2, sequence length 512\n"


def titan(begin: int, end: int, *, minute: int = 0, facts: str = "tps: 4,096  mfu: 25.00%") -> str:
    """Steps of two seconds each: 8,192 tokens of a device."""
    at = [(step, minute + 2 * step // 60, 2 * step % 60) for step in range(begin, end)]
    return "".join(f"[titan] 2025-01-01 10:{m:02d}:{s:02d},000 - step: {n}  loss: 1.0  {facts}\n" for n, m, s in at)


def imported(tmp_path: Path, text: str, **labels: object) -> Imported:
    path = tmp_path / "train.log"
    path.write_text(text)
    return import_files([path], Store(tmp_path / "s"), Labels(name="mine", **labels))  # type: ignore[arg-type]


def said(tmp_path: Path, *words: str) -> str:
    done = CliRunner().invoke(program, [*words, "--store", str(tmp_path / "s")])
    assert done.exit_code == 0, done.exception
    return done.output


def test_a_log_counts_samples_and_tokens_of_all_devices(tmp_path: Path) -> None:
    """128 samples by devices of 8 x 2 each are 8 devices; 128 samples in two seconds, 4,096 tokens/s of each device."""
    imported(tmp_path, HEAD + titan(1, 30))
    (run,) = Store(tmp_path / "s").read_all(study="mine")
    assert (run.ranks, run.batch, run.labels) == (8, 16, ())
    table = said(tmp_path, "show", "mine")  # in narrow terminals, a case has a line of its own
    assert all(words in table for words in ("batch 16 x 8 ranks", "64.0", "32,768", "25.0 %"))
    text = said(tmp_path, "explain", "mine")
    assert "paceline imported 29 steps on 8 ranks, 2.00 s a step" in text
    assert "Nothing is shown to lengthen the steps." in text
    assert "outside of the phases" not in text


@pytest.mark.parametrize(("world", "ranks", "batch"), [(16, 16, 4), (48, 16, 4), (128, 64, 1)])
def test_devices_that_share_a_sample_count_once(tmp_path: Path, world: int, ranks: int, batch: int) -> None:
    """64 samples in a step, whatever the number of devices: 64 samples/s."""
    steps = "".join(MEGATRON_LINE.format(step=step, ms=1000.0) for step in range(10))
    imported(tmp_path, MEGATRON.split("\n")[0].replace("16", str(world)) + "\n" + steps)
    (run,) = Store(tmp_path / "s").read_all(study="mine")
    assert (run.ranks, run.batch, run.facts["devices"]) == (ranks, batch, world)


def test_a_batch_that_nobody_said_is_noted(tmp_path: Path) -> None:
    imported(tmp_path, titan(1, 5))
    assert "the batch is not known (--batch)" in said(tmp_path, "show", "mine")
    imported(tmp_path, titan(1, 5), batch=4)
    assert "not known" not in said(tmp_path, "show", "mine")


@pytest.mark.parametrize(("first", "second"), [(titan(1, 20), titan(15, 40, minute=40)),
                                               (titan(1, 20), "sequence length 512\n" + titan(20, 40, minute=40))],
                         ids=["from a former step", "after a head"])  # fmt: skip
def test_the_time_between_two_starts_is_no_step(tmp_path: Path, first: str, second: str) -> None:
    found = imported(tmp_path, (first + second).replace("tps: 4,096", ""))
    assert found.log is not None
    assert {step.seconds for step in found.log.steps} == {2.0}
    assert {step.start for step in found.log.steps} == {0, 1}
    assert found.judgement is not None
    assert found.judgement.causes == ()


def test_steps_that_a_log_alone_tells_stall_without_a_phase(tmp_path: Path) -> None:
    lines = "".join(MEGATRON_LINE.format(step=n, ms=3000.0 if n % 10 == 0 else 1000.0 + n % 3) for n in range(1, 61))
    imported(tmp_path, lines)
    assert "1. the step stalls every 10 steps, first in step 10 (transient)" in said(tmp_path, "explain", "mine")
    lines = "".join(MEGATRON_LINE.format(step=n, ms=(1000.0 if n < 30 else 1500.0) + n % 3) for n in range(1, 61))
    imported(tmp_path, lines)
    assert "1. rank 0 became slower, since step 30 (persistent)" in said(tmp_path, "explain", "mine")


def test_the_page_of_a_log_has_its_verdict_and_no_empty_plots(tmp_path: Path) -> None:
    imported(tmp_path, HEAD + titan(1, 30))
    said(tmp_path, "report", "mine", "-o", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert "paceline imported 29 steps on 8 ranks" in page
    assert "Imported from" in page
    for absent in ("timeline-plot", "tornado-plot", "phases-plot", "Measured on unknown"):
        assert f'id="{absent}' not in page
        assert f">{absent}" not in page


def test_the_state_of_hf_trainer_is_refused_with_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    history: list[dict[str, float]] = [{"epoch": 0.1, "loss": 2.0, "step": step} for step in range(5)]
    path.write_text(json.dumps({"epoch": 1.0, "log_history": history}))
    with pytest.raises(InputError, match="has losses, and no times of single steps") as without:
        import_files([path], Store(tmp_path / "s"), Labels())
    assert "disable_tqdm=False" in str(without.value)
    path.write_text(json.dumps({"log_history": [*history, {"train_runtime": 12.5, "train_steps_per_second": 0.4}]}))
    with pytest.raises(InputError, match=r"train_runtime 12\.5, train_steps_per_second 0\.4"):
        import_files([path], Store(tmp_path / "s"), Labels())


def test_a_log_says_where_its_steps_were_started(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(HEAD + titan(1, 4) + titan(2, 6, minute=30))
    assert [(step.step, step.start) for step in read_log(path).steps] == [(1, 0), (2, 1), (3, 1), (4, 1), (5, 1)]


@pytest.mark.parametrize(("given", "wrong"), [
    (MEGATRON.replace("1147.6", "1147,6"), "1147,6"),
    (titan(1, 4, facts="tps: 4.096  mfu: 25,00%"), "25,00"),
    ("".join(f" 10%|#   | {n}/100 [00:0{n}<03:00,  1,90s/it]\n" for n in range(1, 5)), "1,90"),
])  # fmt: skip
def test_a_decimal_comma_is_refused_and_thousands_are_read(tmp_path: Path, given: str, wrong: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(given)
    with pytest.raises(InputError, match=rf"train\.log: the number {wrong} in .* has a decimal comma"):
        read_log(path)
    path.write_text(HEAD + titan(1, 4, facts="tps: 1,234,096.5,  mfu: 25.00%"))
    assert [step.tokens_per_s for step in read_log(path).steps] == [1234096.5] * 3
