"""What the lines of a training log say together, by hand: facts, starts, and the seconds of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.errors import InputError
from paceline.explain.imports import NO_BATCH, Labels, _files, import_files
from paceline.measurements.foreign import logs
from paceline.measurements.foreign.log_forms import LOG_FORMS, LoggedStep
from paceline.measurements.store import Store


def test_ranks_without_a_number_are_rank_zero() -> None:
    """Rank 1's counting from a former step begins anew; that of rank 0, with or without its number, does not."""
    steps = [LoggedStep(step, rank) for rank, step in ((1, 5), (None, 3), (0, 4), (1, 6), (1, 2), (None, 1))]
    assert [step.start for step in logs._started(steps, set())] == [0, 0, 0, 0, 1, 1]
    assert [step.start for step in logs._started(steps, {2})] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"local": 8, "global": 128}, {"world": 16}),
        ({"local": 8, "accumulation": 2, "global": 128}, {"world": 8}),
        ({"local": 8, "accumulation": 2, "world": 4}, {"global": 64}),
        ({"local": 8, "global": 100}, {}),
        ({"local": 8, "global": 128, "world": 4}, {}),
        ({"accumulation": 2, "global": 128}, {}),
        ({"accumulation": 2, "world": 4}, {}),
        ({"local": 8}, {}),
    ],
)
def test_batches_and_devices_follow_from_each_other(facts: dict[str, int], found: dict[str, int]) -> None:
    known = dict(facts)
    logs._note_devices(known)
    assert known == {**facts, **found}


def test_the_first_sensible_fact_counts() -> None:
    facts: dict[str, int] = {}
    assert logs._note_facts("world size: 0", facts)
    assert logs._note_facts("global batch size: 0, sequence length: 512", facts)
    assert facts == {"sequence": 512}
    assert logs._note_facts("global batch size: 64, seq_len=1024, world_size=8", facts)
    assert facts == {"sequence": 512, "global": 64, "world": 8}
    assert not logs._note_facts("step: 3  loss: 1.0", facts)


def test_of_two_bars_the_longer_is_the_training() -> None:
    steps = [LoggedStep(2, None, total=100), LoggedStep(1, 0, total=100), LoggedStep(1, None, total=5),
             LoggedStep(1, 1, total=100), LoggedStep(2, 0, seconds=7.0, total=100)]  # fmt: skip
    assert [(step.rank, step.step, step.seconds) for step in logs._once(steps)] == [
        (0, 1, None), (0, 2, 7.0), (1, 1, None)]  # fmt: skip
    assert logs._once([]) == []


@pytest.mark.parametrize(
    ("before", "after", "seconds"),
    [
        ({"step": 4, "at_s": 10.0}, {"step": 6, "at_s": 13.0}, 1.5),
        ({"step": 4, "at_s": 10.0}, {"step": 4, "at_s": 13.0}, None),
        ({"step": 5, "at_s": 10.0}, {"step": 4, "at_s": 13.0}, None),
        ({"step": 4}, {"step": 6, "at_s": 13.0}, None),
        ({"step": 4, "at_s": 10.0}, {"step": 6}, None),
        ({"step": 4, "at_s": 10.0, "rank": 1}, {"step": 6, "at_s": 13.0}, None),
        ({"step": 4, "at_s": 10.0}, {"step": 6, "at_s": 13.0, "start": 1}, None),
    ],
)
def test_seconds_between_two_lines(before: dict[str, Any], after: dict[str, Any], seconds: float | None) -> None:
    assert logs._from_times(LoggedStep(**before), LoggedStep(**after)) == seconds
    assert logs._from_times(None, LoggedStep(**after)) is None


