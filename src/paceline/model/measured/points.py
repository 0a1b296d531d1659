"""Throughputs from a CSV file as series: one series is one way to run one network, at several device counts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError, Problem, UnknownName
from paceline.model.measured.cells import Cells, read_table
from paceline.model.measured.names import link_kind
from paceline.spec.load import refuse_rows

__all__ = ["Series", "read_points", "series_of_rows"]

Floats = NDArray[np.float64]
Row = dict[str, str | float | None]

LABELS = ("network", "framework", "strategy", "device", "link", "precision", "data", "note", "series")
NUMBERS = ("devices_per_host", "hosts", "batch_per_device", "global_batch", "spread")
ALIASES = {
    "devices": ("gpus", "num_gpus", "num_devices", "accelerators", "ranks", "workers"),
    "samples_per_s": (
        "throughput", "rate", "samples_per_sec", "samples_per_second", "samples/s", "images_per_s", "images_per_sec",
        "images_per_second", "images/s", "img/s", "imgs_per_sec", "sequences_per_s", "sequences_per_sec",
        "sequences/s", "tokens_per_s", "tokens_per_sec", "tokens/s", "ips", "fps",
    ),
    "devices_per_host": ("gpus_per_host", "gpus_per_node", "devices_per_node"),
    "hosts": ("nodes", "num_hosts", "num_nodes"),
    "batch_per_device": ("batch", "batch_size", "batch_per_gpu", "local_batch"),
    "network": ("model",),
    "link": ("interconnect",),
    "device": ("gpu", "hardware"),
    "spread": ("std", "stddev", "stdev", "sd", "standard_deviation"),
    "series": ("name", "config", "configuration", "experiment", "setup", "system", "label"),
}  # fmt: skip
"""What people call the columns."""
_COUNT = re.compile(
    r"(?:n|num|number_of|total)?_*(?:gpus|tpus|devices|accelerators|ranks|workers|procs|processes|cards)"
)
_COUNTS = ("gpu_count", "device_count", "world_size", "n_gpu", "num_gpu", "ngpu", "np", "nproc")
_RATE = re.compile(
    r"(?:avg_|mean_|training_|train_|total_)?"
    r"(?:samples?|images?|imgs?|examples?|sequences?|seqs?|tokens?|toks?|items?|frames?)_*(?:/|per)_*s(?:ecs?|econds?)?"
)
_UNIT = re.compile(r"(.+?)\s*[(\[](.+)[)\]]")
_EACH = re.compile(r"(.+?)_*(?:/|_per_|_each_)_*(?:gpu|device|accelerator|worker|rank|card|tpu)")
EACH = "samples_per_s_per_device"
_KEYS = ("devices", "samples_per_s", EACH)
FULL_HOST = 8.0
"""Devices of a full host where nothing says it."""


@dataclass(frozen=True)
class Series:
    """Throughputs of one way to run one network, by number of devices, smallest first."""

    label: str
    network: str
    how: str
    """Framework and strategy, as written."""
    device: str
    link: str
    per_host: float
    """Devices of a full host, whether or not a point uses all of them."""
    devices: Floats
    hosts: Floats
    samples_per_s: Floats
    spread: Floats
    """Relative standard deviation of each point; 0 where none is given."""
    batches: Floats
    """Samples per device and step of each point; nan where it is not known."""
    campaign: str = ""
    siblings: tuple[Series, ...] = ()
    """The same at other batches per device: their points take part in the fit."""
    assumed: tuple[str, ...] = ()
    """What the file does not say, and what stands for it."""
    precision: str = ""
    """As written; empty where the file does not say it."""
    in_tokens: bool = False
    """Throughputs count tokens, so that batches of sequences do not tell how long a step takes."""

    @property
    def num_points(self) -> int:
        """Different numbers of devices."""
        return len(self.devices)

    @property
    def batch(self) -> float | None:
        """Samples per device and step of the smallest count; none if it is not known."""
        return None if np.isnan(self.batches[0]) else float(self.batches[0])

    @property
    def has_one_batch(self) -> bool:
        """Whether all points have the same batch per device, or none is known."""
        return bool(np.isnan(self.batches).all() or np.ptp(self.batches) == 0)

    @property
    def log_seconds(self) -> Floats:
        """Logarithm of the seconds that one device spends on one sample, at each point."""
        return np.asarray(np.log(self.devices / self.samples_per_s))

    def shrink_of(self, batches: Floats | float) -> Floats:
        """How many times smaller these batches are than the smallest count's; 1 where one of them is not known."""
        return np.asarray(np.nan_to_num(self.batches[0] / np.asarray(batches, dtype=np.float64), nan=1.0))

    def batch_at(self, count: float, global_batch: float | None = None) -> float:
        """Samples per device and step at a count: the global batch's share; else as the points go on."""
        if global_batch is not None:
            return global_batch / count
        totals = self.batches * self.devices
        fixed_total = self.num_points > 1 and np.ptp(totals) < 0.01 * totals[-1] and np.ptp(self.batches) > 0
        return float(totals[-1] / count) if fixed_total else float(self.batches[-1])

    def hosts_at(self, count: float) -> float:
        """Hosts that this many devices need; a link that never leaves a host needs one."""
        return 1.0 if link_kind(self.link).inside else max(1.0, math.ceil(count / self.per_host - 1e-9))

    def first(self, count: int) -> Series:
        """The series with its smallest counts alone."""
        cut = slice(0, count)
        return replace(
            self, devices=self.devices[cut], hosts=self.hosts[cut], samples_per_s=self.samples_per_s[cut],
            spread=self.spread[cut], batches=self.batches[cut],
        )  # fmt: skip


