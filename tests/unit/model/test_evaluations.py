"""Published evaluations: every one of the catalog is whole, and its answer is what single predictions say."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline import api, catalog
from paceline.catalog.evaluations import Evaluation, evaluation, evaluation_names
from paceline.errors import InputError, SpecError, UnknownName
from paceline.model.validation.evaluations import MEASURED_KEYS, MEASURED_SCHEMA, predict_evaluation, read_measured
from paceline.report.evaluations import (
    _direction_table,
    _disturbances,
    _emulated_part,
    _headline_table,
    _measured_parts,
    evaluation_page,
)
from paceline.spec.load import parse_spec
from tests.conftest import Command

SMALL = """
name = "small"
title = "A small one"
question = "How fast?"
published_by = "nobody"
assumes = ["two hosts"]

[[cluster]]
name = "mine"
[[cluster.host]]
name = "node"
count = 2
devices = [{ name = "v100-pcie", count = 2 }]
inside = "pcie3-x16"
link = "10gbe"

[[curve]]
name = "c"
network = "resnet20"
cluster = "mine"
frameworks = ["pytorch", "mxnet"]
batch = 64
devices = [1, 4]

[[plan]]
name = "p"
network = "resnet20"
cluster = "mine"
global_batch = 256

[[published]]
what = "far too fast"
published = 1e9
quantity = "samples/s"
curve = "c"
framework = "mxnet"
devices = 4
source = "made up"

[[published]]
what = "linear"
published = 4.0
quantity = "speed-up"
curve = "c"
framework = "pytorch"
devices = 4
source = "made up"

