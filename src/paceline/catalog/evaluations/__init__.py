"""Published evaluations of frameworks and clusters, as questions that anyone can repeat.

An evaluation is data: clusters, predicted curves, plans, changes that might help, headlines as published, and a study
that measures the same question here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from paceline import catalog
from paceline.catalog.clusters.files import ClusterFile, resolved
from paceline.errors import InputError, UnknownName
from paceline.spec.cluster import Cluster
from paceline.spec.fields import Count, Label, Name, SpecModel
from paceline.spec.load import parse_spec, read_text
from paceline.spec.study import Case, Study, expand

__all__ = ["Direction", "Evaluation", "EvaluationCurve", "EvaluationPlan", "Headline", "evaluation", "evaluation_names"]

FOLDER = Path(__file__).parent


class EvaluationCurve(SpecModel):
    """Throughput over numbers of devices, one curve for each framework."""

    name: Label
    network: Name
    """Name in the catalog."""
    cluster: Name
    """A cluster of the evaluation, or of the catalog."""
    frameworks: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Frameworks, or framework/mode; the others are compared with the first."""
    batch: Count
    """Samples per device and step."""
    devices: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Numbers of devices."""
    precision: Name | None = None
    """The default is that of the framework on the device."""
    input: Literal["resident", "copied", "files"] = "resident"
    """Source of batches."""


class EvaluationPlan(SpecModel):
    """The best strategy for a cluster of unequal devices."""

    name: Label
    network: Name
    """Name in the catalog."""
    cluster: Name
    """A cluster of the evaluation, or of the catalog."""
    global_batch: Count
    """Samples of a step of all devices."""


class Headline(SpecModel):
    """A published figure, and the corresponding prediction."""

    what: Name
    """Description of the published figure."""
    published: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """The figure."""
    quantity: Literal["speed-up", "samples/s"]
    """Against one device, or of all devices."""
    curve: Label
    """The curve of the evaluation that predicts it."""
    framework: Name
    """One of the curve's frameworks."""
    devices: Count
    """One of the curve's numbers of devices."""
    source: Name
    """The publication."""


class Direction(SpecModel):
    """A change that might help, at a curve's largest number of devices."""

    curve: Label
    """The curve of the evaluation that it changes."""
    framework: Name
    """One of the curve's frameworks."""
    changes: Annotated[dict[str, str], Field(min_length=1)]
    """Changes as those of `paceline whatif --set`."""


class Evaluation(SpecModel):
    """The content of an evaluation file."""

    name: Label
    title: Name
    question: Name
    """The question of the published evaluation, in one or two sentences."""
    published_by: Name
    """The original publication."""
    assumes: tuple[Name, ...] = ()
    """Assumptions where the publication gives no information."""
    cluster: tuple[ClusterFile, ...] = ()
    """Each `[[cluster]]` of the file, with its hosts."""
    curve: Annotated[tuple[EvaluationCurve, ...], Field(min_length=1)]
    """Each `[[curve]]` of the file."""
    plan: tuple[EvaluationPlan, ...] = ()
    """Each `[[plan]]` of the file."""
    published: tuple[Headline, ...] = ()
    """Each `[[published]]` of the file."""
    direction: tuple[Direction, ...] = ()
    """Each `[[direction]]` of the file."""
    study: Study | None = None
    """The study that is measured on this machine; its clusters may be those of the evaluation."""
    on: Literal["local", "virtual"] = "local"
    """Where the study runs: on this machine as it is, or on a virtual cluster of it."""
    emulated: Study | None = None
    """The study on emulated devices of a virtual cluster; strategies represent the policies of frameworks."""

    @model_validator(mode="after")
    def _curves_exist(self) -> Evaluation:
        curves = {curve.name: curve for curve in self.curve}
        asking: list[Headline | Direction] = [*self.published, *self.direction]
        for one in asking:
            curve = curves.get(one.curve)
            if curve is None:
                raise ValueError(f"no curve is called {one.curve!r}: expected one of {', '.join(curves)}")
            if one.framework not in curve.frameworks:
                raise ValueError(f"the curve {one.curve} has no framework {one.framework!r}")
        for headline in self.published:
            if headline.devices not in curves[headline.curve].devices:
                raise ValueError(f"the curve {headline.curve} has no point at {headline.devices} devices")
        return self

    def cluster_called(self, name: str) -> Cluster:
        """A cluster of the evaluation, or of the catalog."""
        own = next((one for one in self.cluster if one.name == name), None)
        return catalog.cluster(name) if own is None else resolved(own, text="", file=self.name)

    @property
    def studies(self) -> dict[str, tuple[Study, str]]:
        """The studies by kind, each with its site: the study on `on`, the emulated one on a virtual cluster."""
        given = {"study": (self.study, self.on), "emulated": (self.emulated, "virtual")}
        return {kind: (study, on) for kind, (study, on) in given.items() if study is not None}

    def cases_of(self, study: Study) -> tuple[Case, ...]:
        """The cases of one of the studies."""
        cases = expand(study, replace(catalog.shipped_catalog(), cluster=self.cluster_called))
        devices = [device for case in cases for host in case.cluster.hosts for device in host.devices]
        real = next((device.name for device in devices if device.emulation is None), None)
        if study is self.emulated and real is not None:
            raise InputError(
                f"{self.name}: the emulated study has the device {real!r}, expected emulated ones",
                hint=f'devices = [{{ name = "{real}", emulation = {{}} }}]',
            )
        return cases


def evaluation_names() -> tuple[str, ...]:
    """Names of all evaluations of the catalog."""
    return tuple(path.stem for path in sorted(FOLDER.glob("*.toml")))


def evaluation(name: str) -> Evaluation:
    """The evaluation of this name, or of the file at this path if it ends in .toml."""
    if not name.endswith(".toml") and name not in evaluation_names():
        raise UnknownName("evaluation", name, evaluation_names())
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    return parse_spec(read_text(path), Evaluation, str(path))
