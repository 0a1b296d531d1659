"""Names of the columns of points files, as users write them, and their meanings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

__all__ = ["EACH", "KEYS", "LABELS", "NUMBERS", "STEP", "STEPS_PER_S", "STEP_MS", "UNCLEAR_BATCHES", "column_names"]

LABELS = ("network", "framework", "strategy", "device", "link", "precision", "data", "note", "series")
NUMBERS = ("devices_per_host", "hosts", "batch_per_device", "global_batch", "spread")
EACH = "samples_per_s_per_device"
STEP, STEP_MS, STEPS_PER_S = "step_s", "step_ms", "steps_per_s"
KEYS = ("devices", "samples_per_s", EACH, STEP, STEP_MS, STEPS_PER_S)
UNCLEAR_BATCHES = ("batch", "batch_size", "bs", "minibatch", "minibatch_size")
"""Names of a batch column that do not state whether the batch is of one device or of all."""
ALIASES = {
    "devices": ("gpu_count", "device_count", "num_gpu", "n_gpu", "ngpu", "world_size", "nproc", "np", "n"),
    "samples_per_s": ("throughput", "rate", "sps", "ips", "fps"),
    "devices_per_host": ("gpus_per_host", "gpus_per_node", "devices_per_node", "chips_per_host"),
    "hosts": ("nodes", "num_hosts", "num_nodes", "n_nodes", "node_count"),
    "batch_per_device": (*UNCLEAR_BATCHES, "micro_batch", "micro_batch_size", "mbs"),
    "global_batch": ("gbs", "train_batch_size"),
    "network": ("model",),
    "link": ("interconnect",),
    "device": ("gpu", "hardware"),
    "spread": ("std", "stddev", "std_dev", "stdev", "sd", "sigma", "standard_deviation", "+/_", "±"),
    "series": ("name", "config", "configuration", "experiment", "setup", "system", "label"),
}
_ONE = r"(?:gpu|device|accelerator|worker|rank|card|tpu|chip|core|replica)"
_STEPS = r"(?:steps?|iterations?|iters?|its?)"
_SECOND = r"s(?:ecs?|econds?)?"
_MILLI = re.compile(r"(?:.*[_/])?(?:ms|msecs?|millis\w*)(?:[_/].*)?")
_PATTERNS = {
    "devices": re.compile(
        r"(?:n|no\.?|num|number|total|mpi)?_*(?:of_)?(?:tpu_)?"
        r"(?:gpus|tpus|devices|accelerators|cards|chips|ranks|procs|processes|workers|replicas|cores)"
    ),
    "samples_per_s": re.compile(
        r"(?:avg\.?_|mean_|training_|train_|total_)?(?:throughput_)?"
        r"(?:samples?|images?|imgs?|examples?|sequences?|seqs?|tokens?|toks?|items?|frames?)"
        rf"(?:_*(?:/|per)_*|_){_SECOND}"
    ),
    "global_batch": re.compile(
        r"(?:global|total|effective|overall)_*(?:mini)?batch(?:_*size)?|batch_*(?:size_*)?(?:global|total)"
    ),
    "batch_per_device": re.compile(
        rf"(?:local|(?:per_*)?{_ONE})_*(?:train_*)?(?:mini)?batch(?:_*size)?|(?:mini)?batch(?:_*size)?_*(?:/|per)_*{_ONE}"
    ),
    STEPS_PER_S: re.compile(rf"{_STEPS}_*(?:/|per)_*{_SECOND}"),
    STEP: re.compile(
        rf"(?:avg\.?_|mean_|median_)?(?:{_STEPS}_*(?:time|duration|latency)"
        rf"|(?:time|ms|millis\w*|{_SECOND})_*(?:/|per)_*{_STEPS})(?:_(?:{_SECOND}|ms|msecs?|millis\w*))?"
    ),
}  # fmt: skip
_COUNTED = ("gpus", "tpus", "devices", "accelerators", "cards", "chips", "ranks", "procs", "processes", "replicas",
            "cores", "workers")  # fmt: skip
"""Names of count columns, most certain first: workers may be loader processes."""
_SECONDS = re.compile(rf"(?:.*[_/])?{_SECOND}(?:[_/].*)?")
_UNIT = re.compile(r"(.+?)\s*[(\[](.+)[)\]]")
_EACH = re.compile(rf"(.+?)_*(?:/|_per_|_each_)_*{_ONE}")
_SPREAD = re.compile(r"(.+)_(?:std|stddev|std_dev|stdev|sd)|(?:std|stddev|std_dev|stdev|sd)_(?:of_)?(.+)")


def column_names(written: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Each column of a file by what it holds, and which of several columns stands for one thing."""
    plain = {name: _plain(name) for name in written}
    meant = {name: meaning(text) or _without_unit(name) for name, text in plain.items()}
    names, notes = dict(plain), []
    for thing in sorted({one for one in meant.values() if one}):
        rivals = sorted((name for name in plain if meant[name] == thing), key=lambda name: _rank(plain[name], thing))
        names[rivals[0]] = thing
        if len(rivals) > 1:
            notes.append(f"{' and '.join(rivals)} may both be {thing}: {rivals[0]} taken")
        if thing == STEP and not _SECONDS.fullmatch(plain[rivals[0]]):
            notes.append(f"{rivals[0]} has no unit: seconds assumed")
    return names, notes


def _plain(name: str) -> str:
    return re.sub(r"[ \-]+", "_", re.sub(r"[#()\[\]]", " ", name.lower()).strip())


def _rank(text: str, thing: str) -> tuple[int, int]:
    """Smaller for names that say it more surely: the column's own, then its words, then what they may stand for."""
    if text == thing:
        return 0, 0
    counted = next((place for place, noun in enumerate(_COUNTED) if noun in text), len(_COUNTED))
    known = ALIASES.get(thing, ())
    return 1 + (text in known), known.index(text) if text in known else counted


@cache
def meaning(text: str) -> str | None:
    """The meaning of a column name, by the name or by a pattern: a device count, a rate, a step."""
    known = {other: name for name, others in ALIASES.items() for other in others} | {name: name for name in ALIASES}
    if text in known or text in (*LABELS, *NUMBERS, *KEYS):
        return known.get(text, text)
    found = next((name for name, pattern in _PATTERNS.items() if pattern.fullmatch(text)), None)
    if found is not None:
        return STEP_MS if found == STEP and _MILLI.fullmatch(text) else found
    each, spread = _EACH.fullmatch(text), _SPREAD.fullmatch(text)
    if each is not None and meaning(each[1]) == "samples_per_s":
        return EACH
    return "spread" if spread is not None and meaning(spread[1] or spread[2]) == "samples_per_s" else None


def _without_unit(name: str) -> str | None:
    """The column of a name with a unit behind it: `Throughput (img/s)`, `GPUs [count]`."""
    match = _UNIT.fullmatch(name.lower().strip())
    if match is None:
        return None
    outside, unit = (re.sub(r"[ \-]+", "_", part.strip()) for part in match.groups())
    meant, inside = meaning(outside), meaning(unit)
    if inside in ("samples_per_s", EACH) and meant in (None, "samples_per_s"):
        return inside
    if meant == "batch_per_device" and ("global" in unit or "total" in unit):
        return "global_batch"
    if meant == "spread":
        return meant
    return meant if meant not in ("samples_per_s", STEP, STEPS_PER_S) and inside is None else None
