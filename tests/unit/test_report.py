"""The page and the exports: what they hold, and that no name can do harm."""

import csv
import html
import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paceline
from paceline import catalog
from paceline.explain.cases.step import WhatIf, scaled_step
from paceline.explain.cases.stragglers import Straggler
from paceline.explain.explanation import explain_campaign
from paceline.explain.findings import Change, Finding
from paceline.measurements.integrity import write_sums
from paceline.measurements.results import usage_of_group
from paceline.measurements.run import Failure, Span
from paceline.measurements.store import Store
from paceline.measurements.summary import Interval
from paceline.measurements.tables import throughputs_where
from paceline.report.documents import explanation_document, results_document
from paceline.report.exports import EXPORTS, _case_lines, _measured_steps, _write_csv, export, markdown_report
from paceline.report.figures import error_bars, log_ticks, new_figure, plot_text
from paceline.report.figures.campaign import launch_points, phase_bars, waterfall
from paceline.report.html import render_page
from paceline.report.plots import _light_colours, _painted
from paceline.report.tables import gap_table, phase_table, straggler_table, what_if_table
from paceline.report.terminal.campaign import explanation_lines, show_results
from paceline.report.words import file_name, percent_half
from paceline.units import SECONDS, format_share
from tests.made import Made, write
from tests.unit.test_store import make_run

HOSTILE = ("<script>alert(1)</script>", "../../etc/passwd", "a|b`c`[x](javascript:alert(1))", '"><img src=x onerror=y>')
GONE = Failure(phase="launch", reason="crash", message="gone")
CASES = [
    Made(ranks=1),
    Made(ranks=2, aggregate=0.03),
    Made(ranks=2, aggregate=0.06, strategy={"name": "s", "overlap": False}),
]


@pytest.fixture
def explained(tmp_path):
    store = write(tmp_path / "results", CASES, title="Three cases")
    return store, explain_campaign(store, "made-1")


def test_the_page_is_whole_small_and_alone(explained):
    _, explanation = explained
    page = render_page(explanation)
    assert len(page.encode()) < 3_000_000
    assert page.startswith("<!doctype html>")
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(src|href)=\"(?!#)", outside)
    for sentence in explanation.summary:
        assert html.escape(sentence) in page


def test_tokens_and_use_of_the_peak_are_columns_where_they_are_known(tmp_path, capsys):
    text = Made(ranks=2, network="gpt2", batch=8, forward=0.3, backward=0.6, catalog_cluster="dgx-a100")
    store = write(tmp_path / "results", [text, Made(ranks=1)])
    show_results(store, "made-1")
    shown = capsys.readouterr().out
    found, plain = sorted(results_document(store, "made-1")["cases"], key=lambda one: one["network"])
    rate = found["samples_per_s"]["value"]
    share = 6 * catalog.network("gpt2").macs * rate / (2 * 19.5e12)  # PyTorch multiplies matrices in float32
    assert found["tokens_per_s"] == pytest.approx(1024 * rate)
    assert found["mfu"] == pytest.approx(share)
    assert 0 < share < 1
    assert "tokens/s" in shown
    assert f"{1024 * rate:,.0f}" in shown
    assert f"{100 * share:.1f} %" in shown
    assert "MFU above 100 %" not in shown
    assert plain["mfu"] is None
    assert plain["images_per_s"] == plain["samples_per_s"]["value"]


def test_more_than_the_peak_is_explained_and_unknown_peaks_are_left_out(tmp_path, capsys):
    fast = Made(ranks=2, network="gpt2", batch=8, forward=0.003, backward=0.006, catalog_cluster="dgx-a100")
    show_results(write(tmp_path / "fast", [fast]), "made-1")
    shown = capsys.readouterr().out
    assert "% !" in shown
    assert "MFU above 100 %" in shown
    show_results(write(tmp_path / "unknown", CASES), "made-1")
    shown = capsys.readouterr().out
    assert "MFU" not in shown
    assert "tokens/s" not in shown