def read_points(path: Path, facts: Mapping[str, str] | None = None) -> tuple[Series, ...]:
    """The series of a CSV file; every wrong cell is reported with its line.

    `facts` are columns that the file does not have.
    """
    columns, lines = read_table(path)
    names = _column_names(columns)
    given = _facts(path, facts or {}, names)
    held = {"samples_per_s" if name == EACH else name for name in names.values()}
    missing = [name for name in ("devices", "samples_per_s") if name not in held]
    if missing:
        raise InputError(
            f"{path}: column missing: {', '.join(missing)}",
            hint=f"the first line has {', '.join(columns)[:120] or 'nothing'}; expected are devices, samples_per_s, "
            "better with network, framework or strategy, device, link, devices_per_host (of a full host), "
            "batch_per_device or global_batch, and spread",
        )
    problems: list[Problem] = []
    rows = [_parsed(Cells(str(path), number, {**given, **{names[key]: text for key, text in row.items()}}, problems))
            for number, row in lines]  # fmt: skip
    refuse_rows(str(path), problems)
    _tell_apart(rows, [{names[key]: text for key, text in row.items()} for _, row in lines])
    rates = [written for written, name in names.items() if name in ("samples_per_s", EACH)]
    for row in rows:
        row["in_tokens"] = "tokens" if "tok" in rates[0].lower() else None
    return series_of_rows(rows, str(path))


def _tell_apart(rows: list[Row], written: list[dict[str, str]]) -> None:
    """Name series by a column of words that nobody knows, if it alone tells rows of the same count apart."""

    def repeated(some: list[Row]) -> bool:
        keys = [tuple(row[name] for name in (*LABELS, "batch_per_device", "global_batch", "devices")) for row in some]
        return len(set(keys)) < len(keys)

    unknown = [name for name in (written[0] if written else ()) if name not in (*LABELS, *NUMBERS, *_KEYS)]
    for name in unknown if repeated(rows) else ():
        groups: dict[str, list[Row]] = {}
        for row, cells in zip(rows, written, strict=True):
            groups.setdefault(cells[name], []).append(row)
        words = all(re.search(r"[^\W\d]", text) for text in groups)
        if words and len(groups) > 1 and not any(repeated(some) or len(some) < 2 for some in groups.values()):
            for text, some in groups.items():
                for row in some:
                    row["series"] = text
            return


def _facts(path: Path, facts: Mapping[str, str], names: dict[str, str]) -> dict[str, str]:
    """Facts by the name of their column; refuses those that no column has, and those that the file states."""
    known = (*LABELS, *NUMBERS)
    plain = _column_names(list(facts))
    for written, name in plain.items():
        if name not in known:
            raise UnknownName("column of a points file", written, known)
        if name in names.values():
            raise InputError(f"{path} states {name}, and so does --fact {written}", hint="leave one of the two out")
    return {name: facts[written].strip() for written, name in plain.items()}


