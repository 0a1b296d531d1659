"""Which tests reach which function, and quick runs of some tests with one function changed.

A hot server imports Paceline and collects all tests once, and forks for every run. A mutation exchanges the code of one
function in the child, which then runs the tests that reach this function: nothing is imported or collected again. What
ran before the first test keeps what the old code gave (tables of modules, parameters of tests); a mutation there, or
outside of functions, is tried by a cold server, which imports the mutated file. Every function of the packages notes in
its first statement that it was called: that is how reach is recorded, once per file of tests. Tests of commands call
the command line in the same process.
"""

from __future__ import annotations

import ast
import builtins
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
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

from mutation_sites import Mutation, mark_functions

__all__ = ["FOLDERS", "PACKAGES", "Reach", "Server", "Verdict", "digest", "read_reach", "test_files"]

PACKAGES = ("cost", "model", "measurements", "runtime", "explain", "bench", "channel", "report", "api",
            "cli", "spec", "catalog", "files", "units")  # fmt: skip
FOLDERS = ("tests/unit", "tests/property", "tests/validation")
LIBRARIES = ("click", "duckdb", "hypothesis", "numpy", "psutil", "pyarrow.parquet", "pydantic", "pytest",
             "rich.console", "scipy.optimize", "scipy.stats", "tomli_w")  # fmt: skip
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--capture=no",
           "-W", "ignore::pytest.PytestAssertRewriteWarning")  # fmt: skip
"""The warning would be that libraries are imported already."""
FAILED = (1, 2, 3, 4)
"""A test failed, pytest itself did (a mutation can leak a socket), or a module of tests could not be imported."""
BROKEN = 70
"""The tool itself failed."""
COLD = 71
"""The mutation has to be imported: it is in no function whose code can be exchanged, or that ran before the tests."""
LATE = -signal.SIGKILL
LONGEST = 900.0
MOST_WAITING = 20
"""How often a child that waits for the processor gets more time."""
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
ELSEWHERE = {"quick", "pytorch", "torch_python"}
"""Fixtures that start a worker or PyTorch in another process, where nothing is recorded."""


@dataclass(frozen=True)
class Reach:
    """Seconds of every test; tests that reach a function by `file:function`, and any function of a file by `file:`."""

    seconds: dict[str, float]
    tests: dict[str, set[str]]

    def tests_of(self, file: str, function: str, seconds: float) -> list[tuple[str, float]]:
        """Tests of a function: those in files that import its module, then the quickest others; one file at a time."""
        named = f"paceline.{file.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
        found: dict[str, float] = {}
        for test in sorted(self.tests.get(f"{file}:{function}", ()), key=lambda one: self._order(one, named)):
            if found and sum(found.values()) + self.seconds[test] > seconds:
                continue
            found[test] = self.seconds[test]
        first = {test.split("::")[0]: number for number, test in reversed(list(enumerate(found)))}
        return sorted(found.items(), key=lambda pair: first[pair[0].split("::")[0]])

    def _order(self, test: str, module: str) -> tuple[bool, float, str]:
        return module not in _imported(Path(test.split("::")[0])), self.seconds[test], test


NAMED = re.compile(r"^(?:from (paceline[\w.]*) import ([^(\n]+|\([^)]*\))|import (paceline[\w.]+))", flags=re.M)
"""What an import names: a module, and what is taken from it, which may be modules too."""


@cache
def _imported(path: Path) -> frozenset[str]:
    """Modules of Paceline that a file imports by name."""
    found = set()
    for module, names, alone in NAMED.findall(path.read_text(encoding="utf-8")):
        found |= {module or alone, *(f"{module}.{name}" for name in re.findall(r"\w+", names))}
    return frozenset(found)


def test_files(root: Path) -> list[Path]:
    """Files of quick tests."""
    return [path.relative_to(root) for name in FOLDERS for path in sorted((root / name).rglob("test_*.py"))]


def read_reach(records: Iterable[Path]) -> Reach:
    """What was recorded."""
    seconds: dict[str, float] = {}
    tests: dict[str, set[str]] = {}
    for record in filter(Path.exists, records):
        for test, facts in json.loads(record.read_text(encoding="utf-8"))["tests"].items():
            seconds[test] = facts["seconds"]
            for function in facts["functions"]:
                tests.setdefault(function, set()).add(test)
                tests.setdefault(function.partition(":")[0] + ":", set()).add(test)
    return Reach(seconds, tests)