def test_compare_says_tokens_and_use_of_the_peak_of_both_sides(tmp_path):
    made = Made(ranks=2, network="gpt2", batch=8, forward=0.3, backward=0.6, catalog_cluster="dgx-a100")
    store = write(tmp_path / "results", [made, replace(made, ranks=4), replace(made, batch=4)])
    two, four = (usage_of_group(throughputs_where(store, f"ranks={ranks},batch=8")) for ranks in (2, 4))
    assert (two.unit, four.unit) == ("tokens", "tokens")
    assert four.per_s == pytest.approx(2 * two.per_s)
    assert four.mfu == pytest.approx(two.mfu)
    assert usage_of_group(throughputs_where(store, "study=made")) is None, "2 and 4 ranks have no common rate"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_text_everywhere(tmp_path, name):
    cases = [Made(ranks=ranks, shown_network=name, host=name, strategy={"name": name}) for ranks in (1, 2)]
    store = write(tmp_path / "results", cases, study=name, title=name)
    explanation = explain_campaign(store, "made-1")
    page = render_page(explanation)
    data = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL).group(1)
    assert "<" not in data
    assert name not in page.replace(data, "") or not set(name) & set('<>"')
    assert "<script>alert(1)</script>" not in page
    assert "<img" not in page
    for trace in json.loads(data)["scaling-plot"]["data"]:
        assert "<" not in trace.get("name", "")
    text = markdown_report(explanation)
    assert "<script>" not in text
    assert "](javascript" not in text
    for kind in EXPORTS:
        path = export(explanation, store, kind, tmp_path / "out" / kind)
        assert (tmp_path / "out") in path.parents
    written = {path.resolve() for path in tmp_path.rglob("*")}
    assert all(tmp_path.resolve() in path.parents for path in written)
    assert "/" not in file_name(name)
    assert not file_name(name).startswith(".")


def test_a_page_and_a_table_hold_no_characters_that_steer_a_terminal_or_turn_text_around(tmp_path):
    name = "a\x1b]0;b\x07\u202ec"
    store = write(tmp_path / "results", [Made(ranks=1, host=name), Made(ranks=2, strategy={"name": name})], title=name)
    explanation = explain_campaign(store, "made-1")
    page, table = render_page(explanation), markdown_report(explanation)
    data = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL).group(1)
    shown = page.split("</style>")[1].split("<script")[0]
    assert not {"\x1b", "\x07", "\u202e"} & set(shown + table + json.dumps(json.loads(data), ensure_ascii=False))
    assert r"a\x1b]0;b\x07\u202ec" in shown


def test_names_are_neither_colours_nor_blanks_of_a_template():
    names = ["@forward", "@nobody", "%{x}", "a@b", "5 %"]
    assert [plot_text(name) for name in names] == ["&#64;forward", "&#64;nobody", "&#37;{x}", "a@b", "5 %"]
    figure = launch_points([[1.0, 2.0], [2.0, 3.0]], ("@nobody", "@forward"))
    assert {trace["x"][0] for trace in _painted(figure["data"], _light_colours())} == {"&#64;nobody", "&#64;forward"}


def test_identifiers_of_cases_lead_out_of_no_folder_and_texts_are_no_formulas(tmp_path):
    store = write(tmp_path / "results", CASES[:2], study="=1+1")
    for folder in store.runs.iterdir():
        header = json.loads((folder / "run.json").read_text())
        header["case_id"] = f"../../../outside{header['ranks']}"
        (folder / "run.json").write_text(json.dumps(header))
        write_sums(folder)
    store = Store(store.root)
    for kind in ("kineto", "tensorboard", "csv"):
        path = export(explain_campaign(store, "made-1"), store, kind, tmp_path / "a" / "b" / kind)
    with path.open() as file:
        assert {row["study"] for row in csv.DictReader(file)} == {"'=1+1"}
    assert {path.name for path in (tmp_path / "a" / "b").iterdir()} == {"kineto", "tensorboard", "csv"}
    assert {path.name for path in tmp_path.iterdir()} == {"a", "results"}


def test_a_default_export_cannot_leave_its_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = write(tmp_path / "results", CASES[:1], study="../../etc/passwd")
    path = export(explain_campaign(store, "made-1"), store, "csv")
    assert path.resolve().parent == tmp_path.resolve()


def test_numbers_on_the_page_are_those_of_the_results(explained):
    _, explanation = explained
    page = render_page(explanation)
    for case in explanation.cases:
        rate = case.evidence.result.throughput.value
        row = re.search(rf'data-case="{case.evidence.run.case_id}".*?</tr>', page, re.DOTALL).group(0)
        assert f'data-value="{rate!r}"' in row


