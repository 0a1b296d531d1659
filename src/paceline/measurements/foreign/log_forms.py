"""Lines of training logs that state a step: one named pattern for each program that writes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["KNOWN_LINES", "LOG_FORMS", "DecimalComma", "LoggedStep"]

MOST_FIGURE = 1e15
"""A figure of a line that is not below is no figure."""
NUMBER = r"([0-9][0-9,]*\.?[0-9]*(?:[eE][-+]?\d+)?)"
THOUSANDS = re.compile(r"(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+),?(?:[eE][-+]?\d+)?")
"""A number with commas between thousands; any other comma is a decimal comma."""


@dataclass(frozen=True)
class LoggedStep:
    """One line of a log; a field is None if the line does not state it."""

    step: int
    rank: int | None = None
    at_s: float | None = None
    """Seconds since an arbitrary time, when the line was written."""
    seconds: float | None = None
    """Mean seconds per step since the previous line."""
    tokens_per_s: float | None = None
    """Tokens per second of one device."""
    mfu: float | None = None
    """Share of the device's peak, 0 to 1."""
    tflops: float | None = None
    samples: int | None = None
    """Samples of a step of all devices."""
    total: int | None = None
    """Steps of the bar, of an epoch or of all."""
    epoch: int | None = None
    """The epoch, if steps are counted from the begin of each epoch."""
    samples_per_s: float | None = None
    """Samples per second of all devices."""
    start: int = 0
    """Which start of the training wrote the line: a log may go on after a checkpoint was loaded."""
    is_coarse: bool = False
    """Whether the time of the line is in whole seconds."""


Reader = Callable[[str], LoggedStep | None]


class DecimalComma(Exception):
    """A number whose comma does not stand before three digits."""


def _number(pattern: str) -> Callable[[str], float | None]:
    compiled = re.compile(pattern)

    def read(line: str) -> float | None:
        found = compiled.search(line)
        given = found.group(1) if found else "inf"
        if "," in given and not THOUSANDS.fullmatch(given):
            raise DecimalComma(given[:40])
        value = float(given.replace(",", ""))
        return value if value < MOST_FIGURE else None

    return read


def _form(sign: str, step: str, **others: str) -> Reader:
    """A reader of lines with this sign that name the step, of an epoch where there is one, and any of these figures.

    Without figures, the line has to name the time that elapsed.
    """
    number_of, readers = re.compile(step), {name: _number(pattern) for name, pattern in others.items()}

    def read(line: str) -> LoggedStep | None:
        place = number_of.search(line) if sign in line else None
        if place is None or _step_of(place.groupdict()) >= 2**31:
            return None
        found = {name: value for name, reader in readers.items() if (value := reader(line)) is not None}
        return _logged(place.groupdict(), found) if found or not readers else None

    return read


def _step_of(place: dict[str, str | None]) -> int:
    """The number of a step since the first epoch, where the length of an epoch is known."""
    return int(place["step"] or 0) + int(place.get("epoch") or 0) * int(place.get("total") or 0)


def _logged(place: dict[str, str | None], found: dict[str, float]) -> LoggedStep:
    total, epoch = place.get("total"), place.get("epoch")
    return LoggedStep(
        step=_step_of(place),
        at_s=_elapsed(place.get("elapsed")),
        is_coarse=place.get("elapsed") is not None,
        seconds=_seconds_of(found),
        tokens_per_s=found.get("tokens"),
        mfu=found["mfu"] / 100 if "mfu" in found else found.get("mfu_share"),
        tflops=found.get("tflops"),
        samples=int(found["samples"]) if "samples" in found else None,
        total=int(total) if total else None,
        epoch=int(epoch) if epoch and not total else None,
        samples_per_s=found.get("sample_rate"),
    )


def _seconds_of(found: dict[str, float]) -> float | None:
    """Seconds of a step, from the most precise figure of the line."""
    for unit, factor in (("ms", 1e-3), ("us", 1e-6)):
        if unit in found:
            return found[unit] * factor
    if found.get("all_tokens") and found.get("all_tokens_per_s"):
        return found["all_tokens"] / found["all_tokens_per_s"]
    return 1 / found["rate"] if found.get("rate") else found.get("seconds")


