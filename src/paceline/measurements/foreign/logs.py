"""Training logs: steps, seconds, tokens per second and MFU of torchtitan, Megatron, HF Trainer, Lightning and others.

Each form of a line is one named pattern (`log_forms`). Missing values are derived if possible: seconds from tokens per
step and tokens per second, or from the times of the lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

from paceline.errors import InputError
from paceline.measurements.foreign.log_forms import KNOWN_LINES, LOG_FORMS, DecimalComma, LoggedStep
from paceline.measurements.trace.stream import BROKEN, ESCAPES, begin_of, check_growth, open_trace

__all__ = ["METRICS", "TrainingLog", "looks_like_log", "read_log", "refuse_state"]

LONGEST = 20_000
"""Number of characters of a line that are parsed."""
MOST_STEPS = 2_000_000
LEAST_PAIRS, LEAST_ELAPSED_S, MOST_RATIO = 4, 10.0, 1.33
"""Lines and seconds that show how long steps take by the clock, which may count whole seconds; when it contradicts."""
RANK = re.compile(r"\[(?:rank|default)?(\d{1,6})\]:")
EPOCH = re.compile(r"\s*Epoch (\d{1,6})/\d{1,6}\s*")
"""A line before the bars of an epoch, which count from its begin."""
OF_EPOCHS = ("keras", "hf-trainer", "bar")
"""Forms whose bar may be of an epoch that only a line before it names."""
FRACTION = re.compile(r"\d\d:\d\d:\d\d[.,]\d")
TABLE = re.compile(r"\[(?:batch|step)=\d{1,12}/\d{1,12}[^\]]{0,80}\]:?\s*$")
"""The head of a table of metrics, as OLMo and Composer write them."""
COARSE_S = 4.0
"""Seconds between lines from which a clock of whole seconds tells how long a step took."""
MOMENT = re.compile(r"(\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)")


@dataclass(frozen=True)
class TrainingLog:
    """The steps of a log, one after the other."""

    path: str
    form: str
    steps: tuple[LoggedStep, ...]
    ranks: int
    sequence: int | None
    """Tokens of a sequence, if the log states them."""
    notes: tuple[str, ...] = ()
    """Impossible statements of the log."""
    samples: int | None = None
    """Samples of a step of all devices, if the log states them."""


SEQUENCE = re.compile(r"\b(?:sequence length|seq[_ ]len(?:gth)?)\W{1,4}(\d{2,8})")
LOCAL_BATCH = re.compile(r"\b(?:local batch size|batch size per device)\W{1,4}(\d{1,7})")
ACCUMULATION = re.compile(r"\bgradient accumulation steps\W{1,4}(\d{1,6})")
METRICS = re.compile(r"""(?:^|\]:)\s*\{(['"])(?:loss|eval_loss|train_loss|train_runtime|current_steps)\1: """)
"""Output of the HF Trainer that has neither the number of a step nor its time."""
GLOBAL_BATCH = re.compile(
    r"\b(?:global batch size|total train batch size(?: \([^)]{0,80}\))?|train_batch_size(?= \.\.)[ .]{0,40})"
    r"\W{1,4}(\d{1,9})"
)
WORLD = re.compile(r"\bworld[ _-]size\W{1,4}(\d{1,7})")
FACTS = {
    "sequence": SEQUENCE, "local": LOCAL_BATCH, "global": GLOBAL_BATCH, "world": WORLD, "accumulation": ACCUMULATION,
}  # fmt: skip
"""Phrases of other lines that hold for all steps, in lower case."""
BARS = (
    "write the bars to the log as well (disable_tqdm=False, and 2>&1: they go to the standard error), or let Paceline "
    "take the times: Trainer(..., callbacks=[PacelineCallback()])"
)
HINT = f"{KNOWN_LINES}; HF Trainer prints bars with disable_tqdm=False, Megatron times with --log-interval 1"
NEEDED = (
    "keep the lines that state the batch size and the sequence length, or let the logger write the time in each line"
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
    for number, line in enumerate(_records(path)):
        if number > 20_000:
            return False
        if METRICS.match(line) or any(_step_in(path, line, form) for form in LOG_FORMS):
            return True
    return False


def read_log(path: Path) -> TrainingLog:
    """The steps of a log; the first form that a line has is the form of the file."""
    forms, facts, steps, metrics, starts = [*LOG_FORMS], dict[str, int](), list[LoggedStep](), 0, set[int]()
    form: str | None = None
    epoch = 0
    for line in _records(path):
        epoch = int(head.group(1)) - 1 if (head := EPOCH.fullmatch(line)) else epoch
        is_head = _note_facts(line, facts)
        metrics += METRICS.match(line) is not None
        name, found = next(((name, step) for name in forms if (step := _step_in(path, line, name))), (form, None))
        if name != form:  # of a program above the one that wrote the lines so far
            form, forms, steps, starts = name, forms[: forms.index(str(name)) + 1], [], set()
        if found is not None:
            rank = RANK.search(line)
            before, moment = epoch * (found.total or 0) if form in OF_EPOCHS else 0, _moment(line)
            found = replace(found, step=found.step + before, rank=int(rank[1]) if rank else None)
            coarse = moment is not None and FRACTION.search(line) is None
            steps.append(found if moment is None else replace(found, at_s=moment, is_coarse=coarse))
        elif is_head and steps:
            starts.add(len(steps))
        if len(steps) > MOST_STEPS:
            raise InputError(f"{path} has more than {MOST_STEPS:,} steps", hint="cut the log")
    if form is None and metrics:
        what = f"has {metrics} lines of metrics of HF Trainer, and none says which step it is and how long a step takes"
        raise InputError(f"{path} {what}", hint=BARS)
    if form is None:
        raise InputError(f"{path} has no line of a training log that we know", hint=HINT)
    _note_devices(facts)
    counted = _ends_of_epochs(steps) if form == "keras" else _started(steps, starts)
    timed, notes = _without_impossible(_timed(_once(counted), facts))
    if len(timed) < 2:
        what = f"{path} has {len(timed)} timed steps of {form} in {len(steps)} lines, at least two are needed"
        raise InputError(what, hint=NEEDED)
    ranks = {step.rank or 0 for step in steps}
    each = [step.samples for step in timed if step.samples]
    return TrainingLog(
        str(path), form, tuple(timed), facts.get("world", max(ranks) + 1), facts.get("sequence"),
        (*notes, *_contradictions(timed)),
        round(median(each)) if each else facts.get("global"),
    )  # fmt: skip


def _lines(path: Path) -> Iterator[str]:
    """Lines without colours; a carriage return ends a line as well, as bars write them."""
    with open_trace(path) as file:
        try:
            rest, size = b"", 0
            while part := file.read(1 << 16):
                size += len(part)
                check_growth(path, size)
                *lines, rest = re.split(rb"[\r\n]+", rest[:LONGEST] + part)
                yield from (ESCAPES.sub("", line[:LONGEST].decode("utf-8", errors="replace")) for line in lines)
            yield ESCAPES.sub("", rest[:LONGEST].decode("utf-8", errors="replace"))
        except BROKEN as error:
            raise InputError(f"{path} is truncated or damaged: {error}", hint="copy the log again") from None


def _records(path: Path) -> Iterator[str]:
    """Lines; one that begins a table of metrics has the indented lines after it."""
    held = ""
    for line in _lines(path):
        if held and line[:1] in (" ", "\t") and len(held) < LONGEST:
            held = f"{held} {line.strip()}"
            continue
        if held:
            yield held
        held = line if TABLE.search(line) else ""
        if not held:
            yield line
    if held:
        yield held


def _step_in(path: Path, line: str, form: str) -> LoggedStep | None:
    """The step of a line, if the line has this form."""
    try:
        return LOG_FORMS[form](line)
    except DecimalComma as error:
        what = f"{path}: the number {error} in {line.strip()[:80]!r} has a decimal comma"
        raise InputError(what, hint="write numbers with a point: LC_ALL=C") from None


def _note_facts(line: str, facts: dict[str, int]) -> bool:
    """Add facts of a line about all steps; returns whether there are any."""
    lowered = line.lower()
    if not any(word in lowered for word in ("size", "seq", "accumulation")):
        return False
    said = {name: int(found.group(1)) for name, pattern in FACTS.items() if (found := pattern.search(lowered))}
    for name, value in said.items():
        if name not in facts and 0 < value < 2**31:
            facts[name] = value
    return bool(said)


def _started(steps: Sequence[LoggedStep], heads: set[int]) -> list[LoggedStep]:
    """The steps with the start that wrote each: after a head of the log, or where a rank counts from a former step."""
    start, last, counted = 0, dict[int, int](), []
    for place, step in enumerate(_through_epochs(steps)):
        rank = step.rank or 0
        if place in heads or step.step < last.get(rank, 0):
            start, last = start + 1, {}
        last[rank] = step.step
        counted.append(replace(step, start=start))
    return counted


def _ends_of_epochs(steps: list[LoggedStep]) -> list[LoggedStep]:
    """The last line of each epoch, for lines with the mean since the begin of the epoch, if there are two epochs."""
    ends = [step for step in steps if step.total and step.step % step.total == 0]
    return ends if len({step.step for step in ends}) > 1 else steps


def _through_epochs(steps: Sequence[LoggedStep]) -> Iterator[LoggedStep]:
    """The steps, counted on where an epoch of unknown length ends."""
    before, last = 0, LoggedStep(0)
    for step in steps:
        if step.epoch is not None and last.epoch is not None and step.epoch > last.epoch and step.step <= last.step:
            before += last.step
        last = step
        yield replace(step, step=before + step.step)


def _note_devices(facts: dict[str, int]) -> None:
    """Derive the number of devices from the batches of one device and of all devices, or the reverse."""
    each = facts.get("local", 0) * facts.get("accumulation", 1)
    if each and "world" not in facts and facts.get("global", 0) % each == 0 and "global" in facts:
        facts["world"] = facts["global"] // each
    if each and "global" not in facts and "world" in facts:
        facts["global"] = each * facts["world"]


def _moment(line: str) -> float | None:
    found = MOMENT.search(line)
    try:
        moment = (
            datetime.fromisoformat(found.group(1).replace(",", ".").replace("/", "-")).timestamp() if found else -1.0
        )
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
    """The steps whose seconds are known; a clock of whole seconds tells the mean of all steps of some seconds."""
    timed, before = list[LoggedStep](), None
    for step in steps:
        seconds = step.seconds or _from_rates(step, facts)
        if not seconds and before is not None and _is_too_near(before, step):
            continue
        seconds = seconds or _from_times(before, step)
        if seconds is not None and 0 < seconds < 1e6:
            timed.append(replace(step, seconds=seconds))
        before = step
    return timed


def _is_too_near(before: LoggedStep, step: LoggedStep) -> bool:
    """Whether so little time lies between two lines of one start that a clock of whole seconds does not tell it."""
    if before.at_s is None or step.at_s is None or not (before.is_coarse and step.is_coarse):
        return False
    return (before.rank, before.start) == (step.rank, step.start) and step.at_s - before.at_s < COARSE_S


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


def _from_rates(step: LoggedStep, facts: dict[str, int]) -> float | None:
    """Samples of a step over samples per second, or tokens of a device in a step over tokens per second."""
    if step.samples_per_s and "global" in facts:
        return facts["global"] / step.samples_per_s
    local = facts["global"] / facts["world"] if {"global", "world"} <= set(facts) else facts.get("local")
    sequence = facts.get("sequence")
    return sequence * local / step.tokens_per_s if sequence and local and step.tokens_per_s else None


def _from_times(before: LoggedStep | None, step: LoggedStep) -> float | None:
    if before is None or (before.rank, before.start) != (step.rank, step.start):
        return None
    if before.at_s is None or step.at_s is None:
        return None
    return (step.at_s - before.at_s) / (step.step - before.step) if step.step > before.step else None


def _contradictions(steps: Sequence[LoggedStep]) -> tuple[str, ...]:
    """Whether the times of the lines say another duration of steps than the lines do; long pauses do not count."""
    pairs = [(after.step - before.step, seconds * (after.step - before.step), after.seconds or 0.0)
             for before, after in pairwise(steps) if (seconds := _from_times(before, after))]  # fmt: skip
    usual = 3 * median([seconds / count for count, seconds, _ in pairs]) if pairs else 0.0
    kept = [pair for pair in pairs if pair[1] <= usual * pair[0]]
    count, elapsed = sum(pair[0] for pair in kept), sum(pair[1] for pair in kept)
    if len(kept) < LEAST_PAIRS or elapsed < LEAST_ELAPSED_S:
        return ()
    clock, stated = elapsed / count, sum(pair[0] * pair[2] for pair in kept) / count
    if 1 / MOST_RATIO < stated / clock < MOST_RATIO:
        return ()
    return (
        f"the log contradicts itself: by its figures a step takes {stated:.3g} s, by the times of its lines "
        f"{clock:.3g} s. The figures count; they may be of a micro-batch, of another number of devices or without the "
        "wait for input",
    )