def test_every_network_has_a_panel_with_frameworks_side_by_side_ranked(tmp_path):
    cases = [
        Made(ranks=ranks, network=network, framework=name, forward=forward, launches=4)
        for network in ("lenet", "resnet20")
        for name, forward in (("jax/data_parallel", 0.08), ("pytorch/ddp", 0.04))
        for ranks in (1, 2)
    ]
    explanation = explain_campaign(write(tmp_path, cases), "made-1")
    page = render_page(explanation)
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.DOTALL).group(1))
    for name in ("panel-0", "panel-1"):
        bars = figures[name]["data"]
        assert [bar["name"] for bar in bars] == ["pytorch/ddp", "jax/data_parallel"] * 2
        assert [bar["x"][0] for bar in bars] == ["1 rank", "1 rank", "2 ranks", "2 ranks"]
        assert bars[0]["y"][0] > bars[1]["y"][0]
        assert bars[0]["text"] == ["best"]
        assert len({bar["marker"]["color"] for bar in bars}) == 2
    assert "panel-2" not in figures
    assert {len(figures[name]["data"]) for name in ("phases-plot-0", "phases-plot-1")} == {2}
    dashed = [trace for trace in figures["efficiency-plot"]["data"] if trace["line"].get("dash") == "dash"]
    assert dashed, "the prediction is in the plot of efficiency"
    verdict = page[page.index('id="summary"') : page.index('id="panels"')]
    assert "2 cores" in verdict
    assert "1 x 1, 2 x 1" in verdict
    assert page.count("<td>here</td>") == 1, "one row for the one host"


def test_hidden_communication_ends_with_the_backward_pass(tmp_path):
    made = Made(aggregate=0.03, exchanges=((0.05, 0.03), (0.07, 0.02), (0.11, 0.04)))
    breakdown = explain_campaign(write(tmp_path, [made]), "made-1").cases[0].breakdown
    (hidden,) = [bar for bar in phase_bars([breakdown])["data"] if bar["name"].startswith("hidden")]
    assert hidden["x"] == pytest.approx([50.0])
    assert hidden["base"][0] + hidden["x"][0] == pytest.approx(120.0, rel=0.01)


def test_a_traced_step_is_scaled_to_the_clean_one(tmp_path):
    made = Made(ranks=1, before_first_layer=0.03)
    evidence = explain_campaign(write(tmp_path, [made]), "made-1").cases[0].evidence
    spans, factor = scaled_step(evidence)
    assert factor == pytest.approx(0.12 / 0.15, rel=0.01)
    assert max(span.start_s + span.seconds for span in spans) == pytest.approx(0.12, rel=0.01)


@pytest.mark.parametrize(("low", "high"), [(130, 620), (1, 9000), (70, 75), (0.2, 0.9), (3e5, 4e7)])
def test_logarithmic_axes_have_a_few_round_ticks(low, high):
    ticks = log_ticks(low, high)
    assert 4 <= len(ticks["tickvals"]) <= 14
    assert len(set(ticks["ticktext"])) == len(ticks["tickvals"])
    assert all(low * 0.9 <= tick <= high * 1.1 for tick in ticks["tickvals"])


def test_an_end_of_an_interval_that_is_not_finite_is_not_drawn():
    bars = error_bars([3.0, 5.0], [(2.0, 3.5), (-math.inf, math.inf)], thickness=1)
    assert (bars["array"], bars["arrayminus"], bars["thickness"]) == ([0.5, 0.0], [1.0, 0.0], 1)


def test_bars_of_the_waterfall_have_the_sign_of_the_table(explained):
    (gap, *_) = explained[1].gaps
    (trace,) = waterfall(gap)["data"]
    table = {row[0].text: row[1].text for row in gap_table(gap).rows}
    drawn = dict(zip(trace["x"], trace["text"], strict=True))
    assert trace["x"][0] == "faster"
    assert {cause: float(drawn[cause]) for cause in table if cause in drawn} == {
        cause: float(text) for cause, text in table.items() if cause in drawn
    }
    assert trace["base"][-2] + trace["y"][-2] == pytest.approx(trace["y"][-1]), "the bars end at the slower step"


def test_the_document_is_json_without_infinities(explained):
    _, explanation = explained
    document = json.loads(json.dumps(explanation_document(explanation), allow_nan=False))
    assert len(document["cases"]) == 3
    assert document["gaps"][0]["bars"]


def test_words_hold_the_summary_and_the_gap(explained):
    _, explanation = explained
    text = "\n".join(explanation_lines(explanation))
    assert explanation.summary[0] in text
    assert "the measured gap" in text


