"""Lines of training logs: steps, seconds, tokens per second and MFU of torchtitan, Megatron, HF Trainer, Lightning.

Each form is one named pattern. Missing values are derived if possible:
seconds from tokens per step and tokens per second, or from the times of the lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import median

from paceline.errors import InputError
from paceline.measurements.trace.stream import BROKEN, ESCAPES, begin_of, open_trace

__all__ = ["LOG_FORMS", "METRICS", "LoggedStep", "TrainingLog", "looks_like_log", "read_log", "refuse_state"]

LONGEST = 20_000
"""Characters of a line that are looked at."""
MOST_STEPS = 2_000_000
MOST_FIGURE = 1e15
"""A figure of a line that is not below is no figure."""
RANK = re.compile(r"\[(?:rank|default)?(\d{1,6})\]:")
MOMENT = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)")
NUMBER = r"([0-9][0-9,]*\.?[0-9]*(?:[eE][-+]?\d+)?)"
THOUSANDS = re.compile(r"(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+),?(?:[eE][-+]?\d+)?")
"""Commas as a number may have them; another one is a decimal comma, which says something else."""


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
    start: int = 0
    """Which start of the training wrote the line: a log may go on after a checkpoint was loaded."""


@dataclass(frozen=True)
class TrainingLog:
    """The steps of a log, one after the other."""

    path: str
    form: str
    steps: tuple[LoggedStep, ...]
    ranks: int
    sequence: int | None
    """Tokens of a sequence, if the log says."""
    notes: tuple[str, ...] = ()
    """What the log states and cannot be."""
    samples: int | None = None
    """Samples of a step of all devices, if the log says."""


Reader = Callable[[str], LoggedStep | None]


class _DecimalComma(Exception):
    """A number whose comma does not stand before three digits."""


def _number(pattern: str) -> Callable[[str], float | None]:
    compiled = re.compile(pattern)

    def read(line: str) -> float | None:
        found = compiled.search(line)
        given = found.group(1) if found else "inf"
        if "," in given and not THOUSANDS.fullmatch(given):
            raise _DecimalComma(given[:40])
        value = float(given.replace(",", ""))
        return value if value < MOST_FIGURE else None

    return read


def _form(step: str, **others: str) -> Reader:
    """A reader of lines that name the step, of an epoch where there is one, and any of these figures."""
    number_of, readers = re.compile(step), {name: _number(pattern) for name, pattern in others.items()}

    def read(line: str) -> LoggedStep | None:
        place = number_of.search(line)
        if place is None or _step_of(place.groupdict()) >= 2**31:
            return None
        found = {name: value for name, reader in readers.items() if (value := reader(line)) is not None}
        return _logged(place.groupdict(), found) if found else None

    return read


def _step_of(place: dict[str, str]) -> int:
    """The number of a step since the first epoch."""
    return int(place["step"]) + int(place.get("epoch", 0)) * int(place.get("total", 0))


def _logged(place: dict[str, str], found: dict[str, float]) -> LoggedStep:
    rate = found.get("rate")
    return LoggedStep(
        step=_step_of(place),
        seconds=found["ms"] / 1e3 if "ms" in found else 1 / rate if rate else found.get("seconds"),
        tokens_per_s=found.get("tokens"),
        mfu=found["mfu"] / 100 if "mfu" in found else None,
        tflops=found.get("tflops"),
        samples=int(found["samples"]) if "samples" in found else None,
        total=int(place["total"]) if "total" in place else None,
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
LOCAL_BATCH = re.compile(r"\b(?:local batch size|batch size per device)\W{1,4}(\d{1,7})", flags=re.I)
ACCUMULATION = re.compile(r"\bgradient accumulation steps\W{1,4}(\d{1,6})", flags=re.I)
METRICS = re.compile(r"""(?:^|\]:)\s*\{(['"])(?:loss|eval_loss|train_loss|train_runtime)\1: """)
"""What HF Trainer prints of a training: neither the number of the step nor its time."""
GLOBAL_BATCH = re.compile(
    r"\b(?:global batch size|total train batch size(?: \([^)]{0,80}\))?)\W{1,4}(\d{1,9})", flags=re.I
)
WORLD = re.compile(r"\bworld[ _-]size\W{1,4}(\d{1,7})", flags=re.I)
FACTS = {
    "sequence": SEQUENCE, "local": LOCAL_BATCH, "global": GLOBAL_BATCH, "world": WORLD, "accumulation": ACCUMULATION,
}  # fmt: skip
"""What lines beside the steps say of all of them."""
BARS = (
    "write the bars to the log as well (disable_tqdm=False, and 2>&1: they go to the standard error), or let Paceline "
    "take the times: Trainer(..., callbacks=[PacelineCallback()])"
)
HINT = (
    "known lines: torchtitan (`step: 5  loss: ...  tps: ...`), Megatron (`iteration 5/100 | ... elapsed time per "
    "iteration (ms): ...`), bars of HF Trainer and Lightning (`| 5/100 [00:10<03:00, 1.9s/it]`); HF Trainer prints "
    "bars with disable_tqdm=False, Megatron times with --log-interval 1"
)


def refuse_state(path: Path) -> None:
    """Refuse the state of HF Trainer by what it has and lacks."""
    begin = begin_of(path, 1 << 16)
    if begin[:1] != b"{" or b'"log_history"' not in begin:
        return
    names = ("train_runtime", "train_steps_per_second", "train_samples_per_second")
    last = {name: re.findall(rb'"%s": ([0-9.eE+-]+)' % name.encode(), _end_of(path)) for name in names}
    means = ", ".join(f"{name} {values[-1].decode()}" for name, values in last.items() if values)
    what = f"the mean of the training ({means})" if means else "losses"
    raise InputError(f"{path} is the state of HF Trainer: it has {what}, and no times of single steps", hint=BARS)


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - (1 << 16)))
        return file.read(1 << 16)


def looks_like_log(path: Path) -> bool:
    """Whether one of the first lines of a file is one that we know."""
    for number, line in enumerate(_lines(path)):
        if number > 20_000:
            return False
        if METRICS.match(line) or any(_step_in(path, line, form) for form in LOG_FORMS):
            return True
    return False


def read_log(path: Path) -> TrainingLog:
    """The steps of a log; the first form that a line has is the form of the file."""
    form, ranks, facts, steps, metrics, starts = None, {0}, dict[str, int](), list[LoggedStep](), 0, set[int]()
    for line in _lines(path):
        is_head = _note_facts(line, facts)
        metrics += METRICS.match(line) is not None
        for name in [form] if form else LOG_FORMS:
            found = _step_in(path, line, name)
            if found is not None:
                form, rank = name, RANK.search(line)
                steps.append(replace(found, rank=int(rank.group(1)) if rank else None, at_s=_moment(line)))
                ranks |= {steps[-1].rank or 0}
                break
        else:
            starts |= {len(steps)} if is_head and steps else set()
        if len(steps) > MOST_STEPS:
            raise InputError(f"{path} has more than {MOST_STEPS:,} steps", hint="cut the log")
    if form is None and metrics:
        what = f"has {metrics} lines of metrics of HF Trainer, and none says which step it is and how long a step takes"
        raise InputError(f"{path} {what}", hint=BARS)
    if form is None:
        raise InputError(f"{path} has no line of a training log that we know", hint=HINT)
    _note_devices(facts)
    timed, notes = _without_impossible(_timed(_once(_started(steps, starts)), facts))
    if len(timed) < 2:
        raise InputError(f"{path} has {len(timed)} timed step of {form}, at least two are needed", hint=HINT)
    each = [step.samples for step in timed if step.samples]
    return TrainingLog(
        str(path), form, tuple(timed), facts.get("world", max(ranks) + 1), facts.get("sequence"), notes,
        round(median(each)) if each else facts.get("global"),
    )  # fmt: skip


def _lines(path: Path) -> Iterator[str]:
    """Lines without colours; a carriage return ends a line as well, as bars write them."""
    with open_trace(path) as file:
        try:
            rest = b""
            while part := file.read(1 << 16):
                *lines, rest = re.split(rb"[\r\n]+", rest[:LONGEST] + part)
                yield from (ESCAPES.sub("", line[:LONGEST].decode("utf-8", errors="replace")) for line in lines)
            yield ESCAPES.sub("", rest[:LONGEST].decode("utf-8", errors="replace"))
        except BROKEN as error:
            raise InputError(f"{path} is truncated or damaged: {error}", hint="copy the log again") from None


def _step_in(path: Path, line: str, form: str) -> LoggedStep | None:
    """What a line says of a step, if it is of this form."""
    try:
        return LOG_FORMS[form](line)
    except _DecimalComma as error:
        what = f"{path}: the number {error} in {line.strip()[:80]!r} has a decimal comma"
        raise InputError(what, hint="write numbers with a point: LC_ALL=C") from None


def _note_facts(line: str, facts: dict[str, int]) -> bool:
    """Note what a line says of all steps, and whether it says any such thing."""
    said = {name: int(found.group(1)) for name, pattern in FACTS.items() if (found := pattern.search(line))}
    for name, value in said.items():
        if name not in facts and 0 < value < 2**31:
            facts[name] = value
    return bool(said)


def _started(steps: Sequence[LoggedStep], heads: set[int]) -> list[LoggedStep]:
    """The steps with the start that wrote each: after a head of the log, or where a rank counts from a former step."""
    start, last, counted = 0, dict[int, int](), []
    for place, step in enumerate(steps):
        rank = step.rank or 0
        if place in heads or step.step < last.get(rank, 0):
            start, last = start + 1, {}
        last[rank] = step.step
        counted.append(replace(step, start=start))
    return counted


def _note_devices(facts: dict[str, int]) -> None:
    """What the batches of a device and of all say about the number of devices, and the reverse."""
    each = facts.get("local", 0) * facts.get("accumulation", 1)
    if each and "world" not in facts and facts.get("global", 0) % each == 0 and "global" in facts:
        facts["world"] = facts["global"] // each
    if each and "global" not in facts and "world" in facts:
        facts["global"] = each * facts["world"]


def _moment(line: str) -> float | None:
    found = MOMENT.search(line)
    try:
        moment = datetime.fromisoformat(found.group(1).replace(",", ".")).timestamp() if found else -1.0
    except (ValueError, OverflowError):
        return None
    return moment if moment >= 0 else None


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


def _without_impossible(steps: list[LoggedStep]) -> tuple[list[LoggedStep], tuple[str, ...]]:
    """The steps without MFU if one is above 100 %, and why."""
    wrong = max((step for step in steps if step.mfu is not None), key=lambda step: step.mfu or 0.0, default=None)
    if wrong is None or (wrong.mfu or 0.0) <= 1:
        return steps, ()
    note = (
        f"error: the log states an MFU of {100 * (wrong.mfu or 0.0):,.1f} % in step {wrong.step}, and no device does "
        "more than 100 % of its peak; MFU is left out. The program took the peak of another device (torchtitan takes "
        "that of an A100 for one that it does not know) or of another precision, or counted too many operations"
    )
    return [replace(step, mfu=None) for step in steps], (note,)


def _from_tokens(step: LoggedStep, facts: dict[str, int]) -> float | None:
    """Tokens of a device in a step over tokens per second."""
    local = facts["global"] / facts["world"] if {"global", "world"} <= set(facts) else facts.get("local")
    sequence = facts.get("sequence")
    return sequence * local / step.tokens_per_s if sequence and local and step.tokens_per_s else None


def _from_times(before: LoggedStep | None, step: LoggedStep) -> float | None:
    if before is None or (before.rank, before.start) != (step.rank, step.start):
        return None
    if before.at_s is None or step.at_s is None:
        return None
    return (step.at_s - before.at_s) / (step.step - before.step) if step.step > before.step else None
