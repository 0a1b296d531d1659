"""A profile: the time of each layer of a network on one device, and the order in which gradients become ready."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from paceline.files import write_output
from paceline.spec.cluster import LayerClass
from paceline.spec.fields import Bandwidth, Bytes, Count, Flops, Name, Seconds, Share, SpecModel
from paceline.spec.load import load_json

__all__ = ["Profile", "ProfiledHost", "ProfiledLayer", "read_profile", "write_profile"]


class ProfiledLayer(SpecModel):
    """The times of one layer in a step, and the bytes of each of its gradients."""

    name: Name
    forward: Seconds
    backward: Seconds
    gradients: tuple[Bytes, ...] = ()
    """Bytes of each gradient tensor, in the order in which they become ready; empty for layers without parameters."""
    kind: LayerClass | None = None
    """Kind of the layer, for devices whose rates differ by kind; with `macs` and `moved` a profile can be scaled to
    other devices."""
    macs: Annotated[float, Field(ge=0)] | None = None
    """Multiply-adds of the forward pass of one sample."""
    moved: Bytes | None = None
    """Bytes of its input and output in the forward pass of one sample."""
    steps: Count = 1
    """Steps of the forward pass that wait for each other: the positions of a recurrent layer, of each of its levels."""


class ProfiledHost(SpecModel):
    """The CPU of a profile: cores that the ranks of a host share, and measured rates with these threads."""

    cores: Count
    threads: Count
    """Compute threads of the profiled rank."""
    peak: Flops | None = None
    """Rate of a matrix product of float32 on these threads, measured beside the profile."""
    bandwidth: Bandwidth | None = None
    """Bytes per second that these threads read and write in a copy, measured beside the profile."""
    thread_gain: Annotated[float, Field(gt=0)] | None = None
    """How many times faster the step was on these threads than on one."""


class Profile(SpecModel):
    """The times of one step on one device, by layer in the order of the forward pass."""

    schema_: Annotated[Literal["paceline.profile/1"], Field(alias="schema")] = "paceline.profile/1"
    network: Name
    device: Name | None = None
    """Catalog name of the profiled device, if the catalog has it."""
    batch: Count
    """Number of samples of the profiled step."""
    layers: Annotated[tuple[ProfiledLayer, ...], Field(min_length=1)]
    ready: tuple[Name, ...] = ()
    """Names of layers in the order in which their gradients become ready; by default last layer first."""
    io: Seconds = 0.0
    """Time to read and decode one batch."""
    h2d: Seconds = 0.0
    """Time to copy one batch to the device."""
    update: Seconds = 0.0
    """Time of the optimizer's update."""
    crowd: Count = 1
    """Number of ranks that computed concurrently on the host; the times include their effect on memory and clock."""
    host: ProfiledHost | None = None
    """The processor that computed; none on GPUs, and in profiles that do not know it."""
    precision: Literal["float64", "float32", "tf32", "float16", "bfloat16", "amp"] | None = None
    """Precision of the step; none for the framework's default on the device."""
    tied: tuple[Name, ...] = ()
    """Parameters that other layers use, too: their gradients count once."""
    jitter: Share = 0.01
    """Relative standard deviation of the step time."""
    uncertainty: Share = 0.02
    """Relative standard error of the mean times."""
    source: str = ""
    """Origin of the profile: a capture, the id of a run, a trace file."""

    @model_validator(mode="after")
    def _ready_names(self) -> Profile:
        names = [layer.name for layer in self.layers]
        if len(set(names)) != len(names):
            raise ValueError("two layers have the same name")
        if self.ready and sorted(self.ready) != sorted(names):
            raise ValueError("ready must name every layer exactly once")
        return self

    @property
    def rows(self) -> list[tuple[str, float, float, tuple[float, ...]]]:
        """The layers as tuples: name, forward, backward, bytes of each gradient."""
        return [(layer.name, layer.forward, layer.backward, layer.gradients) for layer in self.layers]

    @property
    def is_outline(self) -> bool:
        """Whether the profile contains work without times: the model did not run."""
        return self.step == 0.0

    @property
    def step(self) -> float:
        """Total seconds of forward, backward and update."""
        return sum(layer.forward + layer.backward for layer in self.layers) + self.update


def read_profile(path: Path) -> Profile:
    """Read a profile from a JSON file; all problems of an invalid file are one InputError."""
    return load_json(path, Profile, hint="a profile is JSON that `paceline.capture` or `paceline calibrate` wrote")


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile as JSON."""
    text = json.dumps(profile.model_dump(mode="json", by_alias=True), indent=1)
    write_output(path, text + "\n")