def test_csv_parquet_and_load_runs_agree(explained, tmp_path):
    store, explanation = explained
    table = paceline.load_runs(store.root, study="made").arrow
    assert table.num_rows == 9
    assert len(paceline.load_runs(store.root)) == 9
    assert len(paceline.load_runs(store.root, campaign="other")) == 0
    assert table["samples_per_s"][0].as_py() == pytest.approx(32 / 0.12, rel=0.01)
    assert table["backward_s"][0].as_py() == pytest.approx(0.08, rel=0.01)
    read = pq.read_table(export(explanation, store, "parquet", tmp_path / "t.parquet"))
    assert read.column_names == table.column_names
    assert read["step_s"].to_pylist() == table["step_s"].to_pylist()
    with export(explanation, store, "csv", tmp_path / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["step_s"]) for row in rows] == table["step_s"].to_pylist()
    frame = table.to_pandas()
    assert list(frame["ranks"].unique()) == [1, 2]


def test_chrome_export_holds_measured_and_predicted_steps(explained, tmp_path):
    store, explanation = explained
    for kind in ("chrome", "chrome-predicted"):
        document = json.loads(export(explanation, store, kind, tmp_path / kind).read_text())
        events = [event for event in document["traceEvents"] if event["ph"] == "X"]
        assert len({event["pid"] for event in events}) == 5
        assert {"forward", "backward"} <= {event["cat"] for event in events}
    assert "aggregate" in {event["cat"] for event in events}


def test_mlperf_lines_parse(explained, tmp_path):
    store, explanation = explained
    lines = export(explanation, store, "mlperf", tmp_path / "log").read_text().splitlines()
    contents = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
    assert all(line.startswith(":::MLLOG {") for line in lines)
    assert sum(content["key"] == "run_start" for content in contents) == 9
    stats = [content["value"] for content in contents if content["key"] == "tracked_stats"]
    assert stats[0]["throughput"] == explanation.cases[0].evidence.launches.throughputs[0]


def test_every_share_stands_below_the_name_of_its_phase(explained):
    _, explanation = explained
    results = [case.evidence.result for case in explanation.good]
    table = phase_table(results)
    for result, row in zip(results, table.rows, strict=True):
        cells = dict(zip(table.columns, (cell.text for cell in row), strict=True))
        assert {name: cells[f">{name}"] for name in result.shares} == {
            name: format_share(share) for name, share in result.shares.items()
        }


def test_every_fact_of_a_slow_rank_stands_below_its_name():
    slow = Straggler(3, "node3", "backward", "transient", 1.5, 0.25, Interval(0.03, 0.02, 0.04), 7200.0)
    table = straggler_table([("case", slow)])
    cells = dict(zip(table.columns, (cell.text for cell in table.rows[0]), strict=True))
    assert cells == {
        "case": "case", ">rank": "3", "host": "node3", "phase": "backward", "kind": "transient", ">slower": "1.50 x",
        ">slowest in": format_share(0.25), ">cost a step": SECONDS.format(0.03),
        ">waiting a day": SECONDS.format(7200.0),
    }  # fmt: skip


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_text_of_a_table_is_a_formula(tmp_path, text):
    _write_csv(tmp_path / "table.csv", pa.table({"name": [text, "plain-1"]}))
    rows = (tmp_path / "table.csv").read_bytes().decode().split("\n")
    assert rows[1].startswith("\"'" + text[0])
    assert rows[2] == '"plain-1"'


@pytest.fixture
def drifted(tmp_path):
    """A case whose second launch does not count: the machine had another speed."""
    store = write(tmp_path / "results", [Made(ranks=1, launches=5, probes=(1.0, 1.5, 1.0, 1.0, 1.0))])
    return store, explain_campaign(store, "made-1")


def test_mlperf_lines_of_a_launch_that_does_not_count_have_no_figures(drifted, tmp_path):
    store, explanation = drifted
    lines = export(explanation, store, "mlperf", tmp_path / "log").read_text().splitlines()
    contents = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
    assert sum(content["key"] == "run_start" for content in contents) == 5
    stats = {content["metadata"]["step"]: content["value"] for content in contents if content["key"] == "tracked_stats"}
    rates, steps = ({launch: 32 / (0.12 * (1 + 0.001 * launch)) for launch in (0, 2, 3, 4)} for _ in "ab")
    assert {launch: value["throughput"] for launch, value in stats.items()} == pytest.approx(rates)
    assert {launch: 32 / value["step_s"] for launch, value in stats.items()} == pytest.approx(steps)


