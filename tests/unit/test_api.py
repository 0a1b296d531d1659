"""The front door: functions with executed examples, results as tables, HTML and data frames, and light to import."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import paceline
from paceline import api, catalog
from paceline.errors import InputError, UnknownName, Unsupported
from paceline.measurements.profile import Profile, ProfiledLayer
from paceline.measurements.run import PHASES, Span
from paceline.measurements.trace.chakra import to_chakra
from paceline.measurements.trace.chrome import to_chrome
from paceline.measurements.trace.formats import busy_seconds
from paceline.measurements.trace.horovod import to_horovod
from paceline.measurements.trace.kineto import to_kineto
from paceline.report.frames import _num_devices
from paceline.spec.strategy import Strategy
from tests.made import Made, write

ROOT = Path(__file__).parents[2]


def test_every_example_gives_what_it_shows() -> None:
    outcome = doctest.testmod(api)
    assert outcome.failed == 0
    assert outcome.attempted >= 15


def test_importing_the_package_loads_nothing_else() -> None:
    code = (
        "import sys, paceline\n"
        "paceline.__version__\n"
        "print(sorted(name for name in sys.modules if name.startswith('paceline.') or name in ('numpy', 'pydantic')))\n"
        "print(set(paceline.__all__) <= set(dir(paceline)))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["[]", "True"]


def test_explain_is_the_function_whatever_was_imported_before() -> None:
    code = (
        "import paceline, sys, types\n"
        "from paceline.explain.explanation import Explanation\n"
        "import paceline.explain\n"
        "print(isinstance(paceline.explain, types.FunctionType), 'paceline.explain' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["True", "True"]


def test_a_name_that_is_not_offered_is_missing() -> None:
    with pytest.raises(AttributeError, match="no attribute 'predicted'"):
        paceline.predicted  # noqa: B018


def test_users_see_real_types(tmp_path: Path) -> None:
    script = tmp_path / "user.py"
    script.write_text(
        "import paceline\n"
        "answer = paceline.predict('resnet50', cluster='dgx-1', batch=64)\n"
        "rate: float = answer.curve.predictions[0].samples_per_s.value\n"
        "spans = paceline.load_trace('t.json').breakdown[0]['forward']\n"
        "reveal_type(spans)\n"
        "paceline.predict(cluster=3)\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), str(script)]
    printed = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=250).stdout
    lines = [line for line in printed.splitlines() if "user.py:" in line]
    assert len(lines) == 2, printed
    assert 'Revealed type is "builtins.float"' in lines[0] or 'Revealed type is "float"' in lines[0]
    assert 'incompatible type "int"' in lines[1]


def test_predictions_as_records_text_and_html() -> None:
    answer = paceline.predict("lenet", cluster="dgx-1", batch=8, devices=2, framework=["pytorch", "mxnet"])
    frame = answer.to_pandas()
    assert list(frame.devices) == [2, 2]
    terms = [f"{name}_s" for name in ("io", "h2d", "forward", "backward", "aggregate", "update", "fixed")]
    assert (frame[[*terms, "slowdown_s", "waiting_s"]].sum(axis=1) - frame.step_s).abs().max() < 1e-12
    assert (frame.samples_per_s_low_90 <= frame.samples_per_s).all()
    assert (frame.step_s_low_50 <= frame.step_s_high_50).all()
    assert "pytorch/ddp" in str(answer)
    assert "mxnet/" in repr(answer)
    with pytest.raises(ValueError, match="too many values"):
        answer.curve  # noqa: B018


def test_changes_profile_and_strategy_reach_the_model(tmp_path: Path) -> None:
    slow = paceline.predict("resnet50", cluster="v100-10gbe-8x4", batch=16, devices=8)
    fast = paceline.predict(
        "resnet50", cluster="v100-10gbe-8x4", batch=16, devices=8, changes={"link.bandwidth": "400Gb/s"}
    )
    plain = paceline.predict(
        "resnet50", cluster="v100-10gbe-8x4", batch=16, devices=8, strategy=Strategy(overlap=False)
    )
    rates = [answer.curve.predictions[0].samples_per_s.value for answer in (plain, slow, fast)]
    assert rates == sorted(rates)
    assert rates[0] < rates[2]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"batch": 8}, "one of network and profile"),
        ({"network": "lenet", "batch": 0}, "no batch"),
        ({"network": "lenet", "batch": 8, "devices": [0]}, "at least 1"),
        ({"network": "lenet", "batch": 8, "devices": []}, "at least 1"),
        ({"network": "lennet", "batch": 8}, "no network is called"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, object], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        paceline.predict(cluster="dgx-1", **given)  # type: ignore[arg-type]


def test_plan_has_a_row_for_each_candidate() -> None:
    answer = paceline.plan("resnet50", cluster="mixed-lab", global_batch=256)
    frame = answer.to_pandas()
    assert len(frame) == len(answer.plan.ranked)
    assert frame.predicted_throughput.min() > 0
    assert str(answer).splitlines()[-1].startswith("best: ")


def test_stored_runs_and_their_explanation(tmp_path: Path) -> None:
    store = write(tmp_path, [Made(ranks=1), Made(ranks=2, aggregate=0.09)])
    runs = paceline.load_runs(store.root)
    assert len(runs) == len(runs.to_pandas()) == len(runs.records()) == 6
    assert str(runs).startswith("6 launches\nstudy")
    answer = paceline.explain("made", store=store.root)
    assert [row["cause"] for row in answer.records()] == [one.cause for one in answer.explanation.findings] != []
    assert answer.explanation.summary[0] in str(answer)
    assert list(answer.to_pandas().gain) == [one.gain.value for one in answer.explanation.findings]


def test_long_tables_say_what_they_leave_out(tmp_path: Path) -> None:
    store = write(tmp_path, [Made(ranks=1, launches=25)])
    assert str(paceline.load_runs(store.root)).splitlines()[-1] == "... 5 more rows"
    whole = write(tmp_path / "whole", [Made(ranks=1, launches=20)])
    assert "more rows" not in str(paceline.load_runs(whole.root))


def test_html_is_escaped(tmp_path: Path) -> None:
    store = write(tmp_path, [Made(ranks=1, shown_network="<b>", launches=1)])
    shown = paceline.load_runs(store.root)._repr_html_()
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for answer in (paceline.predict("lenet", cluster="dgx-1", batch=8), paceline.load_runs(tmp_path)):
        with pytest.raises(Unsupported, match=r"paceline\[pandas\]"):
            answer.to_pandas()


SPANS = (
    Span(0, 0, "forward", "conv1", 0.0, 0.25, 12),
    Span(0, 0, "forward", "inner", 0.125, 0.0625),
    Span(0, 1, "aggregate", "grad ALLREDUCE", 0.25, 0.5, 100),
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chrome", json.dumps(to_chrome(SPANS)).encode()),
        ("horovod", json.dumps(to_horovod(SPANS)).encode()),
        ("kineto", json.dumps(to_kineto(SPANS, rank=0)).encode()),
        ("chakra", to_chakra(SPANS, rank=0)),
    ],
)
def test_a_trace_is_recognised_by_its_content(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    spans = paceline.load_trace(path)
    assert {span.source for span in spans} == {"paceline" if name == "chrome" else name}
    assert spans.spans == paceline.load_trace(path, format=name).spans
    assert spans.breakdown[0]["aggregate"] == 0.5
    assert spans.breakdown[0].get("forward", 0.25) == 0.25, "the inner span counts once"
    assert list(spans.to_pandas().columns) == list(Span.__dataclass_fields__)


def test_traces_of_several_ranks_become_one_table(tmp_path: Path) -> None:
    paths = [tmp_path / f"rank{rank}.et" for rank in (0, 1)]
    for rank, path in enumerate(paths):
        path.write_bytes(to_chakra((Span(rank, 0, "forward", "conv1", 0.0, 0.25),), rank=rank))
    shown = str(paceline.load_trace(*paths))
    assert shown.splitlines()[-2:] == ["   0   250 ms", "   1   250 ms"]


def test_a_wrong_trace_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        paceline.load_trace(tmp_path / "none")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InputError, match="not a Chakra"):
        paceline.load_trace(tmp_path / "text")
    with pytest.raises(UnknownName, match="trace format"):
        paceline.load_trace(tmp_path / "text", format="nsys")


def test_busy_seconds_are_the_union_of_spans_in_the_order_of_phases() -> None:
    spans = [Span(1, 0, "update", "a", 1.0, 1.0), Span(1, 0, "io", "b", 0.0, 2.0), Span(1, 0, "io", "c", 1.0, 2.0)]
    assert busy_seconds([*spans, Span(1, 0, "sleep", "d", 5.0, 1.0)]) == {1: {"io": 3.0, "update": 1.0, "sleep": 1.0}}
    assert list(busy_seconds(Span(0, 0, phase, "x", 0.0, 1.0) for phase in reversed(PHASES))[0]) == list(PHASES)


def test_a_missing_extra_is_named(tmp_path):
    program = "import paceline\ntry:\n    paceline.%s\nexcept paceline.errors.Unsupported as error:\n    print(error)"
    for use in ("join", "capture(None, None)"):
        blocked = f"import sys; sys.modules['torch'] = None\n{program % use}"
        done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=True)
        assert "torch is not installed" in done.stdout
        assert "paceline[torch]" in done.stdout


def test_a_batch_that_is_given_takes_the_place_of_the_profile_s() -> None:
    layers = (ProfiledLayer(name="a", forward=1e-3, backward=2e-3, gradients=(4e6,)),)
    profile = Profile(network="mine", batch=8, layers=layers)
    batches = [
        paceline.predict(profile=profile, cluster="dgx-1", batch=batch, devices=1).curve.predictions[0].batch_per_device
        for batch in (None, 16)
    ]
    assert batches == [8, 16]


def test_a_cluster_of_one_host_is_repeated_for_the_largest_number_of_devices() -> None:
    answer = paceline.predict("resnet50", cluster="dgx-1", batch=64, devices=[4, 32])
    assert [one.devices for one in answer.curve.predictions] == [4, 32]


def test_points_are_not_extrapolated_to_no_device(tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text("devices,samples_per_s\n1,100\n2,190\n")
    for at in (0, [4, 0], []):
        with pytest.raises(InputError, match=r"expected numbers of at least 1"):
            paceline.extrapolate(tmp_path / "points.csv", at=at)


@pytest.mark.parametrize(("ranks", "sharded", "refused"), [(1, True, False), (2, True, True), (2, False, False)])
def test_a_profile_is_of_the_fewest_ranks_and_of_no_shards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ranks: int, sharded: bool, refused: bool
) -> None:
    def launches(ranks: int, *, counted: bool = True) -> SimpleNamespace:
        facts = {"sharded": sharded}
        return SimpleNamespace(counted=counted, first=SimpleNamespace(ranks=ranks, facts=facts))

    stored = [launches(8), launches(ranks), launches(1, counted=False)]
    monkeypatch.setattr("paceline.measurements.results.find_campaign", lambda place, name: "c")
    monkeypatch.setattr("paceline.measurements.results.load_launches", lambda place, campaign: stored)
    monkeypatch.setattr("paceline.model.profiles.profile_of", lambda place, fewest: fewest.first.ranks)
    if refused:
        with pytest.raises(InputError, match="its ranks had shards"):
            api.profile_of_run("c", tmp_path)
    else:
        assert api.profile_of_run("c", tmp_path) == ranks


def test_devices_without_samples_are_no_devices_of_a_plan() -> None:
    assert _num_devices(((4, 0, 2), (0,), (1,))) == 3


def test_only_hosts_of_this_processor_get_the_cores_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 5, 7})
    assert {one.cores for one in api._cluster("local").hosts} == {3}
    assert {one.cores for one in api._cluster("dgx-1").hosts} == {catalog.cluster("dgx-1").hosts[0].cores}
