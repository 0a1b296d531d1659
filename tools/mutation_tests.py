"""Which tests reach which function, recorded by coverage.py once per test file; and a quick run of some tests.

A server process imports the libraries once and forks for every run, since importing them takes longer than most tests.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutation_sites import function_at, functions_of

__all__ = ["PACKAGES", "Reach", "Server", "reaches"]

PACKAGES = ("cost", "model", "measurements", "runtime", "explain")
FOLDERS = ("tests/unit", "tests/property", "tests/validation")
LIBRARIES = ("click", "duckdb", "hypothesis", "numpy", "psutil", "pyarrow.parquet", "pydantic", "pytest",
             "rich.console", "scipy.optimize", "scipy.stats", "tomli_w")  # fmt: skip
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header",
           "-W", "ignore::pytest.PytestAssertRewriteWarning")  # fmt: skip
"""The warning would be that libraries are imported already."""
FAILED = (1, 2, 4, -signal.SIGKILL)
"""A test failed, a module of tests could not be imported, or the time was over."""
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


def reaches(root: Path, only: list[str], collect: list[str] | None = None) -> Reach:
    """Read what was recorded; record test files that are new or changed, or those named."""
    folder = root / "results" / "mutants"
    folder.mkdir(parents=True, exist_ok=True)
    files = [path for name in FOLDERS for path in sorted((root / name).rglob("test_*.py")) if _concerns(path, only)]
    records = {path: folder / ("-".join(path.relative_to(root).parts) + ".json") for path in files}
    stale = [path for path in files if _is_stale(path, records[path], root, collect or [])]
    if stale:
        print(f"recording which functions {len(stale)} test files reach", flush=True)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda path: _collect(root, path, records[path]), stale))
    seconds: dict[str, float] = {}
    tests: dict[str, set[str]] = {}
    for record in records.values():
        for test, facts in json.loads(record.read_text(encoding="utf-8"))["tests"].items():
            seconds[test] = facts["seconds"]
            for function in facts["functions"]:
                tests.setdefault(function, set()).add(test)
    return Reach(seconds, tests)


def _concerns(path: Path, packages: list[str]) -> bool:
    """Whether a test file uses one of the packages at all; what stored runs show is about measurements and explain."""
    text = path.read_text(encoding="utf-8")
    made = ["tests.made"] if {"measurements", "explain"} & set(packages) else []
    return any(name in text for name in (*(f"paceline.{package}" for package in packages), *made))


def _is_stale(path: Path, record: Path, root: Path, named: list[str]) -> bool:
    if not record.exists() or str(path.relative_to(root)) in named:
        return True
    return bool(json.loads(record.read_text(encoding="utf-8"))["digest"] != _digest(path))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _collect(root: Path, path: Path, record: Path) -> None:
    log = record.with_suffix(".log")
    argv = [sys.executable, __file__, "collect", str(path.relative_to(root)), str(record)]
    with log.open("wb") as stream:
        code = subprocess.run(
            argv, cwd=root, env=_environment(root), stdout=stream, stderr=stream, check=False
        ).returncode
    if code != 0:
        print(f"{path.relative_to(root)} does not pass as it is: its failing tests are left out ({log})", flush=True)


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, **THREADS, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}


class _Recorder:
    """Pytest plugin: tells coverage which test runs, and keeps its seconds and outcome."""

    def __init__(self, measured: Any) -> None:
        self._measured = measured
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """A few random examples reach what many reach."""
        from hypothesis import settings

        for test in {item.function for item in items}:
            chosen = getattr(test, "_hypothesis_internal_use_settings", None)
            if chosen is not None:
                test._hypothesis_internal_use_settings = settings(chosen, max_examples=5)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._measured.switch_context(nodeid.split("[")[0])

    def pytest_runtest_logreport(self, report: Any) -> None:
        test = report.nodeid.split("[")[0]
        self.seconds[test] = self.seconds.get(test, 0.0) + report.duration
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
    code = pytest.main([file, "-q", "-p", "no:cacheprovider", "-p", "no:xdist"], plugins=[recorder])
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
    Path(record).write_text(json.dumps({"digest": _digest(Path(file)), "tests": tests}), encoding="utf-8")
    return int(code)


class Server:
    """A process that has imported the libraries and forks for every run of tests in one tree."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        argv, pipe = [sys.executable, __file__, "serve"], subprocess.PIPE
        self._process = subprocess.Popen(argv, cwd=tree, env=_environment(tree), stdin=pipe, stdout=pipe, text=True)

    def fails(self, tests: list[str], *, limit: float) -> bool:
        """Whether one of the tests fails, or all together take longer than the limit."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"tests": tests, "limit": limit}) + "\n")
        self._process.stdin.flush()
        code = json.loads(self._process.stdout.readline())
        if code not in (0, *FAILED):
            sys.exit(f"pytest ended with {code}: {(self.tree / 'mutant.log').read_text()[-2000:]}")
        return code in FAILED

    def stop(self) -> None:
        """End the process."""
        self._process.communicate()


def _serve() -> int:
    for library in LIBRARIES:
        importlib.import_module(library)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            code = _run(request["tests"])
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        print(_ended(child, time.monotonic() + request["limit"]), flush=True)
    return 0


def _ended(child: int, until: float) -> int:
    """The exit code of a child, which is killed with its own children if it is late."""
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL


def _run(tests: list[str]) -> int:
    import pytest

    os.setsid()
    with open("mutant.log", "wb") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    try:
        return int(pytest.main([*tests, *OPTIONS]))
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return 3


if __name__ == "__main__":
    sys.exit(_record(sys.argv[2], sys.argv[3]) if sys.argv[1] == "collect" else _serve())
