"""Which tests reach which function, recorded by coverage.py once per test file; and a quick run of some tests.

A server process imports the libraries once and forks for every run, since importing them takes longer than most tests.
A hot server imports Paceline too: a mutation exchanges the code of one function there, and nothing is imported again.
What survives so is tried again by a cold server, which imports the mutated file: tables that were computed while
modules were imported are made anew there. Tests of commands call the command line in the same process, where coverage
sees it. A file of tests that takes longer than `LONGEST` under coverage is left out of this run, and tried again in the
next.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

from mutation_sites import Mutation, function_at, functions_of

__all__ = ["PACKAGES", "Reach", "Server", "Verdict", "digest", "importing_tests", "reaches"]

PACKAGES = ("cost", "model", "measurements", "runtime", "explain")
FOLDERS = ("tests/unit", "tests/property", "tests/validation")
USES = re.compile(
    rf"paceline\.({'|'.join(PACKAGES)}|api)|from tests\.(made|unit|property)|\bimport api\b|\(.*\bpaceline\b.*\):"
)
LIBRARIES = ("click", "coverage", "duckdb", "hypothesis", "numpy", "psutil", "pyarrow.parquet", "pydantic", "pytest",
             "rich.console", "scipy.optimize", "scipy.stats", "tomli_w")  # fmt: skip
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header",
           "-W", "ignore::pytest.PytestAssertRewriteWarning")  # fmt: skip
"""The warning would be that libraries are imported already."""
NONE_LEFT = 5
FAILED = (1, 2, 3, 4)
"""A test failed, pytest itself did (a mutation can leak a socket), or a module of tests could not be imported."""
BROKEN = 70
"""The tool itself failed."""
COLD = 71
"""The mutation is not in a function whose code can be exchanged."""
LATE = -signal.SIGKILL
LONGEST = 600.0
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Reach:
    """Seconds of every test; tests that reach a function by `file:function`, and any function of a file by `file:`."""

    seconds: dict[str, float]
    tests: dict[str, set[str]]

    def tests_of(self, file: str, function: str, seconds: float) -> list[tuple[str, float]]:
        """The quickest tests of a function, those of its enclosing function or class if none reaches it."""
        reaching = self.tests.get(f"{file}:{function}", set())
        found, total = [], 0.0
        for test in sorted(reaching, key=lambda name: (self.seconds[name], name)):
            total += self.seconds[test]
            if found and total > seconds:
                break
            found.append((test, self.seconds[test]))
        return found


def reaches(root: Path, collect: list[str] | None = None) -> Reach:
    """Read what was recorded; with `collect` record test files that are new or changed, or those named."""
    folder = root / "results" / "mutants"
    folder.mkdir(parents=True, exist_ok=True)
    files = [path for name in FOLDERS for path in sorted((root / name).rglob("test_*.py")) if _concerns(path)]
    records = {path: folder / ("-".join(path.relative_to(root).parts) + ".json") for path in files}
    stale = [path for path in files if collect is not None and _is_stale(path, records[path], root, collect)]
    if stale:
        print(f"recording which functions {len(stale)} test files reach", flush=True)
        server = Server(root, hot=True)
        for number, path in enumerate(stale, 1):
            print(f"{number} of {len(stale)}: {path.relative_to(root)}", flush=True)
            _collect(server, path, records[path])
        server.stop()
    seconds: dict[str, float] = {}
    tests: dict[str, set[str]] = {}
    for record in filter(Path.exists, records.values()):
        for test, facts in json.loads(record.read_text(encoding="utf-8"))["tests"].items():
            seconds[test] = facts["seconds"]
            for function in facts["functions"]:
                tests.setdefault(function, set()).add(test)
    return Reach(seconds, tests)


NAMED = re.compile(r"^(?:from (paceline[\w.]*) import ([^(\n]+|\([^)]*\))|import (paceline[\w.]+))", flags=re.M)
"""What an import names: a module, and what is taken from it, which may be modules too."""
MOST_FILES = 6


@cache
def _imported(path: Path) -> frozenset[str]:
    """Modules of Paceline that a file imports by name."""
    found = set()
    for module, names, alone in NAMED.findall(path.read_text(encoding="utf-8")):
        found |= {module or alone, *(f"{module}.{name}" for name in re.findall(r"\w+", names))}
    return frozenset(found)


def importing_tests(root: Path, file: str) -> list[str]:
    """Test files for a module of which nothing is recorded: those that import it, then those that import its users."""
    module = _dotted(Path(file))
    tests = [path for folder in FOLDERS for path in sorted((root / folder).rglob("test_*.py"))]
    source = root / "src" / "paceline"
    users = {_dotted(path.relative_to(source)) for path in source.rglob("*.py") if module in _imported(path)}
    near = [[path for path in tests if _is_of(path, some)] for some in ({module}, users)]
    chosen = dict.fromkeys(path for some in near for path in sorted(some, key=lambda path: path.stat().st_size))
    return [str(path.relative_to(root)) for path in list(chosen)[:MOST_FILES]]


def _dotted(path: Path) -> str:
    return ".".join(("paceline", *path.with_suffix("").parts)).removesuffix(".__init__")


def _is_of(path: Path, modules: set[str]) -> bool:
    """Whether a test file imports one of the modules, or is in a folder of its name."""
    return bool(modules & _imported(path)) or bool({name.rpartition(".")[2] for name in modules} & set(path.parts[:-1]))


def _concerns(path: Path) -> bool:
    """Whether a test file uses a package: by name, through other tests, the interface, or the command line."""
    return bool(USES.search(path.read_text(encoding="utf-8")))


def _is_stale(path: Path, record: Path, root: Path, named: list[str]) -> bool:
    if not record.exists() or str(path.relative_to(root)) in named:
        return True
    return bool(json.loads(record.read_text(encoding="utf-8"))["digest"] != digest(path.read_bytes()))


def digest(content: bytes) -> str:
    """Names a content."""
    return hashlib.sha256(content).hexdigest()


def _collect(server: Server, path: Path, record: Path) -> None:
    file = str(path.relative_to(server.tree))
    record.unlink(missing_ok=True)
    code = server.ask({"collect": file, "record": str(record), "log": str(record.with_suffix(".log"))}, LONGEST)
    if code not in (0, NONE_LEFT):
        why = "takes too long" if code == LATE else "does not pass as it is: its failing tests are left out"
        print(f"{file} {why} ({record.with_suffix('.log')})", flush=True)
    if not record.exists() and code != LATE:
        record.write_text(json.dumps({"digest": digest(path.read_bytes()), "tests": {}}), encoding="utf-8")


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, **THREADS, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}


ELSEWHERE = {"quick", "pytorch", "torch_python"}
"""Fixtures that start a worker or PyTorch in another process, where nothing is recorded."""


class _Commands:
    """Pytest plugin: the fixture `paceline` calls the command line in this process."""

    def pytest_collection_finish(self) -> None:
        from tests.conftest import Command

        started = Command.__call__

        def called(command: Any, *args: str, code: int = 0, **options: Any) -> str:
            if Path(command.prefix[0]).name != "paceline":
                return str(started(command, *args, code=code, **options))
            found, output, errors = _command(args, command.env)
            assert found == code, f"exit {found}\n{output}\n{errors}"
            return errors if code else output

        Command.__call__ = called


def _command(args: tuple[str, ...], env: dict[str, str]) -> tuple[Any, str, str]:
    """Exit code, standard output and standard error of a command."""
    from paceline.cli import main

    output, errors, code = io.StringIO(), io.StringIO(), None
    with (
        patch.dict(os.environ, env),
        patch.object(sys, "argv", ["paceline", *args]),
        redirect_stdout(output),
        redirect_stderr(errors),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    return code or 0, output.getvalue(), errors.getvalue()


class _FewExamples:
    """Pytest plugin: a few random examples reach what many reach, and catch a little less."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        from hypothesis import settings

        for test in {item.function for item in items}:
            chosen = getattr(test, "_hypothesis_internal_use_settings", None)
            if chosen is not None:
                test._hypothesis_internal_use_settings = settings(chosen, max_examples=min(chosen.max_examples, 20))


