"""The verbs that explain, as a user types them: real processes, confirmed advice, clear errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

STUDY = """
name = "steady"
title = "Steps that do not depend on the batch"
networks = ["lenet"]
frameworks = ["pytorch"]
devices = [1]
batch = [1, 4]

[protocol]
launches = 2
max_launches = 2
warmup = 2
steps = 20
phase_steps = 2
threads = 1
width = 0.5
"""


GAP = """
name = "gap"
networks = ["lenet"]
frameworks = ["pytorch"]
devices = [2]
batch = [{batch}]

[[strategy]]
name = "beside"

[[strategy]]
name = "after"
overlap = false

[protocol]
launches = 2
max_launches = 2
warmup = 2
steps = 20
phase_steps = 3
threads = 1
width = 0.5
"""


@pytest.fixture
def steady(quick, study_file):
    quick("run", str(study_file(STUDY)))
    return quick


def test_advice_is_tried_and_both_gains_stand_side_by_side(steady):
    document = steady.json("explain", "steady", "--confirm", "--most", "1")
    (tried,) = [finding for finding in document["findings"] if finding["measured_gain"]]
    assert tried["cause"] == "small_batch"
    assert tried["measured_gain"]["value"] == pytest.approx(tried["gain"]["value"], abs=0.1)
    assert document["summary"][0].startswith("lenet under pytorch/ddp reaches")
    campaigns = steady.json("show", "--list")["campaigns"]
    assert {campaign["study"] for campaign in campaigns} == {"steady", "steady.confirm"}
    again = steady.json("explain", "steady")
    (stored,) = [finding for finding in again["findings"] if finding["measured_gain"]]
    assert stored["measured_gain"]["value"] == pytest.approx(tried["measured_gain"]["value"])


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.parametrize(("batch", "side"), [(8, "slower"), (7, "faster")])
def test_a_cause_of_a_gap_is_tried_on_the_side_that_can_change_it(quick, study_file, batch, side):
    quick("run", str(study_file(GAP.replace("{batch}", str(batch)))))
    (gap,) = quick.json("explain", "gap", "--confirm", "--most", "0")["gaps"]
    assert sum(bar["seconds"] for bar in gap["bars"]) == pytest.approx(gap["seconds"], abs=1e-9)
    bars = {bar["cause"]: bar for bar in gap["bars"]}
    assert bars["overlap"]["tried"].startswith(f"the {side} side, pytorch/ddp, with overlap = ")
    assert bars["overlap"]["measured_s"]["value"] == pytest.approx(gap["seconds"], rel=0.2)
    assert bars["unexplained"]["interval"]["low"] <= bars["unexplained"]["interval"]["high"]
    assert bars["unexplained"]["measured_s"] is None


def test_explain_and_report_speak_the_same_three_sentences(steady, tmp_path):
    text = steady("explain", "steady")
    page = tmp_path / "deep" / "page.html"
    said = steady("report", "steady", "-o", str(page))
    sentences = said.split("\n\n")[0].splitlines()
    assert len(sentences) == 3
    assert all(sentence in text for sentence in sentences)
    assert str(page) in said
    assert page.read_text().startswith("<!doctype html>")
    default = Path(steady.json("report", "steady")["file"])
    assert default.parent.name == "reports"


def test_every_kind_of_export_of_a_study_without_spans_is_written_or_refused(steady, tmp_path):
    assert (
        "samples/s"
        in Path(steady.json("export", "steady", "--to", "markdown", "-o", str(tmp_path / "t.md"))["path"]).read_text()
    )
    error = steady("export", "steady", "--to", "chrome", "-o", str(tmp_path / "t.json"), code=2)
    assert "no case of this study was traced" in error
    predicted = steady.json("export", "steady", "--to", "chrome-predicted", "-o", str(tmp_path / "p.json"))["path"]
    assert json.loads(Path(predicted).read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("explain", "nothing"), "no runs in"),
        (("report",), "no runs in"),
        (("export", "--to", "xml"), "no runs in"),
    ],
)
def test_an_empty_store_is_one_clear_error(paceline, arguments, words):
    assert words in paceline(*arguments, code=2)


def test_wrong_names_are_clear_errors(steady, tmp_path):
    assert "did you mean 'steady'" in steady("explain", "stedy", code=2)
    assert "no export is called 'crome'" in steady("export", "steady", "--to", "crome", code=2)
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "cannot write" in steady("report", "steady", "-o", str(blocked / "x" / "page.html"), code=2)
    assert "cannot write" in steady("export", "steady", "--to", "csv", "-o", str(blocked / "x.csv"), code=2)
