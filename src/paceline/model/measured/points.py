"""Throughputs from a CSV file as series: one series is one way to run one network, at several device counts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError, Problem, UnknownName
from paceline.model.measured.cells import Cells, read_table
from paceline.model.measured.columns import (
    EACH,
    KEYS,
    LABELS,
    NUMBERS,
    STEP,
    STEP_MS,
    STEPS_PER_S,
    UNCLEAR_BATCHES,
    column_names,
)
from paceline.model.measured.names import link_kind
from paceline.spec.load import refuse_rows

__all__ = ["HOST_SIZES", "Series", "read_points", "series_of_rows"]

Floats = NDArray[np.float64]
Row = dict[str, str | float | None]

HOST_SIZES = {1.0: 0.05, 2.0: 0.05, 4.0: 0.25, 8.0: 0.55, 16.0: 0.1}
"""Devices of a full host where none is stated, and how probable each is: about their shares of the published campaigns,
each campaign worth the same."""
HOST_ASSUMED = "devices_per_host not given: assumed, as the points and published hosts have it"
FULL_HOST = 8.0
"""The size that stands in a series until its points are fitted."""


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
    """The series at other batches per device, whose points take part in the fit."""
    assumed: tuple[str, ...] = ()
    """Facts that the file lacks, and the assumptions in their place."""
    precision: str = ""
    """Precision as written; empty if the file does not state it."""
    in_tokens: bool = False
    """Throughputs count tokens, so that batches of sequences do not tell how long a step takes."""
    held: float = 0.0
    """The size of a full host is not stated, only that this many devices, 1 or more, fit into one; 0: it is stated."""

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

    @cached_property
    def log_seconds(self) -> Floats:
        """Logarithm of the seconds that one device spends on one sample, at each point."""
        return np.asarray(np.log(self.devices / self.samples_per_s))

    def shrink_of(self, batches: Floats | float) -> Floats:
        """How many times smaller these batches are than the smallest count's; 1 where one of them is not known."""
        shrink = self.batches[0] / np.asarray(batches, dtype=np.float64)
        return np.asarray(np.where(np.isnan(shrink), 1.0, shrink))

    def batch_at(self, count: float, global_batch: float | None = None) -> float:
        """Samples per device and step at a count: the share of the global batch, or as the points continue."""
        if global_batch is not None:
            return global_batch / count
        totals = self.batches * self.devices
        fixed_total = self.num_points > 1 and np.ptp(totals) < 0.01 * totals[-1] and np.ptp(self.batches) > 0
        return float(totals[-1] / count) if fixed_total else float(self.batches[-1])

    def hosts_at(self, count: float) -> float:
        """Hosts that this many devices need; a link that never leaves a host needs one."""
        return 1.0 if link_kind(self.link).inside else max(1.0, math.ceil(count / self.per_host - 1e-9))

    @property
    def cases(self) -> list[Series]:
        """The points on full hosts of each possible size; as they are if it is stated."""
        if not self.held:
            return [self]
        sizes = [size for size in HOST_SIZES if size >= self.held] or [self.per_host]
        fewest = [np.maximum(1.0, np.ceil(self.devices / size - 1e-9)) for size in sizes]
        return [replace(self, per_host=size, hosts=hosts, held=0.0) for size, hosts in zip(sizes, fewest, strict=True)]

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
    names, notes = column_names(columns)
    given = _facts(path, facts or {}, names)
    _check_columns(path, columns, {*names.values(), *given})
    problems: list[Problem] = []
    texts = [(number, {**given, **{names[key]: text for key, text in row.items()}}) for number, row in lines]
    for written, name in names.items():
        if name == "batch_per_device":
            notes += _unclear_batch(written, [row for _, row in texts])
    rows = [_parsed(Cells(str(path), number, row, problems)) for number, row in texts]
    refuse_rows(str(path), problems)
    _tell_apart(rows, [{names[key]: text for key, text in row.items()} for _, row in lines])
    rates = [written for written, name in names.items() if name in KEYS[1:]]
    for row in rows:
        row["in_tokens"] = "tokens" if "tok" in rates[0].lower() else None
    return tuple(replace(one, assumed=(*notes, *one.assumed)) for one in series_of_rows(rows, str(path)))


def _check_columns(path: Path, columns: list[str], held: set[str]) -> None:
    """Refuse a file without counts or throughputs, or something that both follow from."""
    counted = "devices" in held or {"hosts", "devices_per_host"} <= held
    timed = bool(held & {STEP, STEP_MS, STEPS_PER_S})
    rated = bool(held & {"samples_per_s", EACH}) or (timed and bool(held & {"batch_per_device", "global_batch"}))
    missing = [name for name, known in (("devices", counted), ("samples_per_s", rated)) if not known]
    if not missing:
        return
    wanted = "the first line has {}; expected are devices, samples_per_s, better with network, framework or strategy, "
    wanted += "device, link, devices_per_host (of a full host), batch_per_device or global_batch, and spread"
    if not counted and "hosts" in held:
        wanted += "; hosts need devices_per_host"
    if not rated and timed:
        wanted += "; the time of a step needs batch_per_device or global_batch"
    raise InputError(
        f"{path}: column missing: {', '.join(missing)}", hint=wanted.format(", ".join(columns)[:120] or "nothing")
    )