def digest(content: bytes) -> str:
    """Names a content."""
    return hashlib.sha256(content).hexdigest()


class Verdict:
    """What became of a mutation."""

    CAUGHT, LATE, SURVIVED, UNREACHED = "caught", "late", "survived", "unreached"
    SEEN = (CAUGHT, LATE)


class Server:
    """A process that forks for every run of tests in one tree; if `hot`, it has imported and collected everything."""

    def __init__(self, tree: Path, *, hot: bool = False) -> None:
        self.tree, self.hot = tree, hot
        self.log = tree / f"mutant-{'hot' if hot else 'cold'}.log"
        argv, pipe = [sys.executable, __file__, "hot" if hot else "cold"], subprocess.PIPE
        env = {**os.environ, **THREADS, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        self._process = subprocess.Popen(argv, cwd=tree, env=env, stdin=pipe, stdout=pipe, text=True)
        self._answer()  # nothing may be mutated before everything is imported

    def _answer(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"the tests could not be collected: {self.log}\n{self.log.read_text()[-2000:]}")
        return int(json.loads(line))

    def _ask(self, request: dict[str, Any], limit: float) -> int:
        """The exit code of pytest; `LATE` where it was killed at the limit."""
        assert self._process.stdin is not None
        self._failed.unlink(missing_ok=True)
        self._process.stdin.write(json.dumps({"failed": str(self._failed), **request, "limit": limit}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def record(self, file: Path, to: Path) -> None:
        """Write which functions each test of a file reaches; tests that fail as they are, are left out."""
        to.unlink(missing_ok=True)
        code = self._ask({"record": str(file), "to": str(to)}, LONGEST)
        if not to.exists():
            print(f"{file} could not be recorded ({code}): {self.log}", flush=True)

    def verdict(self, tests: list[str], *, limit: float, mutation: Mutation | None = None) -> str | None:
        """Whether one of the tests fails, or all together take longer than the limit; none if it has to be imported."""
        changed = {"path": str(mutation.path), "function": mutation.function} if mutation and self.hot else None
        code = self._ask({"tests": tests, "changed": changed}, limit)
        if code not in (0, LATE, COLD, *FAILED):
            sys.exit(f"pytest ended with {code}: {self.log.read_text()[-2000:]}")
        return {0: Verdict.SURVIVED, COLD: None, LATE: Verdict.LATE}.get(code, Verdict.CAUGHT)

    @property
    def _failed(self) -> Path:
        return self.log.with_suffix(".failed")

    @property
    def failed_test(self) -> str | None:
        """The test that failed in the last run; none if a module of tests could not be imported."""
        return self._failed.read_text(encoding="utf-8") if self._failed.exists() else None

    def stop(self) -> None:
        """End the process."""
        self._process.communicate()


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


class _Failed:
    """Pytest plugin: writes which test failed."""

    def __init__(self) -> None:
        self.file: Path | None = None
        self.tests: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.tests.append(_base(report.nodeid))
            if self.file is not None:
                self.file.write_text(self.tests[0], encoding="utf-8")


def _base(test: str) -> str:
    return test.split("[")[0]


class _Requests:
    """Pytest plugin: in place of running the collected tests, forks for every request and runs some of them."""

    def __init__(self, requests: Callable[[Callable[[dict[str, Any]], int]], None], called: set[str]) -> None:
        self._requests, self._called = requests, called
        self.failed = _Failed()

    def pytest_runtestloop(self, session: Any) -> bool:
        self._session = session
        self._before = set(self._called)
        self._items: dict[str, list[Any]] = {}
        for item in session.items:
            if not ELSEWHERE & set(getattr(item, "fixturenames", ())):
                self._items.setdefault(_base(item.nodeid), []).append(item)
        self._requests(self._child)
        return True

    def _child(self, request: dict[str, Any]) -> int:
        if "record" in request:
            return self._record(request["record"], Path(request["to"]))
        self.failed.file = Path(request["failed"])
        changed = request["changed"]
        if changed and not _exchange_code(changed["path"], changed["function"]):
            return COLD
        items = [item for test in request["tests"] for item in self._items[test]]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed.tests:
                return 1
        return COLD if changed and self._ran_before(changed["path"], changed["function"]) else 0

    def _ran_before(self, path: str, function: str) -> bool:
        """Whether a function, or one around it, ran before the tests: it may have left tables or inner functions."""
        parts = function.split(".")
        return any(_key(path, ".".join(parts[: end + 1])) in self._before for end in range(len(parts)))

    def _record(self, file: str, to: Path) -> int:
        """Run one file of tests and write which functions each of its tests calls."""
        found: dict[str, dict[str, Any]] = {}
        for test, items in self._items.items():
            if test.split("::")[0] == file:
                self._called.clear()
                began = _processor_seconds()
                for item in items:
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
                found[test] = {"seconds": _processor_seconds() - began, "functions": sorted(self._called)}
        for test in self.failed.tests:
            found.pop(test, None)
        to.write_text(json.dumps({"digest": digest(Path(file).read_bytes()), "tests": found}), encoding="utf-8")
        return 0


def _processor_seconds() -> float:
    """Of this process and those it waited for: what other programs do at the same time says nothing about a test."""
    return sum(os.times()[:4])


def _key(path: str, function: str) -> str:
    return f"{Path(path).relative_to('src/paceline').as_posix()}:{function}"


class _Marking(SourceFileLoader):
    """Loads a module whose functions note that they were called."""

    def get_code(self, fullname: str) -> CodeType:
        path = Path(self.path).relative_to(Path.cwd())
        tree = ast.parse(path.read_text(encoding="utf-8"))
        return compile(mark_functions(tree, _key(str(path), "")), self.path, "exec", dont_inherit=True)


class _Finder:
    """Finds modules of the packages, before Python's own finder does."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """The module as Python finds it, with the loader that marks its functions."""
        if not f"{name}.".startswith(tuple(f"paceline.{package}." for package in PACKAGES)):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Marking(spec.loader.name, spec.loader.path)
        return spec


def _serve(answers: int, *, hot: bool) -> int:
    import pytest

    for library in LIBRARIES:
        importlib.import_module(library)
    common = [*OPTIONS, f"--basetemp={Path.cwd().parent / ('hot' if hot else 'cold')}"]
    if not hot:
        _requests(answers, lambda request: _imported_anew(request, common))
        return 0
    called: set[str] = set()
    builtins.__called__ = called.add  # type: ignore[attr-defined]
    sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
    for path in sorted(Path("src/paceline").rglob("*.py")):
        name = ".".join(path.relative_to("src").with_suffix("").parts).removesuffix(".__init__")
        if not {"frameworks", "site"} & set(path.parts) and path.name != "__main__.py":
            with contextlib.suppress(Exception):  # what needs a framework
                importlib.import_module(name)
    loop = _Requests(lambda child: _requests(answers, child), called)
    return int(pytest.main([*FOLDERS, *common], plugins=[_Commands(), _FewExamples(), loop, loop.failed]))


def _imported_anew(request: dict[str, Any], options: list[str]) -> int:
    import pytest

    failed = _Failed()
    failed.file = Path(request["failed"])
    return int(pytest.main([*request["tests"], *options], plugins=[_Commands(), _FewExamples(), failed]))


def _requests(answers: int, run: Callable[[dict[str, Any]], int]) -> None:
    """Answer every line of the standard input with the exit code of a child that does what it asks."""
    os.write(answers, b"0\n")
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            os.setsid()
            sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
            os.dup2(sys.stdin.fileno(), 0)  # requests are for the server
            code = BROKEN
            try:
                code = run(request)
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(code)
        os.write(answers, b"%d\n" % _ended(child, request["limit"]))


def _ended(child: int, limit: float) -> int:
    """The exit code of a child, which is killed with its own children if it is late."""
    until, code = time.monotonic() + limit, LATE
    for _ in range(MOST_WAITING):
        while time.monotonic() < until and code == LATE:
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                code = os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        if code != LATE or not _waits_for_the_processor(child, limit):
            break
        until += limit / 4
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if code == LATE:
        os.waitpid(child, 0)
    return code


def _waits_for_the_processor(child: int, limit: float) -> bool:
    """Whether other programs keep a child from its work: it is ready to run and has had little of its time."""
    facts = Path(f"/proc/{child}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    had = sum(map(int, facts[11:15])) / os.sysconf("SC_CLK_TCK")
    return facts[0] == "R" and had < limit / 2


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


if __name__ == "__main__":
    # Answers go to the standard output as it was; what tests and pytest print goes to a log.
    answers_to = os.dup(1)
    log = os.open(f"mutant-{sys.argv[1]}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.exit(_serve(answers_to, hot=sys.argv[1] == "hot"))
