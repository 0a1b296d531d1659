"""What a stranger types first: wrong words, pipes that close early, the shell's completion."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.cli import main
from paceline.errors import InputError
from paceline.explain import compared
from tests.made import Made, write

PACELINE = (sys.executable, "-m", "paceline")
Call = Callable[..., str]


@pytest.fixture
def paceline(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """A command in this process; its standard output, and after it standard error."""

    def call(*words: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["paceline", *words])
        try:
            main()
            left = 0
        except SystemExit as end:
            left = int(end.code or 0)
        out, err = capfd.readouterr()
        assert left == code, err
        return out + err

    kept = signal.getsignal(signal.SIGTERM)
    yield call
    signal.signal(signal.SIGTERM, kept)


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (("predict", "resnet50"), "got unexpected extra argument (resnet50)", "`paceline predict -h` shows"),
        (("plan", "--network", "resnet50"), "missing option '--cluster'", "`paceline plan -h` shows"),
        (("--verbose",), "no such option '--verbose'", "`paceline -h` shows"),
        (("store", "chek"), "no command is called 'chek'", "did you mean 'check'?"),
        (("cluster", "stop"), "no command is called 'stop'", "`paceline cluster -h` lists the commands"),
        (("doctor", "--link", "10gbe"), "this machine has no link to itself", "--on slurm, ssh, mpi or virtual"),
        (("doctor", "--cluster", "dgx-1"), "this machine has no link to itself", "--on slurm, ssh, mpi or virtual"),
        (("store", "check", "--store", "/nope"), "/nope: there is no such directory", "`paceline run` wrote to"),
        (("catalog", "gpu"), "no entry of the catalog is called 'gpu'", "`paceline catalog` lists all"),
        (("networks", "resnet"), "no network is called 'resnet'", "these begin with it: resnet101, resnet152"),
        (
            ("predict", "--network", "lenet", "--cluster", "dgx-1", "--framework", "fsdp"),
            "no framework is called 'fsdp'",
            "a mode is named with its framework: pytorch/fsdp2",
        ),
        (
            ("predict", "--network", "lenet", "--cluster", "dgx-1", "--framework", "torch"),
            "no framework is called 'torch'",
            "did you mean 'pytorch'?",
        ),
        (
            ("predict", "--network", "lenet", "--cluster", "dgx-1", "--set", "bandwidth=100Gb/s"),
            "no part of a question is called 'bandwidth'",
            "say link.bandwidth or inside.bandwidth",
        ),
        (
            ("predict", "--network", "lenet", "--cluster", "dgx-1", "--precision", "fp8"),
            "no precision is called 'fp8'",
            "known: float64, float32, tf32, float16, bfloat16, amp, and fp32, fp16, bf16, mixed",
        ),
        (("predict", "--cluster", "dgx-1"), "give one of --network, --profile", "`paceline networks` lists"),
        (
            ("predict", "--network", "lenet", "--cluster", "4x t4 over efa x 2"),
            "no link is called 'efa'",
            "EFA has the rate of its instance",
        ),
        (
            ("predict", "--network", "lenet", "--cluster", "dgx-a10"),
            "no cluster or device is called 'dgx-a10'",
            "did you mean 'dgx-a100'?",
        ),
    ],
)
def test_every_mistake_has_one_form(paceline: Call, words: tuple[str, ...], error: str, hint: str) -> None:
    first, second = paceline(*words, code=2).splitlines()
    assert first.startswith(f"error: {error}")
    assert second.startswith("  hint: ")
    assert hint in second


def test_a_plan_that_cannot_be_written_names_its_file(paceline: Call, tmp_path: Path) -> None:
    asked = ("plan", "--network", "lenet", "--cluster", "mixed-lab", "--output")
    missing = tmp_path / "missing" / "plan.toml"
    assert f"error: {missing}: No such file or directory\n" in paceline(*asked, str(missing), code=2)
    assert f"error: {tmp_path}: Is a directory\n" in paceline(*asked, str(tmp_path), code=2)


def test_a_reader_that_closes_its_pipe_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*PACELINE, "catalog", "links"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_line_of_a_table_ends_with_spaces(paceline: Call) -> None:
    lines = paceline("catalog", "links").splitlines()
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("catalog v1", "v100-sxm2"),
        ("evaluate f", "five-frameworks-cifar"),
        ("export --to ch", "chrome"),
        ("doctor --on sl", "slurm-batch"),
        ("cluster up dg", "dgx-1"),
        ("frameworks install py", "pytorch/ddp"),
        ("foo b", ""),
        ("catalog xm2", "file,xm2"),  # no name begins so: it may be a file
    ],
)
def test_the_shell_completes_names_and_sees_no_error(
    paceline: Call, monkeypatch: pytest.MonkeyPatch, words: str, offered: str
) -> None:
    typed = f"paceline {words}"
    shell = {"_PACELINE_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    assert offered in [line.removeprefix("plain,") for line in paceline().splitlines()] or not offered


def test_help_of_commands_below_a_command_is_whole(paceline: Call) -> None:
    listed = " ".join(paceline("cluster", "-h").partition("Commands:")[2].split())
    assert "measure the links between them; print or write a cluster file." in listed
    assert "exit code 1 if there is one." in " ".join(paceline("store", "-h").split())


def test_a_defect_is_an_internal_error_with_a_code_of_its_own(paceline: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("nobody thought of this\x1b[2J")

    monkeypatch.setattr("paceline.cli.query.ask", broken)
    said = paceline("query", "SELECT 1", code=70)
    assert said.startswith("internal error: ValueError: nobody thought of this\\x1b[2J\n")
    assert "hint: this is a bug in Paceline; PACELINE_DEBUG=1 shows the traceback" in said
    monkeypatch.setenv("PACELINE_DEBUG", "1")
    with pytest.raises(ValueError, match="nobody thought"):
        paceline("query", "SELECT 1")


@pytest.mark.parametrize(("name", "code"), [("some.file", 2), (None, 1)])
def test_what_the_system_refuses_is_an_input_error_only_if_it_names_a_file(
    paceline: Call, monkeypatch: pytest.MonkeyPatch, name: str | None, code: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(28, "No space left on device", name)

    monkeypatch.setattr("paceline.cli.query.ask", refused)
    place = f"{name}: " if name else ""
    assert paceline("query", "SELECT 1", code=code) == f"error: {place}No space left on device\n"


def test_a_comparison_is_drawn_and_computed_as_asked(
    paceline: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = str(tmp_path / "results")
    write(Path(store), [Made(ranks=1, launches=5), Made(ranks=2, aggregate=0.03, launches=5)])
    drawn = []
    monkeypatch.setattr("paceline.cli.compare.write_launches", lambda *given: drawn.append(given))
    asked = ("compare", "ranks=2", "ranks=1", "--store", store)
    paceline(*asked, "--plot", str(tmp_path / "plot.html"))
    ((_, (sample, base), titles, _),) = drawn
    assert titles[0].startswith("ranks=2")
    rows = json.loads(paceline("query", "SELECT ranks, samples_per_s FROM launches", "--store", store, "--json"))[
        "rows"
    ]
    assert sorted(sample) == sorted(row["samples_per_s"] for row in rows if row["ranks"] == 2)
    assert sorted(base) == sorted(row["samples_per_s"] for row in rows if row["ranks"] == 1)
    asked_for = []
    kept = compared.compare_sides
    monkeypatch.setattr(
        "paceline.cli.compare.compare_sides",
        lambda one, other, share: asked_for.append(share) or kept(one, other, share),
    )
    paceline(*asked, "--confidence", "0.8")
    paceline(*asked)
    assert asked_for == [0.8, 0.95]


def test_options_reach_what_they_name(paceline: Call) -> None:
    where = ("--network", "resnet50", "--cluster", "v100-10gbe-8x4", "--batch", "64")
    predicted = json.loads(paceline("predict", *where, "--at", "2,16", "--json"))["predictions"]
    counts = [one["devices"] for one in predicted]
    assert counts == [2, 16], "--at is another name of --devices"
    trouble = json.loads(
        paceline("simulate", *where, "--devices", "8", "--steps", "50", "--straggle", "0.1", "--straggle-factor", "7",
                 "--seed", "3", "--jobs", "2", "--mtbf", "100 h", "--restart", "2 min", "--json")
    )["trouble"]  # fmt: skip
    assert (trouble["straggle_factor"], trouble["seed"], trouble["jobs"], trouble["restart"]) == (7.0, 3, 2, 120.0)
    assert trouble["mtbf"] == 360_000.0
    few, many = (
        json.loads(paceline("whatif", *where, "--buckets", "--devices", devices, "--json")) for devices in ("2", "2,32")
    )
    assert few != many, "the buckets are those of the largest number"


def test_warnings_about_the_store_go_to_standard_error(tmp_path: Path) -> None:
    store = write(tmp_path / "results", [Made(ranks=1)])
    (store.runs / store.names()[0] / "run.json").write_text("{}")
    done = subprocess.run(
        [*PACELINE, "show", "--store", str(tmp_path / "results"), "--json"], capture_output=True, text=True, check=False
    )
    assert json.loads(done.stdout)["campaign"]
    assert done.stderr.startswith("warning: ")
    assert "run.json" in done.stderr


@pytest.mark.parametrize("given", ["inf", "-inf", "nan", "1e999"])
def test_a_number_of_an_option_is_finite(paceline: Call, given: str) -> None:
    said = paceline("predict", "--network", "lenet", "--cluster", "dgx-1", "--samples", "9", "--epochs", given, code=2)
    assert "--epochs" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("code", [0, 3, 137])
def test_a_watched_command_gives_its_exit_code(paceline: Call, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """In CI, a training that failed must not pass because it was watched."""
    watched = SimpleNamespace(exit_code=code, lines=("said",), judgement=None, campaign="", note="", labels=())
    monkeypatch.setattr("paceline.cli.watch.watch_command", lambda *_, **__: watched)
    assert "said" in paceline("watch", "--", "python", "train.py", code=code)
    assert json.loads(paceline("watch", "--json", "--", "python", "train.py", code=code))["exit_code"] == code


def test_what_is_stopped_says_so_with_the_code_of_a_signal(paceline: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.cli.query.ask", stopped)
    assert paceline("query", "SELECT 1", code=130).strip() == "stopped"


def test_hosts_keep_the_order_of_the_command(paceline: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is that of rank 0, and the order that of the cluster's hosts."""
    seen = []

    def tested(target: object, *_: object, as_json: bool) -> int:
        seen.append(target)
        return 0

    monkeypatch.setattr("paceline.cli.doctor._test_hosts", tested)
    paceline("doctor", "--on", "ssh", "--hosts", "c, a,,b", "--engine", "-p", "--engine", "22")
    (target,) = seen
    assert (target.on, target.hosts, target.options) == ("ssh", ("c", "a", "b"), ("-p", "22"))