[[direction]]
curve = "c"
framework = "mxnet"
changes = { "link.bandwidth" = "100 Gb/s" }
"""


def small() -> Evaluation:
    return parse_spec(SMALL, Evaluation, "small.toml")


@pytest.mark.parametrize("name", evaluation_names())
def test_every_evaluation_of_the_catalog_is_whole(name: str) -> None:
    asked = evaluation(name)
    assert asked.name == name
    for one in (*asked.curve, *asked.plan):
        assert catalog.network(one.network)
        assert asked.cluster_called(one.cluster).num_devices >= max(getattr(one, "devices", (1,)))
    for curve in asked.curve:
        assert all(catalog.framework(framework) for framework in curve.frameworks)
    assert all(asked.cases_of(study) for study, _ in asked.studies.values())
    assert "study" in asked.studies


def test_an_answer_is_what_predict_and_whatif_say() -> None:
    asked = small()
    answer = predict_evaluation(asked)
    where = asked.cluster_called("mine")
    for name, curve in answer.curves[0].curves.items():
        alone = api.predict("resnet20", cluster=where, batch=64, devices=[1, 4], framework=name).curve
        assert [p.samples_per_s for p in curve.predictions] == [p.samples_per_s for p in alone.predictions]
    changes = {"link.bandwidth": "100 Gb/s"}
    faster = api.predict("resnet20", cluster=where, batch=64, devices=4, framework="mxnet", changes=changes).curve
    before = answer.curves[0].curves["mxnet"].predictions[-1].samples_per_s.value
    assert answer.directions[0].gain == pytest.approx(faster.predictions[0].samples_per_s.value / before - 1)
    assert answer.directions[0].gain > 0.01
    plan = api.plan("resnet20", cluster=where, global_batch=256).plan
    assert answer.plans[0][1].best.predicted_throughput == plan.best.predicted_throughput


def test_headlines_are_compared_with_their_own_curve() -> None:
    answer = predict_evaluation(small())
    rate, speed_up = answer.headlines
    last = answer.curves[0].curves["mxnet"].predictions[-1]
    assert rate.predicted == last.samples_per_s
    assert rate.error == pytest.approx(last.samples_per_s.value / 1e9 - 1)
    assert not rate.held
    point = answer.curves[0].curves["pytorch"].predictions[-1]
    assert speed_up.predicted.value == pytest.approx(4 * point.efficiency)
    low, high = speed_up.predicted.interval_90
    assert low < speed_up.predicted.value < high
    assert speed_up.held == (low <= 4.0 <= high)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('curve = "c"', 'curve = "d"', "no curve is called 'd'"),
        ('framework = "mxnet"', 'framework = "jax"', "has no framework 'jax'"),
        ("devices = 4", "devices = 3", "no point at 3 devices"),
    ],
)
def test_what_names_nothing_is_refused(old: str, new: str, expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        parse_spec(SMALL.replace(old, new), Evaluation, "small.toml")


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="five-frameworks-cifar"):
        evaluation("five-framework-cifar")


def test_the_command_shows_and_writes_the_answer(paceline: Command, tmp_path: Path) -> None:
    file, page = tmp_path / "small.toml", tmp_path / "page.md"
    file.write_text(SMALL, encoding="utf-8")
    text = paceline("evaluate", str(file), "--predict-only", "--page", str(page))
    for words in (
        "far too fast",
        "outside",
        "speed-up at 4",
        "baseline, DDP",
        "link.bandwidth=100 Gb/s",
        "assumed: two",
    ):
        assert words in text
    written = page.read_text(encoding="utf-8")
    assert f"paceline evaluate {file} --predict-only" in written
    assert "| far too fast |" in written


def test_the_command_measures_its_study_and_answers_in_json(quick: Command, tmp_path: Path) -> None:
    file, page = tmp_path / "small.toml", tmp_path / "page.md"
    study = '[study]\nname = "s"\nnetworks = ["lenet"]\nframeworks = ["pytorch"]\nbatch = [4]\n'
    file.write_text(f"{SMALL}\n{study}[study.protocol]\nlaunches = 1\nmax_launches = 1\n", encoding="utf-8")
    kept = tmp_path / "kept.json"
    words = ("evaluate", str(file), "--measured", str(kept), "--page", str(page))
    found = quick.json(*words)
    assert found["schema"] == "paceline.evaluate/1"
    assert found["published"][0]["held"] is False
    assert len(found["measured"]["study"]["cases"]) == 1
    fresh = page.read_text(encoding="utf-8")
    assert "## Measured on this machine" in fresh
    assert "## Where the measured step goes" in fresh
    again = quick.json(*words)
    assert again["measured"]["study"]["cases"] == found["measured"]["study"]["cases"]
    assert page.read_text(encoding="utf-8") == fresh
    assert list(quick.json("evaluate")["evaluations"]) == list(evaluation_names())


def kept(cases: object, **others: object) -> str:
    measured = {"study": {"campaign": "c", "cases": cases}}
    return json.dumps({"schema": MEASURED_SCHEMA, "name": "small", "measured": measured, **others})


CASE = dict.fromkeys(MEASURED_KEYS)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("not JSON", "no measurements of an evaluation"),
        ("[]", "no measurements of an evaluation"),
        (kept(None), "no measurements of an evaluation"),
        (kept([CASE], schema="paceline.show/1"), "got no case"),
        (kept([]), "got no case"),
        (kept([CASE], measured=[]), "no measurements of an evaluation"),
        (kept([{}]), "a case without 'network'"),
        (kept([CASE], name="large"), "of 'large'"),
    ],
)
def test_a_file_that_is_not_its_measurement_is_refused(document: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    file.write_text(document, encoding="utf-8")
    with pytest.raises(InputError, match=expected):
        read_measured(file, "small")
    file.write_text(kept([CASE]), encoding="utf-8")
    assert read_measured(file, "small") == {"study": {"campaign": "c", "cases": [CASE]}}


def test_a_study_finds_the_clusters_of_its_evaluation() -> None:
    study = '[study]\nname = "s"\nnetworks = ["lenet"]\nframeworks = ["pytorch"]\nclusters = ["mine"]\nbatch = [4]\n'
    asked = parse_spec(f'on = "virtual"\n{SMALL}{study}devices = [4]\n', Evaluation, "small.toml")
    ((study, on),) = asked.studies.values()
    (case,) = asked.cases_of(study)
    assert (on, case.cluster) == ("virtual", asked.cluster_called("mine"))


def test_emulated_cases_stand_beside_their_predictions(tmp_path: Path) -> None:
    study = """
