"""Lines of training logs: steps, seconds, tokens per second and MFU of torchtitan, Megatron, HF Trainer, Lightning.

Each form is one named pattern. Whatever a line does not say is computed from the others where that is possible:
seconds from tokens per step and tokens per second, or from the times of the lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from paceline.errors import InputError
from paceline.measurements.trace.stream import BROKEN, open_trace

__all__ = ["LOG_FORMS", "LoggedStep", "TrainingLog", "looks_like_log", "read_log"]

LONGEST = 20_000
"""Characters of a line that are looked at."""
MOST_STEPS = 2_000_000
ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
RANK = re.compile(r"\[(?:rank|default)?(\d{1,6})\]:")
MOMENT = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)")
NUMBER = r"([0-9][0-9,]*\.?[0-9]*(?:[eE][-+]?\d+)?)"


@dataclass(frozen=True)
class LoggedStep:
    """One line of a log; None is what the line does not say."""

    step: int
    rank: int | None = None
    at_s: float | None = None
    """Seconds since an arbitrary time, when the line was written."""
    seconds: float | None = None
    """Of one step, the mean since the line before."""
    tokens_per_s: float | None = None
    """Of one device."""
    mfu: float | None = None
    """Share of the device's peak, 0 to 1."""
    tflops: float | None = None
    samples: int | None = None
    """Samples of a step of all devices."""
    total: int | None = None
    """Steps of the bar, of an epoch or of all."""


@dataclass(frozen=True)
class TrainingLog:
    """The steps of a log, one after the other."""

    path: str
    form: str
    steps: tuple[LoggedStep, ...]
    ranks: int
    sequence: int | None
    """Tokens of a sequence, if the log says."""


Reader = Callable[[str], LoggedStep | None]


def _number(pattern: str) -> Callable[[str], float | None]:
    compiled = re.compile(pattern)

    def read(line: str) -> float | None:
        found = compiled.search(line)
        return float(found.group(1).replace(",", "")) if found else None

    return read


def _form(step: str, **others: str) -> Reader:
    """A reader of lines that name the step, of an epoch where there is one, and any of these figures."""
    number_of, readers = re.compile(step), {name: _number(pattern) for name, pattern in others.items()}

    def read(line: str) -> LoggedStep | None:
        place = number_of.search(line)
        if place is None:
            return None
        found = {name: value for name, reader in readers.items() if (value := reader(line)) is not None}
        return _logged(place.groupdict(), found) if found else None

    return read


def _logged(place: dict[str, str], found: dict[str, float]) -> LoggedStep:
    rate, total = found.get("rate"), int(place["total"]) if "total" in place else None
    return LoggedStep(
        step=int(place["step"]) + int(place.get("epoch", 0)) * (total or 0),
        seconds=found["ms"] / 1e3 if "ms" in found else 1 / rate if rate else found.get("seconds"),
        tokens_per_s=found.get("tokens"),
        mfu=found["mfu"] / 100 if "mfu" in found else None,
        tflops=found.get("tflops"),
        samples=int(found["samples"]) if "samples" in found else None,
        total=total,
    )


LOG_FORMS: dict[str, Reader] = {
    "torchtitan": _form(
        r"(?<!validate )\bstep:\s*(?P<step>\d{1,12})\s+loss:", tokens=rf"\b[tw]ps:\s*{NUMBER}",
        tflops=rf"\btflops:\s*{NUMBER}", mfu=rf"\bmfu:\s*{NUMBER}%",
    ),
    "megatron": _form(
        r"\biteration\s+(?P<step>\d{1,12})/\s*(?:\d+|infinity)\s*\|", samples=r"global batch size:\s*(\d+)",
        ms=rf"elapsed time per iteration \(ms\):\s*{NUMBER}",
        tflops=rf"(?:throughput per GPU \(TFLOP/s/GPU\)|\bTFLOPs):\s*{NUMBER}",
        tokens=rf"(?:tokens/s/GPU|tokens per gpu per second \(tgs\)):?\s*{NUMBER}",
    ),
    "lightning": _form(
        r"\bEpoch (?P<epoch>\d{1,6})(?:/-?\d+)?:?\s[^\[]{0,600}?\b(?P<step>\d{1,9})/(?P<total>\d{1,9}) (?:\[|\d+:\d\d)",
        seconds=rf"[, ]\s{{0,9}}{NUMBER}s/it\b", rate=rf"[, ]\s{{0,9}}{NUMBER}it/s\b",
    ),
    "hf-trainer": _form(
        r"(?:^|\]:)\s*\d+%\|[^|]*\|\s*(?P<step>\d{1,12})/(?P<total>\d{1,12}) \[[0-9:?]+<[0-9:?, ]+",
        seconds=rf",\s{{0,9}}{NUMBER}s/it\]", rate=rf",\s{{0,9}}{NUMBER}it/s\]",
    ),
}  # fmt: skip
"""The reader of a line by the program that writes it."""
SEQUENCE = re.compile(r"\b(?:sequence length|seq[_ ]len(?:gth)?)\W{1,4}(\d{2,8})", flags=re.I)
LOCAL_BATCH = re.compile(r"\blocal batch size\W{1,4}(\d{1,7})", flags=re.I)
GLOBAL_BATCH = re.compile(r"\bglobal batch size\W{1,4}(\d{1,9})", flags=re.I)
WORLD = re.compile(r"\bworld[ _-]size\W{1,4}(\d{1,7})", flags=re.I)
HINT = (
    "known lines: torchtitan (`step: 5  loss: ...  tps: ...`), Megatron (`iteration 5/100 | ... elapsed time per "
    "iteration (ms): ...`), bars of HF Trainer and Lightning (`| 5/100 [00:10<03:00, 1.9s/it]`); HF Trainer prints "
    "bars with disable_tqdm=False, Megatron times with --log-interval 1"
)