class _Recorder:
    """Pytest plugin: tells coverage which test runs, and keeps its seconds and outcome."""

    def __init__(self, measured: Any) -> None:
        self._measured = measured
        self.seconds: dict[str, float] = {}
        """Of the processor: what other programs do at the same time says nothing about a test."""
        self.failed: set[str] = set()
        self._began = 0.0

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if not ELSEWHERE & set(getattr(item, "fixturenames", ()))]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._measured.switch_context(nodeid.split("[")[0])
        self._began = time.process_time()

    def pytest_runtest_logreport(self, report: Any) -> None:
        test = report.nodeid.split("[")[0]
        now = time.process_time()
        self.seconds[test], self._began = self.seconds.get(test, 0.0) + now - self._began, now
        if report.failed:
            self.failed.add(test)


def _record(file: str, record: str) -> int:
    """Run one test file under coverage and write which functions each of its tests reaches."""
    import coverage
    import pytest

    source = Path("src/paceline").resolve()
    measured = coverage.Coverage(data_file=None, source=[str(source)], config_file=False)
    measured.start()
    recorder = _Recorder(measured)
    options = [one for one in OPTIONS if one != "-x"]
    code = pytest.main([file, *options], plugins=[recorder, _Commands(), _FewExamples()])
    measured.stop()
    data = measured.get_data()
    reached: dict[str, set[str]] = {test: set() for test in recorder.seconds if test not in recorder.failed}
    for name in data.measured_files():
        functions = functions_of(Path(name).read_text(encoding="utf-8"))
        short = Path(name).relative_to(source).as_posix()
        for line, contexts in data.contexts_by_lineno(name).items():
            function = function_at(functions, line)
            for test in contexts:
                if function and test in reached:
                    reached[test] |= {f"{short}:{function}", f"{short}:"}
    tests = {
        test: {"seconds": recorder.seconds[test], "functions": sorted(functions)} for test, functions in reached.items()
    }
    content = {"digest": digest(Path(file).read_bytes()), "tests": tests}
    Path(record).write_text(json.dumps(content), encoding="utf-8")
    return int(code)