[emulated]
name = "e"
networks = ["resnet20"]
frameworks = ["pytorch"]
clusters = ["mine"]
devices = [4]
batch = [4]
strategy = [{ name = "fused", overlap = false, bucket = "1 GiB" }, { name = "per tensor", bucket = "0 B" }]
"""
    with pytest.raises(InputError, match="the device 'v100-pcie', expected emulated ones"):
        predict_evaluation(parse_spec(SMALL + study, Evaluation, "small.toml"))
    emulated = SMALL.replace('name = "v100-pcie", count = 2', 'name = "v100-pcie", count = 2, emulation = {}')
    answer = predict_evaluation(parse_spec(emulated + study, Evaluation, "small.toml"))
    (fused, rate), (single, _) = answer.emulated.items()
    assert (fused, single[1]) == (("resnet20", "fused", "mine", 4, 4), "per tensor")
    changes = {"strategy.overlap": "false", "strategy.bucket": "1 GiB"}
    where = answer.evaluation.cluster_called("mine")
    alone = api.predict("resnet20", cluster=where, batch=4, devices=4, changes=changes).curve
    assert rate == alone.predictions[0].samples_per_s.value
    names = ("network", "strategy", "cluster", "ranks", "batch")
    interval = {"value": rate / 2, "low": None, "high": None}
    told = {"samples_per_s": interval, "step_s": {"value": 0.5}, "counted": 1, "labels": [], "disturbed_by": []}
    case = {**CASE, **dict(zip(names, fused, strict=True)), **told, "drifted": 0}
    page = evaluation_page(answer, {"emulated": {"campaign": "c", "cases": [case]}}, "paceline evaluate small.toml")
    (row,) = [line for line in page.splitlines() if line.startswith("| resnet20 | mine | 4 | 4 | fused |")]
    assert "+100.0 %" in row


def measured_case(**given: Any) -> dict[str, Any]:
    return {"network": "lenet", "framework": "pytorch/ddp", "strategy": "default", "cluster": "local", "ranks": 1,
            "base_ranks": 1, "batch": 8, "counted": 5, "drifted": 0, "disturbed_by": [], "labels": [], "threads": 1,
            "cores": 2, "cpu": "X", "paceline": "1", "failure": None, "speedup": {"value": 1.0},
            "step_s": {"value": 0.08},
            "samples_per_s": {"value": 100.0, "low": 90.0, "high": 110.0}, "shares": {}, **given}  # fmt: skip


def test_what_disturbed_the_machine_is_counted_over_all_cases() -> None:
    cases = [
        measured_case(drifted=2, disturbed_by=["load"]),
        measured_case(drifted=3, disturbed_by=["load"], counted=2),
    ]
    assert _disturbances(cases) == [
        "disturbed by load", "the machine's own speed was unusual before 5 launches",
        "cases with fewer than 3 launches say no more than an order of magnitude",
    ]  # fmt: skip
    assert _disturbances([measured_case(), measured_case(counted=3)]) == []


def test_speed_up_is_that_over_the_base_which_is_named() -> None:
    two = measured_case(ranks=2, speedup={"value": 1.75}, samples_per_s={"value": 175.0, "low": None, "high": None})
    (heading, table, lines), *_ = _measured_parts({"campaign": "c", "cases": [measured_case(), two]})
    assert heading == "Measured on this machine"
    assert [[cell.text for cell in row][1:] for row in table.rows] == [
        ["100.0", "90.0 to 110.0", "80.0 ms", "base", "5"], ["175.0", "", "80.0 ms", "1.75", "5"]
    ]  # fmt: skip
    assert lines[0].startswith("2 cores of X; threads of a rank: 1; campaign c")


def test_the_model_is_compared_with_the_emulation_and_not_the_reverse() -> None:
    case = measured_case(cluster="four", ranks=4)
    _, table, _ = _emulated_part({"campaign": "c", "cases": [case]}, {("lenet", "default", "four", 4, 8): 80.0})
    assert [cell.text for cell in table.rows[0]][-3:-1] == ["80.0", "-20.0 %"]


def test_directions_come_with_the_largest_gain_first() -> None:
    what = SimpleNamespace(changes={"a": "b"}, curve="c", framework="f")
    some = [SimpleNamespace(gain=gain, devices=8, direction=what) for gain in (0.1, 0.5, -0.25)]
    table = _direction_table(some)  # type: ignore[arg-type]
    assert [row[-1].text for row in table.rows] == ["+50.0 %", "+10.0 %", "-25.0 %"]


def test_an_error_is_a_share_of_the_published_figure() -> None:
    headline = SimpleNamespace(what="w", published=10.0, quantity="speed-up")
    one = SimpleNamespace(headline=headline, predicted=SimpleNamespace(value=9.0, interval_90=(8.0, 9.5)), error=-0.1,
                          held=False)  # fmt: skip
    table = _headline_table([one])  # type: ignore[list-item]
    assert [cell.text for cell in table.rows[0]][1:] == ["10 speed-up", "9.00", "8.00 to 9.50", "-10.0 %", "outside"]