def looks_like_log(path: Path) -> bool:
    """Whether one of the first lines of a file is one that we know."""
    for number, line in enumerate(_lines(path)):
        if number > 20_000:
            return False
        if any(reader(line) for reader in LOG_FORMS.values()):
            return True
    return False


def read_log(path: Path) -> TrainingLog:
    """The steps of a log; the first form that a line has is the form of the file."""
    form, ranks, facts, steps = None, {0}, dict[str, int](), list[LoggedStep]()
    for line in _lines(path):
        _note_facts(line, facts)
        for name in [form] if form else LOG_FORMS:
            found = LOG_FORMS[name](line)
            if found is not None:
                form, rank = name, RANK.search(line)
                steps.append(replace(found, rank=int(rank.group(1)) if rank else None, at_s=_moment(line)))
                ranks |= {steps[-1].rank or 0}
                break
        if len(steps) > MOST_STEPS:
            raise InputError(f"{path} has more than {MOST_STEPS:,} steps", hint="cut the log")
    if form is None:
        raise InputError(f"{path} has no line of a training log that we know", hint=HINT)
    timed = _timed(_once(steps), facts)
    if len(timed) < 2:
        raise InputError(f"{path} has {len(timed)} timed step of {form}, at least two are needed", hint=HINT)
    return TrainingLog(str(path), form, tuple(timed), facts.get("world", max(ranks) + 1), facts.get("sequence"))


def _lines(path: Path) -> Iterator[str]:
    """Lines without colours; a carriage return ends a line as well, as bars write them."""
    with open_trace(path) as file:
        try:
            rest = b""
            while part := file.read(1 << 16):
                *lines, rest = re.split(rb"[\r\n]+", (rest + part)[-(1 << 20) :])
                yield from (ESCAPES.sub("", line[:LONGEST].decode("utf-8", errors="replace")) for line in lines)
            yield ESCAPES.sub("", rest[:LONGEST].decode("utf-8", errors="replace"))
        except BROKEN as error:
            raise InputError(f"{path} is truncated or damaged: {error}", hint="copy the log again") from None


def _note_facts(line: str, facts: dict[str, int]) -> None:
    for name, pattern in (("sequence", SEQUENCE), ("local", LOCAL_BATCH), ("global", GLOBAL_BATCH), ("world", WORLD)):
        if name not in facts and (found := pattern.search(line)) and 0 < int(found.group(1)) < 2**31:
            facts[name] = int(found.group(1))


def _moment(line: str) -> float | None:
    found = MOMENT.search(line)
    try:
        return datetime.fromisoformat(found.group(1).replace(",", ".")).timestamp() if found else None
    except (ValueError, OverflowError):
        return None


def _once(steps: Sequence[LoggedStep]) -> list[LoggedStep]:
    """One line per step and rank, in order, of the longest bar: bars of an evaluation have fewer steps."""
    longest = max((step.total or 0 for step in steps), default=0)
    kept: dict[tuple[int, int], LoggedStep] = {}
    for step in (step for step in steps if (step.total or 0) == longest):
        kept[step.rank or 0, step.step] = step
    return sorted(kept.values(), key=lambda step: (step.rank or 0, step.step))


def _timed(steps: list[LoggedStep], facts: dict[str, int]) -> list[LoggedStep]:
    """The steps whose seconds are known."""
    timed = []
    for before, step in zip([None, *steps], steps, strict=False):
        seconds = step.seconds or _from_tokens(step, facts) or _from_times(before, step)
        if seconds is not None and 0 < seconds < 1e6:
            timed.append(replace(step, seconds=seconds))
    return timed


def _from_tokens(step: LoggedStep, facts: dict[str, int]) -> float | None:
    """Tokens of a device in a step over tokens per second."""
    local = facts.get("local") or (facts["global"] / facts["world"] if {"global", "world"} <= set(facts) else None)
    sequence = facts.get("sequence")
    return sequence * local / step.tokens_per_s if sequence and local and step.tokens_per_s else None


def _from_times(before: LoggedStep | None, step: LoggedStep) -> float | None:
    if before is None or before.rank != step.rank or before.at_s is None or step.at_s is None:
        return None
    return (step.at_s - before.at_s) / (step.step - before.step) if step.step > before.step else None
