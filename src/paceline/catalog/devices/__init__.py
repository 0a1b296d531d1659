"""Devices by name, from one record each; an unknown figure is absent, never guessed."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from pydantic import Field

from paceline.catalog.figures import Figure, ShareFigure
from paceline.errors import UnknownName
from paceline.spec.cluster import Device, DeviceKind, LayerClass, Precision, ReachShare
from paceline.spec.fields import Bandwidth, Bytes, Flops, Name, Price, Seconds, SpecModel, Watts
from paceline.spec.load import load_spec

__all__ = [
    "DeviceFigures",
    "DeviceRecord",
    "device",
    "device_by_alias",
    "device_names",
    "device_record",
    "label_words",
    "reach_figures",
    "reach_of",
    "reach_spread",
    "share_with_gain",
    "unsaid",
]

FOLDER = Path(__file__).parent

MAKERS = {"nvidia", "tesla", "geforce", "quadro", "amd", "instinct", "apple", "intel"}
NOISE = {"gpu", "gpus", "card", "graphics", "accelerator", "processor", "hbm2", "hbm2e", "hbm3", "hbm3e", "oam"}
"""Words of a label that say nothing about which device it is."""
VARIANTS = {"ti", "super", "laptop", "mobile", "max", "ultra", "pro", "ada"}
"""Words of a label that make it another device."""

_SIZE = re.compile(r"\d+gb")

ReachFigures = dict[LayerClass, ShareFigure]


class DeviceFigures(SpecModel):
    """Figures of a device."""

    peak: dict[Precision, Figure[Flops]] = Field(default_factory=dict)
    """Peak dense compute rate by precision, without structured sparsity."""
    memory: Figure[Bytes] | None = None
    memory_bandwidth: Figure[Bandwidth] | None = None
    launch_overhead: Figure[Seconds] | None = None
    reach: ReachFigures = Field(default_factory=dict)
    """Share of a rate that a kind of layer reaches, where it differs from the share of the device kind."""
    price: Figure[Price] | None = None
    power: Figure[Watts] | None = None
    """Power under load: the vendor's thermal design power."""


class InsideRecord(SpecModel):
    """How devices of one host reach each other."""

    link: Name
    source: Name
    note: str = ""


class DeviceRecord(SpecModel):
    """A device with its figures and their sources."""

    name: Name
    title: Name
    kind: DeviceKind
    year: int | None = None
    """Year of announcement."""
    aliases: tuple[Name, ...] = ()
    """Other names of the device, of people and drivers; words of its name match in any order."""
    inside: InsideRecord | None = None
    """The link to other devices of its host, in the usual host; none for a device that is alone in it."""
    figure: DeviceFigures = DeviceFigures()


class ReachSpread(SpecModel):
    """Standard deviation of log(measured / roofline)."""

    fitted: ReachShare
    """Spread over devices to whose published throughputs the reach was fitted."""
    akin: ReachShare
    """Spread over devices of the same makers and generations."""
    unknown: ReachShare
    """Spread over all other devices."""
    devices: tuple[Name, ...]
    kin: tuple[Name, ...]
    source: Name


class MatrixGain(SpecModel):
    """How the share of matrix units in convolutions falls with their rate over that of float32."""

    usual: float
    """The rate, in multiples of float32's, for which the shares are stated."""
    exponent: float
    source: Name


class DefaultReach(SpecModel):
    """Default reach of every kind of device."""

    spread: ReachSpread
    matrix: MatrixGain
    gpu: ReachFigures
    cpu: ReachFigures
    manycore: ReachFigures
    other: ReachFigures


@cache
def _usual_reach() -> DefaultReach:
    return load_spec(FOLDER.parent / "reach.toml", DefaultReach)


def reach_spread(device: Device) -> float:
    """How far a roofline of this device may be from a measurement: a standard deviation of logarithms."""
    spread = _usual_reach().spread
    if device.name in spread.devices:
        return spread.fitted
    return spread.akin if device.name in spread.kin else spread.unknown


@cache
def _records() -> dict[str, DeviceRecord]:
    records = [load_spec(path, DeviceRecord) for path in sorted(FOLDER.glob("*.toml"))]
    return {record.name: record for record in records}