class Verdict:
    """What became of a mutation."""

    CAUGHT, LATE, SURVIVED, UNREACHED = "caught", "late", "survived", "unreached"
    SEEN = (CAUGHT, LATE)


class Server:
    """A process that has imported the libraries and forks for every run of tests in one tree; Paceline too if `hot`."""

    def __init__(self, tree: Path, *, hot: bool = False) -> None:
        self.tree, self.hot = tree, hot
        self.log = tree / f"mutant-{'hot' if hot else 'cold'}.log"
        argv, pipe = [sys.executable, __file__, "hot" if hot else "cold"], subprocess.PIPE
        self._process = subprocess.Popen(argv, cwd=tree, env=_environment(tree), stdin=pipe, stdout=pipe, text=True)
        self._answer()  # nothing may be mutated before everything is imported

    def _answer(self) -> int:
        assert self._process.stdout is not None
        return int(json.loads(self._process.stdout.readline()))

    def ask(self, request: dict[str, Any], limit: float) -> int:
        """The exit code of pytest; `LATE` where it was killed at the limit."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"log": str(self.log), **request, "limit": limit}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def verdict(self, tests: list[str], *, limit: float, mutation: Mutation | None = None) -> str:
        """Whether one of the tests fails, or all together take longer than the limit."""
        changed = {"path": str(mutation.path), "function": mutation.function} if mutation and self.hot else None
        code = self.ask({"tests": tests, "changed": changed, "hot": self.hot}, limit)
        if code not in (0, LATE, COLD, *FAILED):
            sys.exit(f"pytest ended with {code}: {self.log.read_text()[-2000:]}")
        return {0: Verdict.SURVIVED, COLD: Verdict.SURVIVED, LATE: Verdict.LATE}.get(code, Verdict.CAUGHT)

    @property
    def failed_test(self) -> str | None:
        """The test that failed in the last run; none if a module of tests could not be imported."""
        found = re.search(r"^FAILED (tests/[^\s\[]+)", self.log.read_text(errors="replace"), flags=re.M)
        return found[1] if found else None

    def stop(self) -> None:
        """End the process."""
        self._process.communicate()


def _serve(*, hot: bool) -> int:
    for library in LIBRARIES:
        importlib.import_module(library)
    for path in sorted(Path("src/paceline").rglob("*.py")) if hot else ():
        name = ".".join(path.relative_to("src").with_suffix("").parts).removesuffix(".__init__")
        if not {"frameworks", "site"} & set(path.parts) and path.name != "__main__.py":
            with contextlib.suppress(Exception):  # what needs a framework
                importlib.import_module(name)
    print(0, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            code = _child(request)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        print(_ended(child, time.monotonic() + request["limit"]), flush=True)
    return 0


def _exchange_code(path: str, function: str) -> bool:
    """Give a function of an imported module the code that its file has now; false where it has to be imported."""
    name = ".".join(Path(path).relative_to("src").with_suffix("").parts).removesuffix(".__init__")
    found: Any = sys.modules.get(name)
    for part in function.split("."):
        if not isinstance(found, ModuleType | type) or part not in vars(found):
            break
        found = _plain(vars(found)[part])
    if not isinstance(found, FunctionType):
        return False
    new = _code_at(compile(Path(path).read_text(encoding="utf-8"), found.__code__.co_filename, "exec"), found.__code__)
    if new is None or len(new.co_freevars) != len(found.__code__.co_freevars):
        return False
    found.__code__ = new
    return True


def _plain(found: Any) -> Any:
    """The function behind decorators."""
    if isinstance(found, property):
        found = found.fget
    if isinstance(found, cached_property):
        found = found.func
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    while hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    return found


def _code_at(code: CodeType, old: CodeType) -> CodeType | None:
    """The code of the same name that begins at the same line."""
    if (code.co_name, code.co_firstlineno) == (old.co_name, old.co_firstlineno):
        return code
    inner = (_code_at(one, old) for one in code.co_consts if isinstance(one, CodeType))
    return next((one for one in inner if one is not None), None)


def _ended(child: int, until: float) -> int:
    """The exit code of a child, which is killed with its own children if it is late."""
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return LATE


def _child(request: dict[str, Any]) -> int:
    import pytest

    os.setsid()
    with open(request["log"], "wb") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    try:
        if "collect" in request:
            return _record(request["collect"], request["record"])
        # Compiled tests are kept; a compiled mutation would outlive it. Only the cold server imports mutated files.
        sys.dont_write_bytecode = not request["hot"]
        changed = request["changed"]
        if changed and not _exchange_code(changed["path"], changed["function"]):
            return COLD
        return int(pytest.main([*request["tests"], *OPTIONS], plugins=[_Commands(), _FewExamples()]))
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return BROKEN


if __name__ == "__main__":
    sys.exit(_serve(hot=sys.argv[1] == "hot"))