def _unclear_batch(written: str, rows: list[dict[str, str]]) -> list[str]:
    """How a column named only `batch` is read: as the batch of all devices if it grows with their number."""
    if re.sub(r"[ \-]+", "_", written.strip().lower()) not in UNCLEAR_BATCHES or not rows:
        return []
    cells = [Cells("", 0, row, []) for row in rows]
    numbers = [(one.number("batch_per_device"), _devices(one)) for one in cells]
    each = [batch / devices for batch, devices in numbers if batch and devices]
    grows = len(each) == len(rows) and len({batch for batch, _ in numbers}) > 1 and max(each) - min(each) < 1e-9
    if not grows or any("global_batch" in row for row in rows):
        return [f"{written.strip()} taken as samples per device"]
    for row in rows:
        row["global_batch"] = row.pop("batch_per_device")
    return [f"{written.strip()} grows as the devices do: taken as samples of all"]


def _tell_apart(rows: list[Row], written: list[dict[str, str]]) -> None:
    """Name series by an unknown column of words, if only this column distinguishes rows of the same count."""

    def repeated(some: list[Row]) -> bool:
        keys = [tuple(row[name] for name in (*LABELS, "batch_per_device", "global_batch", "devices")) for row in some]
        return len(set(keys)) < len(keys)

    unknown = [name for name in (written[0] if written else ()) if name not in (*LABELS, *NUMBERS, *KEYS)]
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
    plain = column_names(list(facts))[0]
    for written, name in plain.items():
        if name not in known:
            raise UnknownName("column of a points file", written, known)
        if name in names.values():
            raise InputError(f"{path} states {name}, and so does --fact {written}", hint="leave one of the two out")
    return {name: facts[written].strip() for written, name in plain.items()}


def _parsed(cells: Cells) -> Row:
    parsed: Row = {name: cells.row.get(name, "") for name in LABELS}
    for name in NUMBERS:
        parsed[name] = cells.number(name)
    parsed["devices"] = _devices(cells)
    devices, hosts, full = (float(parsed[name] or 0) for name in ("devices", "hosts", "devices_per_host"))
    parsed["batch_per_device"] = _batch(cells, parsed)
    parsed["samples_per_s"] = _rate(cells, parsed)
    parsed["spread"] = _stated_spread(cells, parsed)
    if hosts and full and devices > hosts * full:
        given = f"{full:g}, but {devices:g} devices ran on {hosts:g} hosts"
        cells.refuse("devices_per_host", given, "the number of devices of a full host")
    if float(parsed["spread"] or 0) > float(parsed["samples_per_s"] or math.inf):
        cells.refuse("spread", f"{parsed['spread']:g}", "a standard deviation, at most the throughput")
    if hosts and not full:
        parsed["devices_per_host"] = math.ceil(devices / hosts) if hosts > 1 else None
    return parsed


def _devices(cells: Cells) -> float | None:
    """The number of devices: as stated, or hosts times the devices of a full one."""
    if "devices" in cells.row:
        return cells.number("devices", needed=True)
    hosts, full = (cells.number(name, needed=True) for name in ("hosts", "devices_per_host"))
    return hosts and full and hosts * full


def _batch(cells: Cells, parsed: Row) -> float | None:
    """Samples per device and step; those of all divided, if both are stated: a step may sum up several batches."""
    each, whole, devices = (float(parsed[name] or 0) for name in ("batch_per_device", "global_batch", "devices"))
    if each and whole and 0 < whole < 0.999 * each * devices:
        given = f"{whole:g}, but {devices:g} devices with {each:g} each have {each * devices:g}"
        cells.refuse("global_batch", given, "samples of all devices per step")
    return whole / devices if whole and devices else each or None


def _rate(cells: Cells, parsed: Row) -> float | None:
    """Samples per second of all devices: as stated, of one device, or by the time of a step and its batch."""
    name = _rate_column(cells)
    value, devices = cells.number(name, needed=True), float(parsed["devices"] or 1)
    if name in KEYS[3:] and parsed["batch_per_device"] is None:
        cells.refuse("batch_per_device", "nothing", "a number above 0, because the time of a step is given")
    if value is None or name == "samples_per_s":
        return value
    samples = float(parsed["batch_per_device"] or 1) * devices
    return {EACH: devices * value, STEP: samples / value, STEP_MS: 1e3 * samples / value}.get(name, samples * value)


def _rate_column(cells: Cells) -> str:
    return next(name for name in KEYS[1:] if name in cells.row)


def _stated_spread(cells: Cells, parsed: Row) -> float | None:
    """The stated spread in samples per second of all devices, from percent or from the unit of the value."""
    spread, rate = parsed["spread"], float(parsed["samples_per_s"] or 0)
    if not spread or not rate:
        return None
    if cells.row["spread"].endswith("%"):
        return float(spread) / 100 * rate
    return float(spread) * rate / (cells.number(_rate_column(cells)) or 1.0)


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
    per_host, held, assumed = _full_host(rows, counts, text["link"])
    if not how:
        assumed.append("framework or strategy not given: overlap not known")
    if batches == {None}:
        assumed.append("batch_per_device not given: a step is one sample on each device")
    elif rows[0].get("in_tokens"):
        assumed.append("rate in tokens, batch in samples: a step is one token on each device")
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
        held=held,
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


def _full_host(rows: list[Row], counts: Floats, link: str) -> tuple[float, float, list[str]]:
    """Devices of a full host, how many it holds at least if that is not stated, and what had to be assumed."""
    stated = sorted({float(row.get("devices_per_host") or 0) for row in rows} - {0.0})
    if link_kind(link).inside:
        return max([*stated, counts[-1]]), 0.0, []
    if not stated:
        held = max(math.ceil(float(row["devices"] or 0) / float(row.get("hosts") or math.inf)) for row in rows)
        return max(FULL_HOST, float(held)), float(max(held, 1)), [HOST_ASSUMED]
    if len(stated) > 1:
        return stated[-1], 0.0, [f"devices_per_host differs between rows: {stated[-1]:g} taken as the full host"]
    return stated[0], 0.0, []