def _column_names(written: list[str]) -> dict[str, str]:
    """Each column of a file by what it holds."""
    plain = {name: re.sub(r"[ \-]+", "_", re.sub(r"[#()\[\]]", " ", name.lower()).strip()) for name in written}
    meant = {name: _meaning(text) or _without_unit(name) or text for name, text in plain.items()}
    return {name: plain[name] if meant[name] in plain.values() else meant[name] for name in written}


def _meaning(text: str) -> str | None:
    """The column that a name means by itself or by its pattern: a number of devices, or something per second."""
    known = {other: name for name, others in ALIASES.items() for other in others} | {name: name for name in ALIASES}
    if text in known or text in (*LABELS, *NUMBERS):
        return known.get(text, text)
    if _COUNT.fullmatch(text) or text in _COUNTS:
        return "devices"
    each = _EACH.fullmatch(text)
    if each is not None and _meaning(each[1]) == "samples_per_s":
        return EACH
    return "samples_per_s" if _RATE.fullmatch(text) else None


def _without_unit(name: str) -> str | None:
    """The column of a name with a unit behind it: `Throughput (img/s)`, `GPUs [count]`; times are none of ours."""
    match = _UNIT.fullmatch(name.lower().strip())
    if match is None:
        return None
    outside, unit = (re.sub(r"[ \-]+", "_", part.strip()) for part in match.groups())
    meant, inside = _meaning(outside), _meaning(unit)
    if inside in ("samples_per_s", EACH) and meant in (None, "samples_per_s"):
        return inside
    if meant == "batch_per_device" and ("global" in unit or "total" in unit):
        return "global_batch"
    return meant if meant != "samples_per_s" and inside is None else None


def _parsed(cells: Cells) -> Row:
    parsed: Row = {name: cells.row.get(name, "") for name in LABELS}
    each = "samples_per_s" not in cells.row
    parsed["devices"] = cells.number("devices", needed=True)
    rate = cells.number(EACH if each else "samples_per_s", needed=True)
    parsed["samples_per_s"] = rate and rate * (float(parsed["devices"] or 1) if each else 1)
    for name in NUMBERS:
        parsed[name] = cells.number(name)
    if cells.row.get("spread", "").endswith("%"):
        parsed["spread"] = parsed["spread"] and float(parsed["spread"]) / 100 * float(parsed["samples_per_s"] or 0)
    elif each and parsed["spread"]:
        parsed["spread"] = float(parsed["spread"]) * float(parsed["devices"] or 1)
    devices, hosts, full = (float(parsed[name] or 0) for name in ("devices", "hosts", "devices_per_host"))
    if hosts and full and devices > hosts * full:
        given = f"{full:g}, but {devices:g} devices ran on {hosts:g} hosts"
        cells.refuse("devices_per_host", given, "the number of devices of a full host")
    if float(parsed["spread"] or 0) > float(parsed["samples_per_s"] or math.inf):
        cells.refuse("spread", f"{parsed['spread']:g}", "a standard deviation, at most the throughput")
    if hosts and not full:
        parsed["devices_per_host"] = math.ceil(devices / hosts) if hosts > 1 else None
    return parsed


def series_of_rows(rows: list[Row], file: str) -> tuple[Series, ...]:
    """Rows grouped into series; repeated counts are medians, order does not matter.

    Rows that differ in the batch alone are one series if each count has one batch (a fixed global batch); else they
    are one series per batch, each with the others as siblings.
    """
    groups: dict[tuple[str | float | None, ...], list[Row]] = {}
    for row in rows:
        row.setdefault("global_batch", None)
        if row["batch_per_device"] is None and row["global_batch"] is not None:
            row["batch_per_device"] = float(row["global_batch"]) / float(row["devices"] or 1)
        groups.setdefault((*(row.get(name) for name in LABELS), row.get("campaign")), []).append(row)
    if not groups:
        raise InputError(f"{file} holds no points", hint="one row per measured number of devices")
    return tuple(one for group in groups.values() for one in _by_batch(group))