def device_names() -> tuple[str, ...]:
    """Names of all devices."""
    return tuple(_records())


def device_record(name: str) -> DeviceRecord:
    """The record of a device, with sources, by its name or an alias (of a driver, or in common use)."""
    known = device_by_alias(name)
    if known is None:
        raise UnknownName(
            "device", name, [*_records(), *(other for one in _records().values() for other in one.aliases)]
        )
    return _records()[known]


@cache
def device_by_alias(label: str) -> str | None:
    """The catalog name of a device by the name of a driver or in common use; None if unknown.

    "NVIDIA GeForce RTX 3090" has the words of `rtx-3090`. A variant that the catalog does not name, such as "Ti", is
    another device, and so is one with another memory.
    """
    if label in _records():
        return label
    words, squashed = label_words(label), _squashed(label)
    matching = [
        (not more, len(label_words(known)), -len(more), record.name)
        for record in _records().values()
        for known in (record.name, *record.aliases)
        for more in [unsaid(label, record.name)]
        if _means(known, words, more) or _squashed(known) == squashed
    ]
    return max(matching)[-1] if matching else None


def _means(known: str, words: set[str], more: set[str]) -> bool:
    """Whether a label contains the words of a name and no variant; besides a short alias it says nothing `more`."""
    parts = label_words(known)
    short = len(parts) == 1 and known not in _records()
    other = more if short else more & VARIANTS | {word for word in more if _SIZE.fullmatch(word)}
    return parts <= words and not other


def unsaid(label: str, device: str) -> set[str]:
    """The words of a label that neither name the device, its maker and its form, nor state its memory."""
    record = device_record(device)
    said = set().union(*map(label_words, (record.name, record.title, *record.aliases)))
    forms = {re.sub(r"\d+$", "", word) for word in said if word.startswith("sxm")}
    memory = record.figure.memory.value if record.figure.memory else 0.0
    words = label_words(label) - said - MAKERS - NOISE - forms
    sizes = {word for word in words if _SIZE.fullmatch(word) and 0.86 < memory / (int(word[:-2]) * 2**30 or 1) < 1.01}
    return words - sizes - set(map(_squashed, (record.name, *record.aliases)))


def _squashed(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def label_words(label: str) -> set[str]:
    """Words and numbers of a label, in small letters; a size of memory is one word: `80gb`."""
    plain = re.sub(r"(\d+)[\s-]*g(?:i?b)?(?![a-z0-9])", r"\1gb", label.lower())
    return set(re.split(r"[^a-z0-9]+", plain)) - {""}


def device(name: str) -> Device:
    """The device of this name, as a spec model."""
    record = device_record(name)
    figures = record.figure
    return Device(
        name=record.name,
        kind=record.kind,
        peak={precision: figure.value for precision, figure in figures.peak.items()},
        memory=figures.memory.value if figures.memory else None,
        memory_bandwidth=figures.memory_bandwidth.value if figures.memory_bandwidth else None,
        launch_overhead=figures.launch_overhead.value if figures.launch_overhead else None,
        reach={kind: figure.value for kind, figure in figures.reach.items()},
        price=figures.price.value if figures.price else None,
        power=figures.power.value if figures.power else None,
    )


def reach_figures(record: DeviceRecord) -> ReachFigures:
    """The reach of every kind of layer on a device, with sources: its own, else that of its kind of device."""
    return {**getattr(_usual_reach(), record.kind), **record.figure.reach}


def reach_of(device: Device) -> dict[LayerClass, float]:
    """The reach of every kind of layer on a device; the device need not be in the catalog."""
    usual = {kind: figure.value for kind, figure in getattr(_usual_reach(), device.kind).items()}
    return {**usual, **device.reach}


def share_with_gain(device: Device, unit: LayerClass, gain: float) -> float:
    """The reach of a kind of layer in a precision whose rate is `gain` times that of float32.

    Registers and on-chip memory feed every unit alike: the faster the matrix units multiply, the longer they wait.
    """
    share = reach_of(device)[unit]
    if unit != "tensor_convolution" or unit in device.reach:
        return share
    matrix = _usual_reach().matrix
    return float(min(1.0, share * (gain / matrix.usual) ** -matrix.exponent))