def test_a_command_does_not_repeat_the_warnings_of_the_one_before(paceline: Call, tmp_path: Path) -> None:
    """Commands of one process, as in a notebook."""
    store = write(tmp_path / "results", [Made(ranks=1)])
    (store.runs / store.names()[0] / "run.json").write_text("{}")
    first, again = (paceline("show", "--store", str(store.root)) for _ in range(2))
    assert first.count("warning: ") == again.count("warning: ") == 1


def test_a_study_begins_with_a_store_without_what_the_dead_left(
    paceline: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise InputError("not here")

    cleaned = []
    monkeypatch.setattr("paceline.cli.run.Store.clean", lambda store: cleaned.append(store.root))
    monkeypatch.setattr("paceline.cli.run.measure", refused)
    study = tmp_path / "s.toml"
    study.write_text('name = "s"\nnetworks = ["lenet"]\nframeworks = ["pytorch"]\nbatch = [8]\n')
    asked = ("run", str(study), "--store", str(tmp_path / "results"))
    paceline(*asked, "--dry-run")
    assert cleaned == [], "a look changes nothing"
    paceline(*asked, code=2)
    assert cleaned == [tmp_path / "results"]


def test_a_store_with_runs_of_a_newer_version_is_not_checked(paceline: Call, tmp_path: Path) -> None:
    store = write(tmp_path / "results", [Made(ranks=1, launches=1)])
    path = store.runs / store.names()[0] / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 99}))
    found = json.loads(paceline("store", "check", "--store", str(store.root), "--json", code=1))
    assert (len(found["newer"]), found["damaged"]) == (1, [])