def _elapsed(clock: str | None) -> float | None:
    """Seconds of `4 days, 1:02:03` or `02:03`."""
    given = ELAPSED.fullmatch(clock or "")
    if given is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in given.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


ELAPSED = re.compile(r"(?:(\d{1,5}) days?, )?(?:(\d{1,6}):)?(\d{1,2}):(\d{1,2})")
BAR = r"\d+%\|[^|]*\|\s*(?P<step>\d{1,12})/(?P<total>\d{1,12}) \[(?P<elapsed>[0-9:?]+)<[0-9:?, ]+"
TIMED = (
    r"(?i:\b(?:(?:step|iter(?:ation)?|batch|update)[ _-]?(?:time|duration)|"
    r"time[ _/-]?per[ _/-]?(?:step|iter(?:ation)?|batch|update)|(?:step|iter(?:ation)?)[ _-]took))"
)
"""Names of the time of a step in logs of users' own programs."""
UNITS = {"s": r"(?:s|secs?|seconds?)", "ms": r"(?:ms|msecs?|milliseconds?)"}


def _in_unit(unit: str) -> str:
    """The time of a step whose unit is named before or after the number; without a unit, it is no time."""
    word, before, after = UNITS[unit], r"[\"']?\s?[:=|]?\s{0,4}", rf"(?=[\d.,eE+-]+\s?{UNITS[unit]}(?![\w/]))"
    named = rf"{TIMED}(?:_{word}|\s?[(\[]{word}[)\]]){before}"
    rate = rf"(?<![\w.])(?=[\d.,]+ ?{word}/(?:it(?:er(?:ation)?)?|step|batch|update)\b)"
    named += r"|\btiming_s/step:" if unit == "s" else ""  # of verl
    return rf"(?:{named}|{TIMED}{before}{after}|{rate}){NUMBER}"


def _of_training(reader: Reader) -> Reader:
    """The same reader, without lines of an evaluation and bars."""

    def read(line: str) -> LoggedStep | None:
        lowered = line.lower()
        if not any(word in lowered for word in ("step", "iter", "update")) or OTHER_STEPS.search(lowered):
            return None
        return reader(line)

    return read


