"""Tables on narrow terminals: nothing is wider than the terminal, and no word is broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.bench.campaign import LaunchFinished
from paceline.cli import main
from paceline.errors import EnvironmentFailed
from paceline.measurements.run import Failure
from paceline.report import plots
from paceline.report.tables import make_table
from paceline.report.terminal import print_table
from paceline.report.terminal.progress import Display
from paceline.spec.study import Protocol
from tests.conftest import Command
from tests.made import Made, write
from tests.unit.test_store import make_run

ROWS = [["resnet20 tensorflow/parameter_server, batch 16 x 2 ranks", "1,234.5", "± 12.3 %", "a few words of evidence"]]
COLUMNS = ["case", ">samples/s", ">95 %", "evidence"]


@pytest.mark.parametrize("width", [40, 60, 80, 140])
def test_no_word_is_broken_and_no_line_too_wide(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(make_table(COLUMNS, ROWS))
    text = capsys.readouterr().out
    assert all(len(line) <= width for line in text.splitlines())
    for word in (word for cell in (*ROWS[0], *COLUMNS) for word in cell.lstrip(">").split()):
        assert word in text.split(), word


def test_a_table_that_fits_stays_in_one_piece(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_table(make_table(COLUMNS, ROWS))
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_verbs_fit_eighty_columns(paceline: Command) -> None:
    write(paceline.store, [Made(ranks=1), Made(ranks=2, aggregate=0.03)])
    paceline.env["COLUMNS"] = "80"
    predict = ("predict", "--network", "resnet50", "--cluster", "dgx-1", "--batch", "64")
    for verb in (("show",), ("networks",), ("catalog", "devices"), ("frameworks",), predict):
        table = [line for line in paceline(*verb).splitlines() if "  " in line.strip()]
        assert all(len(line) <= 80 for line in table), verb


@pytest.mark.parametrize("streams", [">&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_closed_lead_nowhere(paceline: Command, tmp_path: Path, streams: str) -> None:
    write(paceline.store, [Made(launches=1)])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    words = ["bash", "-c", f'"$0" store check {streams}', *paceline.prefix]
    done = subprocess.run(words, env=paceline.env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_characters_that_a_stream_lacks_are_escapes(
    paceline: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["paceline", "show", "made", "--store", str(paceline.store)])
    write(paceline.store, [Made()])
    with (tmp_path / "out").open("w", encoding="ascii") as file:
        monkeypatch.setattr(sys, "stdout", file)
        main()
    assert "\\xb1" in (tmp_path / "out").read_text()


def test_what_the_operating_system_refuses_is_one_error(paceline: Command, tmp_path: Path) -> None:
    said = paceline("show", "--store", "x" * 300, code=2)
    assert said == f"error: {'x' * 200}...: File name too long\n"
    assert "--plot plot.svg" in paceline("show", "--plot=", code=2)


def test_a_dry_run_says_how_long_the_study_takes(paceline: Command, tmp_path: Path) -> None:
    study = tmp_path / "s.toml"
    study.write_text(
        'name = "s"\nnetworks = ["lenet"]\nframeworks = ["pytorch"]\ndevices = [1, 2]\nbatch = [8]\n'
        '[protocol]\nlaunches = 3\nmax_launches = 6\nlaunch_budget = "10 s"\n'
    )
    unknown = paceline.json("run", str(study), "--dry-run")["estimate"]
    assert unknown["launches"] == [6, 12]
    assert unknown["least_s"] == 6 * (20 + 10)
    write(paceline.store, [Made(ranks=1)])
    known = paceline.json("run", str(study), "--dry-run")["estimate"]
    assert (known["least_s"], known["most_s"]) == (6.0, 12.0), "a stored launch of the framework took one second"
    assert "Takes about 6.00 s (6 launches) to 12.0 s" in paceline("run", str(study), "--dry-run")


def test_clean_shows_and_clears_caches_but_no_store(paceline: Command, tmp_path: Path) -> None:
    home = tmp_path / "home"
    paceline.env["PACELINE_HOME"] = str(home)
    for name in ("environments", "data"):
        (home / name).mkdir(parents=True)
        (home / name / "file").write_bytes(b"x" * 1000)
    store = write(paceline.store, [Made()])
    shown = {entry["name"]: entry["size_bytes"] for entry in paceline.json("clean")["caches"]}
    assert (shown["environments"], shown["data"], shown["cache"]) == (1000, 1000, 0)
    assert "stopped" in paceline("clean", "data", code=130)
    assert (home / "data").is_dir()
    assert paceline.json("clean", "data", "--yes")["removed"] == [str(home / "data")]
    assert (home / "environments").is_dir()
    paceline("clean", "--all", "--yes")
    assert not (home / "environments").exists()
    assert len(store.read_all()) == 3
    assert "no cache is called" in paceline("clean", "runs", code=2)
    assert "not a store" in paceline("clean", "--store", str(home), "--yes", code=2)
    paceline("clean", "--store", str(paceline.store), "--yes")
    assert not paceline.store.exists()


PLOTS = (
    ("show", "made"),
    ("compare", "ranks=2", "ranks=1"),
    ("explain", "made"),
    ("plan", "--network", "resnet50", "--cluster", "mixed-lab", "--global-batch", "512"),
)


@pytest.mark.parametrize("verb", PLOTS, ids=lambda verb: verb[0])
def test_verbs_draw_pages(paceline: Command, tmp_path: Path, verb: tuple[str, ...]) -> None:
    write(paceline.store, [Made(ranks=1), Made(ranks=2, aggregate=0.03)])
    paceline(*verb, "--plot", str(tmp_path / "plot.html"))
    assert "Plotly" in (tmp_path / "plot.html").read_text()
    assert "one of .html" in paceline(*verb, "--plot", str(tmp_path / "plot.bmp"), code=2)


@pytest.mark.parametrize(
    "verb", [*(pytest.param(verb, marks=pytest.mark.full) for verb in PLOTS[:-1]), PLOTS[-1]], ids=lambda verb: verb[0]
)
def test_verbs_draw_pictures(paceline: Command, tmp_path: Path, verb: tuple[str, ...]) -> None:
    write(paceline.store, [Made(ranks=1), Made(ranks=2, aggregate=0.03)])
    paceline(*verb, "--plot", str(tmp_path / "plot.svg"))
    assert "<svg" in (tmp_path / "plot.svg").read_text()


STUCK_ONCE = """#!/bin/sh
echo started >> started
[ "$(wc -l < started)" = 1 ] && exec sleep 60
echo '{"code": 0}'
read request
echo '{"code": 0, "result": "<svg/>"}'
"""


def test_a_kaleido_that_does_not_answer_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "kaleido"
    program.parent.mkdir()
    program.write_text(STUCK_ONCE, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(plots, "_kaleido", lambda: tmp_path)
    monkeypatch.setattr(plots, "TIMEOUT_S", 1)
    figure = {"data": [], "layout": {"width": 100, "height": 100}}
    assert plots._drawn("svg", figure) == b"<svg/>"
    assert (tmp_path / "started").read_text() == "started\n" * 2
    monkeypatch.setattr(plots, "ATTEMPTS", 1)
    (tmp_path / "started").unlink()
    with pytest.raises(EnvironmentFailed, match="no answer in 1 attempts of 1 s"):
        plots._drawn("svg", figure)


@pytest.mark.parametrize(
    ("words", "name"),
    [("predict --network resnet5", "resnet50"), ("plan --cluster dgx", "dgx-1"), ("show ma", "made"),
     ("simulate --framework jax", "jax/data_parallel")],
)  # fmt: skip
def test_the_shell_completes_names(paceline: Command, words: str, name: str) -> None:
    write(paceline.store, [Made()])
    count = str(len(words.split()))
    paceline.env |= {"_PACELINE_COMPLETE": "bash_complete", "COMP_WORDS": f"paceline {words}", "COMP_CWORD": count}
    assert f"plain,{name}" in paceline().splitlines()


def test_failures_and_names_give_the_terminal_no_commands(capsys: pytest.CaptureFixture[str]) -> None:
    failure = Failure(phase="measure", reason="crash", message="ValueError: \x1b]0;owned\x07 [red]")
    run = make_run("demo-1-abc-000", network="\x9b31mlenet", outcome="failed", failure=failure)
    Display().follow([LaunchFinished(run)], Protocol(), ())
    said = " ".join(capsys.readouterr().err.split())  # wrapped as wide as the terminal
    assert r"ValueError: \x1b]0;owned\x07 [red]" in said
    assert r"\x9b31mlenet" in said
    assert said.isprintable()