def test_mlperf_lines_say_which_launch_failed_and_the_samples_of_all_ranks():
    failed = make_run("demo-1-abc-001", launch=1, outcome="failed", failure=GONE)
    launches = SimpleNamespace(throughputs=(), steps=(), counted=(), runs=(make_run(), failed))
    lines = _case_lines(SimpleNamespace(evidence=SimpleNamespace(launches=launches)))
    contents = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
    found = {
        key: [content["value"] or content["metadata"].get("status") for content in contents if content["key"] == key]
        for key in ("global_batch_size", "run_stop")
    }
    assert found == {"global_batch_size": [16, 16], "run_stop": ["success", "aborted"]}
    begins, ends = ([one["time_ms"] for one in contents if one["key"] == key] for key in ("run_start", "run_stop"))
    runs = launches.runs
    assert [end - begin for begin, end in zip(begins, ends, strict=True)] == [round(1e3 * run.seconds) for run in runs]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_each_launch_at_its_own_number(drifted, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    store, explanation = drifted
    (place,) = export(explanation, store, "tensorboard", tmp_path / "board").iterdir()
    reader = EventAccumulator(str(place))
    reader.Reload()
    assert [event.step for event in reader.Scalars("samples_per_s")] == [0, 2, 3, 4]
    assert [event.step for event in reader.Scalars("step_s")] == [0, 2, 3, 4]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_the_scalars(explained, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    store, explanation = explained
    folder = export(explanation, store, "tensorboard", tmp_path / "board")
    place = next(folder.glob("lenet-pytorch-ddp-batch*1-rank*"))
    reader = EventAccumulator(str(place))
    reader.Reload()
    values = [event.value for event in reader.Scalars("samples_per_s")]
    assert values == pytest.approx(list(explanation.cases[0].evidence.launches.throughputs))
    assert reader.Scalars("phase/backward_s")[0].value == pytest.approx(0.08, rel=0.01)


def test_markdown_is_a_table(explained):
    _, explanation = explained
    rows = [line for line in markdown_report(explanation).splitlines() if line.startswith("| lenet")]
    assert len(rows) == 3
    assert all(row.count(" | ") == 6 for row in rows)


@pytest.mark.parametrize(
    ("half", "words"),
    [(0.034, "± 3.4 %"), (9.99, "± 999.0 %"), (10.0, "more than ± 1000 %"), (float("inf"), "one launch")],
)
def test_half_of_an_interval(half: float, words: str) -> None:
    assert percent_half(Interval(1.0, 1 - half, 1 + half)) == words
    assert percent_half(None) == "one launch"


@pytest.mark.parametrize(("saved", "shown"), [(-1e-9, "+0.00"), (-1e-3, "-1.00"), (2e-3, "+2.00")])
def test_a_saving_of_nothing_is_not_negative(saved: float, shown: str) -> None:
    assert [cell.text for cell in what_if_table("case", [WhatIf("change", 0.1, saved)]).rows[0]][-1] == shown


def test_the_title_of_an_axis_stands_off_its_numbers() -> None:
    layout = new_figure([], x="ranks", y="efficiency")["layout"]
    assert all(layout[axis]["title"]["standoff"] > layout[axis]["ticklabelstandoff"] for axis in ("xaxis", "yaxis"))


def test_markdown_has_the_first_findings_only(explained):
    _, explanation = explained
    gain = Interval(0.1, 0.05, 0.15)
    many = [Finding("a", f"finding {n}", "id", "case", (), gain, Change("setting", f"change {n}")) for n in range(7)]
    text = markdown_report(replace(explanation, findings=tuple(many)))
    assert [f"finding {n} (case)" in text.replace("\\", "") for n in range(7)] == [True] * 5 + [False] * 2


def test_measured_steps_begin_as_in_the_clean_pass():
    """Passes of parts of a step have steps of the same numbers, and begin later."""
    rows = [
        {"rank": 0, "step": 3, "start_s": start, "pass_name": name}
        for name, start in (("clean", 5.0), ("forward", 9.0))
    ]
    store = SimpleNamespace(load=lambda run: SimpleNamespace(steps=SimpleNamespace(to_pylist=lambda: rows)))
    spans = [Span(0, step, "forward", "conv", 0.25, 0.1, None, "t") for step in (3, 4)]
    (span,) = _measured_steps(store)(SimpleNamespace(run=SimpleNamespace(id="r"), spans=spans))
    assert (span.step, span.start_s) == (3, 5.25)