OTHER_STEPS = re.compile(r"%\||\b(?:eval|evaluat\w+|val|valid|validat\w+|test\w*|infer\w*)\b")
OWN_STEP = (
    r"(?i:(?:\bepoch\W{0,3}(?P<epoch>\d{1,6})\b.{0,40}?)?(?:\b|_)(?:step|iter(?:ation)?|update)s?[\"']?\s{0,3}[:=#]?"
    r"\s{0,3}[\[(]?\s{0,9}(?P<step>\d{1,12})\b(?![.:]\d|\s?(?:m?s(?:ec)?\b|%)))"
)
"""The number of a step in a line of a user's own program, and of its epoch."""
OF_EPOCH = r"\[\s{0,9}(?P<step>\d{1,9})/(?P<total>\d{1,9})"
LOG_FORMS: dict[str, Reader] = {
    "torchtitan": _form(
        "step:", r"(?<!validate )\bstep:\s*(?P<step>\d{1,12})\s+loss:", tokens=rf"\b[tw]ps:\s*{NUMBER}",
        tflops=rf"\btflops:\s*{NUMBER}", mfu=rf"\bmfu:\s*{NUMBER}%",
    ),
    "megatron": _form(
        "iteration", r"\biteration\s+(?P<step>\d{1,12})/\s*(?:\d+|infinity)\s*\|",
        samples=r"global batch size:\s*(\d+)",
        ms=rf"elapsed time per iteration \(ms\):\s*{NUMBER}", seconds=rf"elapsed time per iteration \(s\):\s*{NUMBER}",
        tflops=rf"(?:(?:throughput|compute) per GPU \(TFLOP/s/GPU\)|\bTFLOPs):\s*{NUMBER}",
        tokens=rf"(?:tokens/s/GPU|tokens per gpu per second \(tgs\)):?\s*{NUMBER}",
    ),
    "nemo": _form(
        "Training epoch", r"\bTraining epoch \d+, iteration \d+/\d+ \|.{0,400}?\bglobal_step: (?P<step>\d{1,12})\b",
        seconds=rf"\btrain_step_timing in s: {NUMBER}", samples=r"\bglobal_batch_size: (\d+)",
        tflops=rf"\bTFLOPS_per_GPU: {NUMBER}", tokens=rf"\btokens_per_sec_per_gpu: {NUMBER}",
    ),
    "lightning": _form(
        "Epoch ",
        r"\bEpoch (?P<epoch>\d{1,6})(?:/-?\d+)?:?\s[^\[]{0,600}?\b(?P<step>\d{1,9})/(?:(?P<total>\d{1,9})|\?) "
        r"(?:\[|\d+:\d\d)",
        seconds=rf"(?:\btrain_step_timing in s=|[, ]\s{{0,9}}(?=[\d.,]+s/it\b)){NUMBER}",
        rate=rf"[, ]\s{{0,9}}{NUMBER}it/s\b",
    ),
    "nanogpt": _form("iter ", r"\biter (?P<step>\d{1,12}): loss ", ms=rf"\btime {NUMBER}ms\b", mfu=rf"\bmfu {NUMBER}%"),
    "llm.c": _form(  # and nanochat; their tokens per second are of all devices
        "step ", r"(?:^|[\]>]:?)\s*step\s+(?P<step>\d{1,12})(?:/\d+)?(?: \([\d.]+%\))?\s?[|:] (?:train )?loss",
        ms=rf"(?:[|(]\s{{0,9}}|\bdt: ){NUMBER} ?ms\b", mfu=rf"(?:\bmfu: |(?=[\d.]+% \w+ MFU)){NUMBER}",
    ),
    "maxtext": _form(
        "completed step", r"\bcompleted step: (?P<step>\d{1,12}), ", seconds=rf"\bseconds: {NUMBER}",
        tflops=rf"\bTFLOP/s/device: {NUMBER}", tokens=rf"\bTokens/s/device: {NUMBER}",
    ),
    "torchvision": _form(
        "Epoch: [", rf"\bEpoch: \[(?P<epoch>\d{{1,6}})\]\s{{0,9}}{OF_EPOCH}\]", seconds=rf"\b[Tt]ime:?\s+{NUMBER}"
    ),
    "timm": _form("Train: ", rf"\bTrain: (?P<epoch>\d{{1,6}}) {OF_EPOCH} ", seconds=rf"\bTime: \s{{0,9}}{NUMBER}s"),
    "mmengine": _form(
        "(train)", rf"(?:\bEpoch\(train\)\s+\[(?P<epoch>\d{{1,6}})\]|\bIter\(train\)\s+){OF_EPOCH}\]",
        seconds=rf"\btime: {NUMBER}",
    ),
    "detectron2": _form("total_loss:", r"\biter: (?P<step>\d{1,12})\s+total_loss: ", seconds=rf"\btime: {NUMBER}"),
    "deepspeed-pipeline": _form(
        "steps: ", r"\bsteps: (?P<step>\d{1,12}) loss: ", seconds=rf"\biter time \(s\): {NUMBER}"
    ),
    "hf-trainer": _form(
        "%|", rf"(?:^|\]:)\s*{BAR}", seconds=rf",\s{{0,9}}{NUMBER}s/it\]", rate=rf",\s{{0,9}}{NUMBER}it/s\]"
    ),
    "bar": _form(  # of diffusers, torchtune and others: a description before it, figures in it
        "%|", rf"(?:^|\]:|\b(?:Steps|Train\w*|Iter\w*):|\b(?P<epoch>\d{{1,6}})\|\d+\|Loss: [^:|]{{1,20}}:)\s*{BAR}",
        seconds=rf",\s{{0,9}}{NUMBER}s/it[\],]", rate=rf",\s{{0,9}}{NUMBER}it/s[\],]",
    ),
    "fairseq": _form(  # `bsz` and `wpb` are of all devices
        "num_updates", r"\bnum_updates(?:=|\": \")(?P<step>\d{1,12})\b", rate=rf"\bups(?:=|\": \"){NUMBER}",
        all_tokens=rf"\bwpb(?:=|\": \"){NUMBER}", all_tokens_per_s=rf"\bwps(?:=|\": \"){NUMBER}",
        samples=rf"\bbsz(?:=|\": \"){NUMBER}",
    ),
    "llama-factory": _form(  # its throughput is that of the whole training so far
        '"current_steps"', r'"current_steps": (?P<step>\d{1,12}), "total_steps": (?P<total>\d{1,12})\b.{0,2000}?'
        r'"elapsed_time": "(?P<elapsed>[^"]{4,40})"',
    ),
    "torchtune": _form(
        "tokens_per_second_per_gpu", r"^\s*Step (?P<step>\d{1,12}) \|", tokens=rf"\btokens_per_second_per_gpu:{NUMBER}"
    ),
    "keras": _form(
        "s/step", r"^\s*(?P<step>\d{1,9})/(?P<total>\d{1,9})\s(?!\[[=>.]* ?\] - ETA)", seconds=rf"[ -]{NUMBER}s/step\b",
        ms=rf"[ -]{NUMBER}ms/step\b", us=rf"[ -]{NUMBER}[uμ]s/step\b",
    ),
    "olmo": _form(
        "[step=", r"\[step=(?P<step>\d{1,12})/\d+,\s?epoch=",
        tokens=rf"\bthroughput/device/(?:tokens_per_second|TPS)={NUMBER}",
    ),
    "composer": _form(
        "[batch=", r"(?:\[epoch=(?P<epoch>\d{1,6})(?:/\d+)?\])?\[batch=(?P<step>\d{1,9})/(?P<total>\d{1,9})\]:",
        rate=rf"\bthroughput/batches_per_sec: {NUMBER}", tokens=rf"\bthroughput/device/tokens_per_sec: {NUMBER}",
        mfu_share=rf"\bthroughput/device/mfu: {NUMBER}",
    ),
    "ultralytics": _form(
        "it", r"^\s*(?P<epoch>\d{1,6})/\d{1,6}\s+[\d.]+[GM]B?\s[^%]{0,300}:\s+\d+%(?:\|[^|]*\|| [^\d|]{0,99}) ?"
        r"(?P<step>\d{1,9})/(?P<total>\d{1,9})\s", rate=rf"(?<=[ ,\[]){NUMBER}it/s\b",
        seconds=rf"(?<=[ ,\[]){NUMBER}s/it\b",
    ),
    "paddlenlp": _form(
        "interval_runtime", r"\bglobal_step: (?P<step>\d{1,12})\b", rate=rf"\binterval_steps_per_second: {NUMBER}",
        tokens=rf"\binterval_tokens_per_second_per_device: {NUMBER}",
    ),
    "deepspeed": _form(
        "SamplesPerSec=", r"(?:\bglobal_step=|\] \d{1,9}/)(?P<step>\d{1,12}), (?:RunningAvg)?SamplesPerSec",
        sample_rate=rf"\b(?:Curr)?SamplesPerSec={NUMBER}",
    ),
    "script": _of_training(_form(
        "", OWN_STEP, seconds=_in_unit("s"), ms=_in_unit("ms"),
        rate=rf"(?<![\w.])(?=[\d.,]+ ?(?:it(?:er(?:ation)?s?)?|steps?|batch(?:es)?|updates?)/s(?:ec(?:ond)?)?\b)"
        rf"{NUMBER}",
    )),
}  # fmt: skip
"""The reader of a line by the program that writes it. Of several in one log the first counts: a library beneath a
program writes lines of its own."""
KNOWN_LINES = (
    "known lines: torchtitan (`step: 5  loss: ...  tps: ...`), Megatron (`iteration 5/100 | ... elapsed time per "
    "iteration (ms): ...`), bars of HF Trainer, Lightning and others (`| 5/100 [00:10<03:00, 1.9s/it]`), NeMo, "
    "nanoGPT, llm.c, MaxText, torchvision, timm, MMEngine, Detectron2, DeepSpeed, fairseq, Keras, LLaMA-Factory, "
    "torchtune, OLMo, Composer, Ultralytics, PaddleNLP; of your own program, a line for each step with its number and "
    "its time with a unit (`step 5 ... step_time: 1.9s`, `1.9 s/step`, `0.5 it/s`)"
)
