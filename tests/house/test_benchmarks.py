"""Benchmarks keep working while the code changes, and docs/benchmarks.md is what their results give."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.house.test_rules import ROOT, SOURCE, defined_in, tree

FOLDER = ROOT / "benchmarks"
SCRIPTS = sorted(FOLDER.glob("*.py"))
ALL = [*SCRIPTS, *sorted((FOLDER / "lib").glob("*.py"))]


def module_file(name: str) -> Path | None:
    """The file of a module of Paceline or of benchmarks/lib."""
    base = FOLDER if name.split(".")[0] == "lib" else SOURCE.parent
    path = base.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


def offered(name: str) -> set[str]:
    """Names that can be imported from a module, its own modules included."""
    file = module_file(name)
    assert file is not None, f"no module {name}"
    below = {path.stem for path in file.parent.iterdir()} if file.name == "__init__.py" else set()
    lazy = (
        re.findall(r'^ +"(\w+)":', file.read_text(encoding="utf-8"), flags=re.M) if file.name == "__init__.py" else []
    )
    return defined_in(file) | below | set(lazy)


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_everything_that_a_benchmark_imports_exists(path: Path) -> None:
    """Also in workers, which import a framework and therefore cannot be imported here."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("paceline", "lib"):
            missing = {alias.name for alias in node.names} - offered(str(node.module))
            assert not missing, f"{node.module} has no {sorted(missing)}"


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_inner_parts_of_the_runtime_that_a_benchmark_looks_at_exist(path: Path) -> None:
    runtime = "".join(file.read_text(encoding="utf-8") for file in (SOURCE / "runtime").rglob("*.py"))
    for names in re.findall(r"\bpace((?:\._\w+)+)", path.read_text(encoding="utf-8")):
        for name in names.strip(".").split("."):
            assert f"self.{name}" in runtime, f"pace{names}: nothing in the runtime has {name}"


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in [name for name in sys.modules if name == "lib" or name.startswith("lib.")]:
        del sys.modules[name]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_benchmark_starts_and_teaches(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = load(path)
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f".venv/bin/python benchmarks/{path.name}" in text, "the help shows the command"
    assert "--json FILE" in text


def runner() -> ModuleType:
    return load(ROOT / "tools" / "benchmarks.py")


def test_every_benchmark_is_run_by_the_runner() -> None:
    entries = runner().ENTRIES
    assert {entry.script for entry in entries} == {path.stem for path in SCRIPTS}
    assert len({entry.name for entry in entries}) == len(entries)
    stored = {path.stem for path in (FOLDER / "results").glob("*.json")}
    assert stored <= {entry.name for entry in entries}, "a result that no benchmark writes"


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("kind", ["full", "quick"])
def test_arguments_of_the_runner_are_understood(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command line passes the benchmark's own parser, which is stopped behind it."""
    import argparse

    class Parsed(Exception):
        pass

    parse = argparse.ArgumentParser.parse_args

    def stop(self: argparse.ArgumentParser) -> None:
        parse(self)
        raise Parsed

    for entry in runner().ENTRIES:
        path = FOLDER / f"{entry.script}.py"
        monkeypatch.setattr(sys, "path", list(sys.path))
        module = load(path)
        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
        monkeypatch.setattr(sys, "argv", [str(path), *getattr(entry, kind).split(), "--json", os.devnull])
        with pytest.raises(Parsed):
            module.main()
        monkeypatch.undo()
        monkeypatch.syspath_prepend(str(FOLDER))


def test_the_page_of_benchmarks_is_what_the_results_give() -> None:
    command = [sys.executable, str(ROOT / "tools" / "benchmarks.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "write it: tools/benchmarks.py --page"


def test_a_benchmark_that_fails_is_on_the_page(tmp_path: Path) -> None:
    tool = runner()
    entry = tool.Entry("equal", "equal", full="--no-such-option")
    assert not tool.run(entry, tmp_path, quick=False)
    text = tool.page(tmp_path)
    assert "It failed:" in text
    assert "--no-such-option" in text
    assert "`drift`" in text.split("Not measured yet")[1]


def test_a_quick_run_that_misses_a_target_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = runner()

    def missed(argv: list[str]) -> tuple[int, str]:
        Path(argv[-1]).write_text("{}", encoding="utf-8")
        return 1, ""

    monkeypatch.setattr(tool, "_ran", missed)
    assert tool.run(tool.Entry("equal", "equal"), tmp_path, quick=True)
    assert not tool.run(tool.Entry("equal", "equal"), tmp_path, quick=False)
    monkeypatch.setattr(tool, "_ran", lambda argv: (1, "Traceback"))
    assert not tool.run(tool.Entry("equal", "equal"), tmp_path, quick=True)


def test_an_interrupted_run_leaves_no_benchmark_behind(tmp_path: Path) -> None:
    child = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(600)"
    code = (
        f"import sys; sys.path[:0] = ['tools']; import benchmarks as tool; tool._ran([sys.executable, '-c', {child!r}])"
    )
    code = f"import signal; signal.signal(signal.SIGTERM, signal.default_int_handler); {code}"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        number = int(process.stdout.readline())
        process.terminate()
        process.wait()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)