def test_what_a_line_says_counts_before_tokens_and_tokens_before_times() -> None:
    facts = {"sequence": 1000, "local": 4}
    lines = [LoggedStep(1, at_s=0.0), LoggedStep(2, at_s=9.0, tokens_per_s=2000.0),
             LoggedStep(3, at_s=12.0), LoggedStep(4, at_s=90.0, seconds=0.5, tokens_per_s=1.0)]  # fmt: skip
    assert [(step.step, step.seconds) for step in logs._timed(lines, facts)] == [(2, 2.0), (3, 3.0), (4, 0.5)]
    assert logs._timed([LoggedStep(1, seconds=1e6), LoggedStep(2, seconds=999_999.0)], {})[0].step == 2


@pytest.mark.parametrize(("mfu", "kept"), [((0.5, 1.0), (0.5, 1.0)), ((0.5, 1.01, None), (None, None, None))])
def test_no_share_of_the_peak_is_above_one(mfu: tuple[float | None, ...], kept: tuple[float | None, ...]) -> None:
    steps, notes = logs._without_impossible([LoggedStep(n, mfu=share) for n, share in enumerate(mfu)])
    assert tuple(step.mfu for step in steps) == kept
    assert len(notes) == (kept[0] is None)
    if notes:
        assert "an MFU of 101.0 % in step 1" in notes[0]


def test_the_moment_of_a_line() -> None:
    one, other = (logs._moment(f"[x] 2024-05-23{sign}12:00:0{second}{rest} - INFO")
                  for sign, second, rest in ((" ", 1, ",250"), ("T", 3, "")))  # fmt: skip
    assert one is not None
    assert other is not None
    assert other - one == pytest.approx(1.75)
    assert logs._moment("no time") is None
    assert logs._moment("2024-13-23 12:00:00") is None
    assert logs._moment("1900-01-01 12:00:00") is None, "before 1970"


