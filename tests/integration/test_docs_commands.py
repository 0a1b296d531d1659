"""Every command that the documentation prints is run as printed, or marked with what it needs that a test has not."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from paceline.cli import program
from paceline.errors import PacelineError
from tests.conftest import Command

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("how-to/*.md")),
    *sorted((ROOT / "docs").glob("tutorial/*.md")),
]
LINE = re.compile(r"^ {4}(?:\.venv/bin/)?paceline (?!\.)(.+)$", re.MULTILINE)
QUICK = (
    "predict",
    "plan",
    "whatif",
    "simulate",
    "networks",
    "catalog",
    "transformer",
    "evaluate",
    "doctor",
    "frameworks",
    "validate",
)
"""Verbs that need no stored run and no other host."""
MARKED = {
    r"\bmy[-.]|\bmine\b|\bstudy\.toml|\btrain\.py|my_|STUDY|--plan plan\.toml": "a file of the user",
    r"--on (ssh|mpi|slurm|kubernetes|ray)": "other hosts",
    r"--on virtual|^cluster": "root: tests/integration/cluster",
    r"(points|iterations)\.csv|questions": "files of its page: tests/unit/model/test_how_to.py",
    r"^(run|show|explain|report|export|query|compare|calibrate|demo|store)\b": "stored runs: the demo below",
    r"^clean\b": "caches of the user: tests/unit/test_store_removal.py",
    r"^frameworks (install|verify|remove)|frameworks\.toml": "downloads: make test-frameworks",
    r"^import": "files of other tools: tests/unit/imports",
    r"^predict --from": "a watched run: tests/unit/test_observed.py",
    r"^top\b": "a running training: tests/integration/runtime/test_observe.py",
    r"^train examples": "scikit-learn: the test of the example below",
}


def commands() -> list[str]:
    found = [one for page in PAGES for one in LINE.findall(page.read_text(encoding="utf-8").replace("\\\n", " "))]
    plain = [re.sub(r"\s+#.*$|\s{2,}\S.*$", "", re.sub(r"\s+--", " --", one)).strip() for one in found]
    return sorted({one for one in plain if re.match(r"[a-z-]+( |$)", one)})


def why_not(command: str) -> str | None:
    return next((why for pattern, why in MARKED.items() if re.search(pattern, command)), None)


DATED = {"CHANGELOG.md", "decisions"}
"""Of the versions that they tell about."""
WRITTEN = [page for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")) if not DATED & set(page.parts)]
BLOCK = re.compile(r"^(?:\$ )?[ \t]*(?:\.venv/bin/)?paceline ([a-z][\w-]* .*|[a-z][\w-]*)$", re.MULTILINE)
INLINE = re.compile(r"`paceline ([a-z][^`\[]*)`")
OUTPUT = r"^watched \d|^watch: step"
"""Lines that begin as a command does and are printed by one."""


def printed(text: str) -> list[str]:
    """Every command of a text, in blocks and in sentences, without comments, and the first of several of a line."""
    joined = re.sub(r"\\\n\s*", " ", text)
    found = [*BLOCK.findall(joined), *(one.replace("\n", " ") for one in INLINE.findall(joined))]
    plain = [re.sub(r"\s+#.*$|\s{3,}\S.*$| && .*$", "", one) for one in found]
    return [one for one in plain if not re.match(OUTPUT, one)]


def refused(words: list[str]) -> str | None:
    """Why the command line does not know these words: a verb, an option, or the kind of its value."""
    context, command = program.make_context("paceline", list(words)), program
    try:
        while isinstance(command, click.Group):
            rest = [*context._protected_args, *context.args]
            if not rest:
                return None
            name, found, rest = command.resolve_command(context, rest)
            assert name is not None
            assert found is not None
            command, context = found, found.make_context(name, rest, parent=context)
    except (click.exceptions.Exit, click.MissingParameter, click.exceptions.NoArgsIsHelpError):
        return None  # of a sentence, which names what it is about
    except click.UsageError as error:
        needs = error.format_message()
        return None if needs.endswith("requires an argument.") else needs
    except PacelineError as error:
        return str(error)
    return None


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_command_line_knows_every_printed_verb_and_option(page: Path) -> None:
    wrong = {one: why for one in printed(page.read_text(encoding="utf-8")) if (why := refused(shlex.split(one)))}
    assert wrong == {}


def test_a_wrong_command_is_noticed() -> None:
    assert sum(len(printed(page.read_text(encoding="utf-8"))) for page in WRITTEN) > 300
    for wrong in ("predct --network a", "predict --netwrk a", "predict --batch ten", "store chek", "show --jsn"):
        assert refused(shlex.split(wrong)), wrong
        assert printed(f"Say\n\n    paceline {wrong}   # so\n\nor `paceline {wrong}`.") == [wrong, wrong]


def test_every_command_is_run_or_marked() -> None:
    unknown = [one for one in commands() if not one.startswith(QUICK) and not why_not(one)]
    assert not unknown, f"say in MARKED what these need: {unknown}"
    assert len(commands()) > 25


@pytest.mark.parametrize("command", [one for one in commands() if one.startswith(QUICK) and not why_not(one)])
@pytest.mark.full
def test_a_command_runs_as_printed(command: str, paceline: Command, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run(
        [*paceline.prefix, *shlex.split(command)], cwd=tmp_path, env=paceline.env, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    allowed = (0, 1) if command.startswith("doctor") else (0,)
    assert done.returncode in allowed, done.stderr


def test_the_training_example_runs_or_says_what_to_install(paceline: Command, pytorch: Path) -> None:
    script = ROOT / "examples" / "training" / "train_digits.py"
    done = subprocess.run(
        [*paceline.prefix, "train", str(script), "--ranks", "2"], env=paceline.env, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        assert done.returncode == 2
        assert "imports sklearn" in done.stderr
        assert "pip install scikit-learn" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this source, installed outside of the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".venv", ".git", "results", "tests", "__pycache__"))
    build = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "-q", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


@pytest.mark.full
@pytest.mark.alone
def test_the_demo_runs_from_the_wheel_and_its_results_are_shown(unpacked: Path, pytorch: Path, tmp_path: Path) -> None:
    paceline = Command(tmp_path / "results", [sys.executable, "-m", "paceline"])
    paceline.env["PYTHONPATH"] = str(unpacked)
    where = [sys.executable, "-c", "import paceline; print(paceline.__file__)"]
    found = subprocess.run(where, env=paceline.env, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert str(unpacked) in found
    told = paceline("demo")
    assert "The prediction, checked by running it" in told
    assert re.search(r"predicted [\d,.]+ samples/s \(90 %: .*\), measured [\d,.]+: error [+-][\d.]+ %", told)
    assert "The report: " in told
    for command in (
        "show demo",
        "explain demo",
        "report demo",
        f"export demo --to markdown -o {tmp_path}/demo.md",
        "query 'SELECT 1'",
        "store check",
        "store repair",
    ):
        paceline(*shlex.split(command))