def _by_batch(rows: list[Row]) -> Iterable[Series]:
    batches = {row["batch_per_device"] for row in rows}
    per_count = {(row["devices"], row["batch_per_device"]) for row in rows}
    if len(batches) == 1 or len(per_count) == len({row["devices"] for row in rows}):
        return [_series(rows, batches)]
    full = max(float(row["devices_per_host"] or 0) for row in rows)
    apart = [_series([{**row, "devices_per_host": row["devices_per_host"] or full or None} for row in rows
                      if row["batch_per_device"] == batch], {batch})
             for batch in sorted(batches, key=lambda batch: float(batch or 0))]  # fmt: skip
    known = [one for one in apart if one.batch is not None]
    return [replace(one, siblings=tuple(other for other in known if other is not one and one.batch)) for one in apart]


def _series(rows: list[Row], batches: set[str | float | None]) -> Series:
    text = {name: str(rows[0].get(name) or "") for name in LABELS}
    counts = np.array(sorted({float(row["devices"] or 0) for row in rows}))
    groups = [[row for row in rows if row["devices"] == count] for count in counts]
    rates = np.array([float(np.median([float(row["samples_per_s"] or 0) for row in group])) for group in groups])
    spread = np.array([_spread(group) for group in groups])
    how = " ".join(part for part in (text["framework"], text["strategy"]) if part)
    parts = [text["series"], text["network"], how, text["device"], text["link"], text["precision"], text["data"]]
    (only,) = batches if len(batches) == 1 else (None,)
    parts.append(f"batch {only:g}" if isinstance(only, float) else "batch varies" if len(batches) > 1 else "")
    per_host, assumed = _full_host(rows, counts, text["link"])
    if not how:
        assumed.append("framework or strategy not given: overlap not known")
    if batches == {None}:
        assumed.append("batch_per_device not given: a step is one sample on each device")
    label = ", ".join(part for part in parts if part) or "measured points"
    return Series(
        label=label,
        network=text["network"],
        how=how,
        device=text["device"],
        link=text["link"],
        per_host=per_host,
        devices=counts,
        hosts=np.array([_hosts(group, per_host, label) for group in groups]),
        samples_per_s=rates,
        spread=spread / rates,
        batches=np.array([float(group[0]["batch_per_device"] or math.nan) for group in groups]),
        campaign=str(rows[0].get("campaign") or ""),
        assumed=tuple(assumed),
        precision=text["precision"],
        in_tokens=bool(rows[0].get("in_tokens")),
    )


def _spread(rows: list[Row]) -> float:
    """Standard deviation at one count: the largest stated, or that of repetitions that differ; at most the rate."""
    rates = [float(row["samples_per_s"] or 0) for row in rows]
    differ = float(np.std(list(set(rates)), ddof=1)) if len(set(rates)) > 1 else 0.0
    stated = max(float(row.get("spread") or 0) for row in rows)
    return max(min(differ, float(np.median(rates))), stated)


def _hosts(rows: list[Row], per_host: float, label: str) -> float:
    """Hosts of one count: as stated, else as few as can hold the devices."""
    if link_kind(str(rows[0].get("link") or "")).inside:
        return 1.0
    count, stated = float(rows[0]["devices"] or 0), sorted({float(row.get("hosts") or 0) for row in rows} - {0.0})
    if len(stated) > 1:
        ran = " and on ".join(f"{hosts:g}" for hosts in stated)
        raise InputError(
            f"{label}: {count:g} devices ran on {ran} hosts", hint="tell the series apart by a column `series`"
        )
    return stated[0] if stated else max(1.0, math.ceil(count / per_host - 1e-9))


def _full_host(rows: list[Row], counts: Floats, link: str) -> tuple[float, list[str]]:
    """Devices of a full host, and what had to be assumed about it."""
    stated = sorted({float(row.get("devices_per_host") or 0) for row in rows} - {0.0})
    if link_kind(link).inside:
        return max([*stated, counts[-1]]), []
    if not stated:
        held = max(math.ceil(float(row["devices"] or 0) / float(row.get("hosts") or math.inf)) for row in rows)
        full = max(FULL_HOST, float(held))
        return full, [f"devices_per_host not given: hosts of {full:g} assumed"]
    if len(stated) > 1:
        return stated[-1], [f"devices_per_host differs between rows: {stated[-1]:g} taken as the full host"]
    return stated[0], []