BAR = "  5%|▌         | {step}/200 [00:08<02:20,  1.60s/it"
LINES = {
    "nemo": "0: Training epoch 0, iteration {step}/99 | lr: 6e-06 | global_batch_size: 64 | global_step: {step} | "
    "reduced_train_loss: 9.1 | train_step_timing in s: 1.6 | tokens_per_sec_per_gpu: 1.2e+03 | consumed_samples: 7",
    "nanogpt": "iter {step}: loss 3.1415, time 1600.00ms, mfu -100.00%",
    "llm.c": "step {step:4d}/900 | loss 7.5 (+nanz)| norm 1.2 (+nanz)| lr 6e-04 | 1600.0 ms | 42.5% bf16 MFU | 9 tok/s",
    "maxtext": "completed step: {step}, seconds: 1.600, TFLOP/s/device: 88.1, Tokens/s/device: 900.1, loss: 10.1",
    "torchvision": "Epoch: [0][ {step}/500]\tTime  1.600 ( 2.512)\tData  0.010 ( 0.210)\tLoss 6.9e+00 (7.0e+00)",
    "timm": "Train: 0 [ {step}/500 (  2%)]  Loss: 6.9 (6.9)  Time: 1.600s,  70.0/s  (2.401s,  60.1/s)  LR: 1e-06",
    "mmengine": "Epoch(train)  [1][ {step}/500]  lr: 2e-02  eta: 5:10:11  time: 1.6000  data_time: 0.0123  loss: 1.2",
    "detectron2": "eta: 1:10:11  iter: {step}  total_loss: 1.2  time: 1.6000  last_time: 0.2 data_time: 0.1  lr: 0.02",
    "deepspeed-pipeline": "steps: {step} loss: 2.5 iter time (s): 1.600 samples/sec: 20.00",
    "deepspeed": "[2026-05-05 10:00:00,000] epoch=0/micro_step=9/global_step={step}, RunningAvgSamplesPerSec=99.9, "
    "CurrSamplesPerSec=20.0, MemAllocated=4GB",
    "fairseq": "2023-01-05 10:00:00 | INFO | train_inner | epoch 001:  {step} / 900 loss=9.1, wps=1000, ups=0.62, "
    "wpb=1600.0, bsz=64, num_updates={step}, lr=1e-05, train_wall=5, wall=99",
    "llama-factory": '{{"current_steps": {step}, "total_steps": 200, "loss": 1.5, "epoch": 0.1, "percentage": 5.0, '
    '"elapsed_time": "1 day, 0:00:{elapsed:02d}", "remaining_time": "0:01:00", "throughput": 5120.5}}',
    "torchtune": "Step {step} | loss:1.9 lr:2e-05 tokens_per_second_per_gpu:20480.0 peak_memory_active:12.1 ",
    "keras": "{step}/500 ━━━━━━━━━━━━━━━━━━━━ 12:01 1.6s/step - accuracy: 0.1 - loss: 2.3",
    "megatron": "[default0]: iteration {step:8d}/ 900 | elapsed time per iteration (s): 1.60 | global batch size: 64 |",
    "hf-trainer": f"{BAR}]", "bar": f"Steps: {BAR}, lr=1e-5, step_loss=0.1]",
    "olmo": "2024-07-08 10:{minute:02d}:{second:02d}.500 host:0 olmo.train:908 INFO [step={step}/900,epoch=0]\n"
    "    train/CrossEntropyLoss=1.78\n    throughput/total_tokens=2,097,152\n"
    "    throughput/device/tokens_per_second=26,668",
    "composer": "[batch={step}/900]:\n\t Train time/epoch: 0\n\t Train throughput/batches_per_sec: 0.625\n"
    "\t Train throughput/device/batches_per_sec: 0.039\n\t Train throughput/device/mfu: 0.2489",
    "ultralytics": "       1/55      9.03G      0.132      8.032      3.308   22   640:   5%|▌    | {step}/200 "
    "[11:41<00:00,  1.60s/it]",
    "paddlenlp": "[2022-08-31 16:12:28,082] [    INFO] - loss: 0.8, learning_rate: 2.97e-05, global_step: {step}, "
    "interval_runtime: 16.0, interval_samples_per_second: 2.5, interval_steps_per_second: 0.625, epoch: 0.5",
    "script": "INFO:root:Step {step}/900 | loss 2.31 | 9,120 tokens/s | step_time: 1.60s",
    "lightning": "Epoch 0: |          | {step}/? [00:10<00:00,  0.625it/s, v_num=0]",
}  # fmt: skip
OTHERS = {
    "fairseq": ('{{"epoch": 1, "update": 0.1, "loss": "9.1", "wps": "1000", "ups": "0.62", "wpb": "1600", "bsz": "64", '
                '"num_updates": "{step}", "lr": "1e-05", "wall": "99"}}',),
    "deepspeed": ("[2021-05-01 10:00:00,000] [INFO] [timer.py:154:stop] 0/{step}, SamplesPerSec=20.0",),
    "keras": ("{step}/500 [==>.......] - 4s 1600ms/step - loss: 2.2", "{step}/500 - 4s - 1600000us/step - loss: 2.2"),
    "llm.c": ("step {step:5d} | loss: 10.9 | lr 6e-04 | norm: 15.3 | dt: 1600.00ms | tok/sec: 150.4",
              "step {step:4d}/74: train loss 4.3 (1600.000 ms, 900 tok/s)"),
    "torchvision": ("Epoch: [0]  [ {step}/500]  eta: 1:23:45  lr: 0.1  loss: 6.9 (6.9)  time: 1.6000  data: 0.01",),
    "mmengine": ("Iter(train) [ {step}/500]  lr: 2e-02  eta: 5:10:11  time: 1.6000  data_time: 0.0123  loss: 1.2",),
    "bar": (f"{BAR}, loss=0.1]", f"1|5|Loss: 2.25: {BAR}]"),
    "olmo": ("2025-05-01 10:{minute:02d}:{second:02d}.123\thost:0\tINFO\t[step={step}/900,epoch=1,eta=1:00:00]\n"
             "    train/CE loss=10.7\n    throughput/device/TPS=12,345",),
    "composer": ("[epoch=1][batch={step}/900]:\n         Train throughput/batches_per_sec: 0.6250",),
    "ultralytics": ("  1/55  0G  0.132  8.032  3.308   22   640: 5% ━━╸───── {step}/200 1.6s/it 3.2s<1:00",),
    "script": ('{{"step": {step}, "loss": 2.31, "lr": 3e-4, "step_time_ms": 1600.0}}',
               "epoch 1 | step {step}/900 | loss 2.31 | 1600.0 ms/step | lr 1e-3",
               "[ppo_step {step}] iter time (s)=1.600, eps/s=12.1", "iteration={step} loss=2.1 0.625 it/s",
               "(TaskRunner pid=7) step:{step} - perf/throughput:447.1 - timing_s/gen:1.1 - timing_s/step:1.600"),
    "lightning": ("Epoch 0: :  5%| | {step}/200 [00:06<01:00, global_step=5.0, train_step_timing in s=1.600]",),
}  # fmt: skip


