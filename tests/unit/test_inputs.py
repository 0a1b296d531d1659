"""Files and options of every kind: all problems at once with their lines, exit code 2, bounded sizes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli import program
from paceline.errors import InputError, SpecError
from paceline.measurements.profile import read_profile
from paceline.measurements.trace.formats import read_trace
from paceline.model.calibration import CATALOG_ONLY, Calibration, read_calibration, write_calibration
from paceline.model.measured.points import read_points
from paceline.model.plan.file import read_plan
from paceline.model.sweep import CollectiveFit
from paceline.model.validation.campaigns import read_campaigns
from paceline.spec.lines import locate_json

FIT = CollectiveFit("all_reduce", 2, "additive", 1e-4, 1e-9, 0.0, 0.05, 1e3, 1e8)


def lines_of(error: SpecError) -> list[tuple[int | None, str]]:
    return [(problem.line, problem.field) for problem in error.problems]


def test_lines_of_json_are_found() -> None:
    text = '{\n "a": [1,\n  {"b": "x,]}\\"",\n "c": null}\n ],\n\n "d": {}}'
    assert locate_json(text) == {
        (): 1, ("a",): 2, ("a", 0): 2, ("a", 1): 3, ("a", 1, "b"): 3, ("a", 1, "c"): 4, ("d",): 7
    }  # fmt: skip
    assert locate_json('{"a"\n\n: 1,\n"b": 2}') == {(): 1, ("a",): 3, ("b",): 4}


@pytest.mark.parametrize("rest", ['"c\x00": 3}', '"c\\q": 3}', '"c": 3}}, "d": 4', "]]]", '"'])
def test_lines_before_what_is_no_json_are_found(rest: str) -> None:
    """A reader of traces goes on where a strict parser does not: it asks for lines of texts that have none."""
    assert locate_json('{"a": 1,\n"b": 2,\n' + rest)["b",] == 2


def test_a_calibration_comes_back_as_it_was_written(tmp_path: Path) -> None:
    made = Calibration(source="a sweep", collectives=(FIT,), copy_per_byte=1e-10, jitter=0.02, crowding=0.3)
    for one in (made, CATALOG_ONLY):
        write_calibration(one, tmp_path / "c.json")
        assert read_calibration(tmp_path / "c.json") == one


def test_all_problems_of_a_calibration_are_reported_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write_calibration(Calibration(source="s", collectives=(FIT,)), path)
    text = path.read_text().replace('"startup": 0.0001', '"startup": -1').replace('"value": 0.6', '"value": NaN')
    path.write_text(text.replace('"crowding": 0.0', '"crowding": "0,5"').replace('"jitter"', '"jiter"'))
    with pytest.raises(SpecError) as caught:
        read_calibration(path)
    assert [field for _, field in lines_of(caught.value)] == [
        "collectives[0].startup", "crowding", "reach.value", "jiter"]  # fmt: skip
    rows = path.read_text().splitlines()
    names = [rows[(line or 0) - 1].split('"')[1] for line, _ in lines_of(caught.value)]
    assert names == ["startup", "crowding", "value", "jiter"]


@pytest.mark.parametrize(("old", "new"), [
    ('"per_byte": 1e-09', '"per_byte": -1e-9'), ('"spread": 0.05', '"spread": 1e300'), ('"ranks": 2', '"ranks": 0'),
    ('"form": "additive"', '"form": "cubic"'), ('"largest": 100000000.0', '"largest": 1'),
    ('"smallest": 1000.0', '"smallest": 0'), ('"overlap_rate": 1.0', '"overlap_rate": 0'), ('"schema"', '"scheme"'),
    ('calibration/1', 'calibration/2'), ('"value": 3.0', '"value": 0'), ('"jitter": null', '"jitter": Infinity'),
])  # fmt: skip
def test_values_that_make_no_sense_are_refused_in_a_calibration(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "c.json"
    write_calibration(Calibration(source="s", collectives=(FIT,)), path)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=r"c\.json"):
        read_calibration(path)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '"a"', "[" * 100_000, "{}", "\x00", "{'a': 1}"])
def test_other_files_are_no_calibration_and_no_profile(tmp_path: Path, text: str) -> None:
    (tmp_path / "c").write_text(text)
    for read in (read_calibration, read_profile):
        with pytest.raises(SpecError):
            read(tmp_path / "c")


@pytest.mark.parametrize("read", [read_calibration, read_profile, read_points, read_plan, read_campaigns, read_trace])
def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path, read) -> None:  # type: ignore[no-untyped-def]
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero"), tmp_path / "gone"):
        with pytest.raises(InputError):
            read(path)


def test_all_problems_of_a_profile_are_reported(tmp_path: Path) -> None:
    layer = {"name": "a", "forward": -1, "backward": "1,5 ms", "gradients": [1e300]}
    (tmp_path / "p").write_text(json.dumps({"network": "x", "batch": 0, "layers": [layer]}, indent=1))
    with pytest.raises(SpecError) as caught:
        read_profile(tmp_path / "p")
    assert [field for _, field in lines_of(caught.value)] == [
        "batch", "layers[0].forward", "layers[0].backward", "layers[0].gradients[0]"]  # fmt: skip


HEAD = "devices,samples_per_s,network\n"


@pytest.mark.parametrize("row", [
    '8,"350,5",x', "8,350,5,x", '8,"1.350,5",x', "8,1_000,x", "8,nan,x", "8,inf,x", "8,-3,x", "8,1e300,x", "0,3,x",
    "8.5,3,x", "10000000,3,x", "8,٣٥٠,x", "8,,x", '"8,0",3,x',
])  # fmt: skip
def test_a_number_that_is_none_is_refused_with_its_line(tmp_path: Path, row: str) -> None:
    (tmp_path / "p.csv").write_text(f"{HEAD}4,200,x\n{row}\n")
    with pytest.raises(SpecError) as caught:
        read_points(tmp_path / "p.csv")
    assert lines_of(caught.value)[0][0] == 3
    assert ("decimals have a point" in str(caught.value) or "write 1350.5" in str(caught.value)) == ('"' in row)


def test_a_spread_above_the_throughput_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("devices,samples_per_s,spread\n1,100,100\n4,1,1015\n")
    with pytest.raises(SpecError, match=r"p\.csv:3: spread: got 1015"):
        read_points(tmp_path / "p.csv")


def test_points_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    from paceline.api import extrapolate

    rows = [f"{devices},{rate}" for devices, rate in ((1, 1e-12), (2, 1e15), (4, 1e-12), (8, 1e15))]
    (tmp_path / "p.csv").write_text("\n".join(["devices,samples_per_s", *rows]))
    with pytest.raises(InputError):
        extrapolate(tmp_path / "p.csv", at=[16])


def test_all_wrong_cells_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(f'{HEAD}4,"200,5",x\n8,300,x\nx,-1,x\n')
    with pytest.raises(SpecError) as caught:
        read_points(tmp_path / "p.csv")
    assert lines_of(caught.value) == [(2, "samples_per_s"), (4, "devices"), (4, "samples_per_s")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_any_end_of_line_is_read(tmp_path: Path, end: str) -> None:
    (tmp_path / "p.csv").write_bytes(end.join(["devices,samples_per_s", "1,100", "4,350", ""]).encode())
    (series,) = read_points(tmp_path / "p.csv")
    assert series.samples_per_s.tolist() == [100.0, 350.0]


def test_a_plan_names_no_rank_twice(tmp_path: Path) -> None:
    fields = {"network": "x", "cluster": "c", "kind": "group", "reason": "r"}
    numbers = dict.fromkeys(("local_steps", "quorum"), 1)
    measured = ("predicted_step_s", "predicted_throughput", "predicted_utilisation", "staleness", "efficiency")
    floats = dict.fromkeys(measured, 1.0)
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in {**fields, **numbers, **floats}.items())
    member = '{{rank = {}, device = "d", samples = 1}}'
    for ranks, sound in (((0, 1), True), ((0, 0), False), ((1,), True), ((-1, 0), False)):
        members = ", ".join(member.format(rank) for rank in ranks)
        whole = f"global_batch = {len(ranks)}\n{text}[[group]]\nmembers = [{members}]\n"
        (tmp_path / "plan.toml").write_text(whole)
        if sound:
            assert len(read_plan(tmp_path / "plan.toml").group) == 1
        else:
            with pytest.raises(SpecError):
                read_plan(tmp_path / "plan.toml")
    (tmp_path / "plan.toml").write_text(text.replace("staleness = 1.0", "staleness = nan"))
    with pytest.raises(SpecError, match="staleness"):
        read_plan(tmp_path / "plan.toml")


def test_wrong_events_of_a_trace_are_reported_with_their_lines(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "name": "a", "ts": "soon", "dur": 1, "pid": 0},
        {"ph": "X", "name": "a", "ts": 1, "dur": -1, "pid": 0},
        {"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 0, "args": {"step": -1, "seconds": 1e300}},
        {"ph": "X", "name": "a", "dur": 1, "pid": 0, "args": []},
        {"ph": "i", "name": "b", "ts": "ignored"},
    ]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}, indent=1))
    with pytest.raises(SpecError) as caught:
        read_trace(tmp_path / "t.json")
    found = lines_of(caught.value)
    assert [field for _, field in found] == [
        "traceEvents[0].ts", "traceEvents[1].dur", "traceEvents[2].args.step", "traceEvents[2].args.seconds",
        "traceEvents[3].ts", "traceEvents[3].args"]  # fmt: skip
    rows = (tmp_path / "t.json").read_text().splitlines()
    assert all(
        field.rpartition(".")[2] in rows[(line or 0) - 1] for line, field in found if field != "traceEvents[3].ts"
    )


def test_a_span_that_ends_before_it_begins_is_refused(tmp_path: Path) -> None:
    events = [{"ph": "B", "name": "a", "ts": 5, "pid": 0}, {"ph": "E", "ts": 1, "pid": 0}]
    (tmp_path / "t.json").write_text(json.dumps(events))
    with pytest.raises(InputError, match="ends before it begins"):
        read_trace(tmp_path / "t.json")


QUESTION = ("--network", "lenet", "--cluster", "dgx-1", "--batch", "8")


@pytest.mark.parametrize("words", [
    ("simulate", *QUESTION, "--seed", "-1"), ("simulate", *QUESTION, "--steps", "100000000"),
    ("simulate", *QUESTION, "--jobs", "1000000"), ("simulate", *QUESTION, "--straggle", "nan"),
    ("simulate", *QUESTION, "--straggle-factor", "inf"), ("simulate", *QUESTION, "--mtbf", "1,5 h"),
    ("simulate", *QUESTION, "--seed", "9" * 40), ("simulate", *QUESTION, "--mtbf", "nan"),
    ("predict", *QUESTION, "--knee", "nan"), ("predict", *QUESTION, "--knee", "inf"),
    ("predict", *QUESTION[:-1], "9" * 30), ("predict", *QUESTION[:-1], "-1"), ("predict", *QUESTION[:-1], "nan"),
    ("predict", *QUESTION, "--devices", "1e3"), ("predict", *QUESTION, "--devices", "99999999999"),
    ("predict", *QUESTION, "--devices", "\u00b2"), ("predict", *QUESTION, "--devices", "9" * 5000),
    ("whatif", *QUESTION, "batch=\u00b2"), ("whatif", *QUESTION, f"batch={'9' * 5000}"),
    ("plan", "--network", "lenet", "--cluster", "mixed-lab", "--global-batch", "9" * 30),
    ("compare", "a=1", "b=2", "--confidence", "nan"), ("doctor", "--on", "virtual", "--dilation", "0.9"),
    ("bench-collectives", "--seconds", "nan"), ("transformer", "--hidden", "9" * 30),
])  # fmt: skip
def test_options_out_of_bounds_are_refused_at_once(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(program, list(words))
    error = done.exception
    code = error.exit_code if isinstance(error, InputError) else done.exit_code
    assert code == 2, done.output
    assert isinstance(error, InputError | SystemExit)