@pytest.mark.parametrize(
    ("form", "line"), [*LINES.items(), *((form, line) for form, lines in OTHERS.items() for line in lines)]
)
def test_lines_of_each_program(tmp_path: Path, form: str, line: str) -> None:
    path = tmp_path / "train.log"
    head = "  train_batch_size ............. 32\n" + (
        "seq_len: 1024, local batch size: 32\n" if form == "torchtune" else ""
    )
    by_clock = form in ("llama-factory", "olmo")
    numbers = (5, 10, 20, 30) if by_clock else (10, 20, 30)  # the first line of a clock says no time
    times = [dict(zip(("minute", "second"), divmod(n * 8 // 5, 60), strict=True)) for n in numbers]
    lines = (line.format(step=n, elapsed=n * 8 // 5, **at) for n, at in zip(numbers, times, strict=True))
    path.write_text(head + "".join(f"{text}\n" for text in lines))
    log = logs.read_log(path)
    assert log.form == form
    assert [step.seconds for step in log.steps] == pytest.approx([1.6] * 3)
    assert [step.step % 100 for step in log.steps] == [10, 20, 30]


def test_every_form_has_a_line_here() -> None:
    assert {*LINES, "torchtitan"} == set(LOG_FORMS)


@pytest.mark.parametrize("library", ["deepspeed", "hf-trainer", "bar"])
def test_lines_of_a_library_do_not_hide_those_of_the_program(tmp_path: Path, library: str) -> None:
    """As DeepSpeed writes beneath Megatron, and as files are read before the training."""
    path = tmp_path / "train.log"
    path.write_text("".join(f"{LINES[library].format(step=n)}\n{LINES['megatron'].format(step=n)}\n" for n in (10, 20)))
    log = logs.read_log(path)
    assert (log.form, [step.step for step in log.steps]) == ("megatron", [10, 20])


def test_epochs_of_unknown_length_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "".join(f"Epoch {epoch}: | | {n}/? [00:10<00:00, 2.00it/s]\r" for epoch in range(3) for n in (1, 2))
    )
    assert [step.step for step in logs.read_log(path).steps] == [1, 2, 3, 4, 5, 6]


def test_bars_of_epochs_that_a_line_before_names(tmp_path: Path) -> None:
    """The bar of an epoch states the mean since its begin: its last line counts, and no epoch hides another."""
    path = tmp_path / "train.log"
    bars = "".join(f"\r\x1b[1m{n}/4\x1b[0m ━━ \x1b[1m0s\x1b[0m {n * 100}ms/step - loss: 1" for n in (1, 2, 3, 4, 4))
    path.write_text("".join(f"Epoch {epoch}/3\n{bars}\n" for epoch in (1, 2, 3)))
    assert [(step.step, step.seconds) for step in logs.read_log(path).steps] == [(4, 0.4), (8, 0.4), (12, 0.4)]
    bars = "".join(f"\r{n}0%|#| {n}/4 [00:0{n}<00:03,  1.{n}0s/it]" for n in (1, 2, 3, 4))
    path.write_text("".join(f"Epoch {epoch}/3\n{bars}\n" for epoch in (1, 2, 3)))
    assert [step.step for step in logs.read_log(path).steps] == [*range(1, 13)]


@pytest.mark.parametrize(("stated", "contradicts"), [(1.6, False), (1.9, False), (0.4, True), (12.8, True)])
def test_figures_that_the_times_of_the_lines_contradict(tmp_path: Path, stated: float, contradicts: bool) -> None:
    """Ten steps in 16 s, and one pause of a minute."""
    path = tmp_path / "train.log"
    words = f"elapsed time per iteration (ms): {1000 * stated} | global batch size: 64 |"
    times = [(n, *divmod(n * 16 + (60 if n > 5 else 0), 60)) for n in range(1, 9)]
    path.write_text(
        "".join(f" [2024-07-01 10:{m:02d}:{s:02d}] iteration {10 * n}/ 900 | {words}\n" for n, m, s in times)
    )
    notes = logs.read_log(path).notes
    assert bool(notes) is contradicts
    assert not notes or f"a step takes {stated:.3g} s, by the times of its lines 1.6 s" in notes[0]


@pytest.mark.parametrize(("each_s", "found"), [(0.3, (0.25, 0.36)), (2.4, (2.0, 3.0)), (7.0, (7.0, 7.0))])
def test_a_clock_of_whole_seconds_does_not_lengthen_short_steps(
    tmp_path: Path, each_s: float, found: tuple[float, float]
) -> None:
    """Lines of one second do not count as steps of a second, and those between them are not dropped."""
    path = tmp_path / "trainer_log.jsonl"
    clock = [divmod(int(each_s * n), 60) for n in range(1, 101)]
    text = LINES["llama-factory"].replace("0:00:{elapsed:02d}", "0:{at[0]:02d}:{at[1]:02d}")
    path.write_text("".join(f"{text.format(step=n, at=at)}\n" for n, at in enumerate(clock, 1)))
    seconds = [step.seconds or 0.0 for step in logs.read_log(path).steps]
    assert found[0] <= min(seconds) <= max(seconds) <= found[1]


@pytest.mark.parametrize("line", [
    "step {n} loss 2.1 step_time 810", "validation step {n} step_time=9s", "step {n} loss 2.1 eval time 3.2s",
    "Denoising steps:  50%|#| {n}/10 [00:01<00:01, 3.0it/s]", "saved step {n} of 900 in 3.2 s",
    "step 1.{n} s, step_time=2 s",
])  # fmt: skip
def test_lines_that_do_not_say_how_long_a_step_takes(tmp_path: Path, line: str) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f"{line.format(n=n)}\n" for n in range(1, 9)))
    with pytest.raises(InputError, match="no line of a training log that we know"):
        logs.read_log(path)


def test_steps_of_epochs_without_length_count_on_only_where_they_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    words = "epoch {e} step {n} step_time=0.5s"
    path.write_text("\n".join(words.format(e=e, n=n) for e in (1, 2) for n in (1, 2, 3)))
    assert [step.step for step in logs.read_log(path).steps] == [1, 2, 3, 4, 5, 6]
    path.write_text("\n".join(words.format(e=n // 4, n=n) for n in range(1, 8)))
    assert [step.step for step in logs.read_log(path).steps] == [1, 2, 3, 4, 5, 6, 7]


def test_a_clock_of_whole_seconds_tells_steps_of_four_seconds_and_more() -> None:
    def seconds(*moments: float, coarse: bool = True) -> list[float]:
        steps = [LoggedStep(number, at_s=at, is_coarse=coarse) for number, at in enumerate(moments)]
        return [step.seconds or 0.0 for step in logs._timed(steps, {})]

    assert seconds(0.0, 3.0, 4.0, 8.0) == [2.0, 4.0], "a line three seconds later is left out, and its step counts"
    assert seconds(0.0, 3.0, 4.0, 8.0, coarse=False) == [3.0, 1.0, 4.0]


def test_where_the_length_of_an_epoch_is_known_steps_are_counted_on() -> None:
    step = LOG_FORMS["torchvision"]("Epoch: [2]  [ 30/100]  eta: 0:00:10  time: 0.25")
    assert step is not None
    assert (step.step, step.total, step.epoch) == (230, 100, None), "not counted on once more at the next epoch"


def test_a_rate_of_all_devices_is_that_of_the_whole_batch() -> None:
    def seconds(**said: float) -> list[float]:
        step = LoggedStep(1, **said)  # type: ignore[arg-type]
        return [one.seconds or 0.0 for one in logs._timed([step], FACTS)]

    assert seconds(samples_per_s=100.0) == [0.5], "samples per second are those of all devices"
    assert seconds(tokens_per_s=1000.0) == [2.0], "and tokens per second those of one"


FACTS = {"local": 5, "global": 50, "world": 5, "sequence": 200}


def test_one_timed_step_is_no_log_of_steps(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("iter 1: loss 2.0, time 12.5ms\n")
    with pytest.raises(InputError, match=r"has 1 timed steps of nanogpt in 1 lines, at least two are needed"):
        logs.read_log(path)
    path.write_text("iter 1: loss 2.0, time 12.5ms\niter 2: loss 2.0, time 12.5ms\n")
    assert [step.seconds for step in logs.read_log(path).steps] == [0.0125, 0.0125]


@pytest.mark.parametrize(
    ("clock", "seconds"), [("1 day, 0:00:05", 86405), ("2 days, 1:02:03", 176523), ("1:02:03", 3723), ("02:03", 123)]
)
def test_the_time_that_elapsed_has_days(clock: str, seconds: float) -> None:
    line = f'{{"current_steps": 5, "total_steps": 100, "loss": 1.0, "elapsed_time": "{clock}"}}'
    step = LOG_FORMS["llama-factory"](line)
    assert step is not None
    assert (step.at_s, step.is_coarse) == (seconds, True)


def test_steps_of_an_imported_log_begin_where_the_one_before_ended(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f"iter {n}: loss 2.0, time {100 * n}.00ms\n" for n in range(1, 5)))
    store = Store(tmp_path / "s")
    imported = import_files([path], store, Labels())
    (name,) = store.names(campaign=imported.campaign)
    assert NO_BATCH in store.load(name).run.labels, "a rate without a batch is one of steps"
    rows = store.load(name).steps.to_pylist()
    assert [row["start_s"] for row in rows if row["rank"] == 0] == pytest.approx([0.0, 0.1, 0.3, 0.6])


@pytest.mark.parametrize(
    ("stated", "contradicts"), [(1.0, False), (1.32, False), (1.34, True), (0.76, False), (0.74, True)]
)
def test_a_log_whose_clock_says_something_else_contradicts_itself(stated: float, contradicts: bool) -> None:
    steps = [LoggedStep(number, at_s=2.5 * number, seconds=2.5 * stated) for number in range(6)]
    assert bool(logs._contradictions(steps)) == contradicts
    assert logs._contradictions(steps[:4]) == (), "three pairs do not tell"
    quick = [LoggedStep(number, at_s=0.1 * number, seconds=1.0) for number in range(60)]
    assert logs._contradictions(quick) == (), "six seconds do not tell"


def test_what_is_hidden_in_a_folder_is_no_record(tmp_path: Path) -> None:
    for name in (".DS_Store", "b.log", "a.log"):
        (tmp_path / name).write_text("x")
    (tmp_path / "more").mkdir()
    assert [path.name for path in _files([tmp_path])] == ["a.log", "b.log"]


@pytest.mark.parametrize("network", ["a\nb", " ", "", "x" * 201])
def test_a_network_has_a_name_of_one_line(tmp_path: Path, network: str) -> None:
    with pytest.raises(InputError, match="--network"):
        import_files([tmp_path / "train.log"], Store(tmp_path), Labels(network=network))
