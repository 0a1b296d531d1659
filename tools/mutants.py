"""Change the code in one small way, run the quick tests that reach the changed function, print what no test saw.

python tools/mutants.py                                     40 mutations in each package
python tools/mutants.py --only cost --count 30 --seed 7     the mutations of an earlier run
python tools/mutants.py --processes 20                      mutations that only real processes of PyTorch reach
python tools/mutants.py --list tools/hand_mutants.json      mutations that a reader wrote: file, old and new text, tests

Each mutation is applied to a copy of the tree; its tests are those that call the changed function, which is recorded
first for every file of tests that is new or changed. Verdicts are kept in results/mutants: a run that was stopped goes
on where it was; what was caught is not tried again while its file is the same, and what survived is tried again with
other tests. A mutation that no test could see because it changes nothing is listed with its reason in
tools/equivalent_mutants.txt and not drawn. The exit code is 1 if fewer than 85 % are caught in a package.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from queue import SimpleQueue

from mutation_sites import Mutation, by_hand, mutations_of
from mutation_tests import FOLDERS, PACKAGES, Reach, Server, Verdict, digest, read_reach, test_files

ROOT = Path(__file__).parents[1]
SOURCE = Path("src/paceline")
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
RECORDS = ROOT / "results" / "mutants"
VERDICTS = RECORDS / "verdicts.jsonl"
LEAST = 0.85
PROCESSES = {
    "runtime/auto/": "test_auto.py",
    "runtime/capture.py": "test_capture.py",
    "runtime/counting.py": "test_capture.py",
    "runtime/checkpoint.py": "test_checkpoint.py",
    "runtime/large/": "test_large.py",
    "runtime/launch.py": "test_measured.py",
    "runtime/measured.py": "test_measured.py",
    "runtime/members/": "test_faults.py",
    "runtime/syncer/": "test_syncer.py",
    "runtime/keras/": "test_keras.py",
    "runtime/group/mpi.py": "test_mpi.py",
    "runtime/group/gloo_sockets.py": "test_gloo_sockets.py",
    "runtime/": "test_exactness.py",
}
"""Tests with real processes of PyTorch, for functions that no test in the same process reaches; the first that fits."""
SECONDS = 30.0
"""Tests of one mutation: those that together take this long."""
LIMIT = 12.0
"""Seconds that a file of tests with processes takes, roughly: its time limit follows from it."""

Tests = list[tuple[str, float]]


def main() -> int:
    """Draw mutations, run their tests, print the table; 1 if too few are caught."""
    options = _options()
    os.nice(max(0, 10 - os.nice(0)))
    RECORDS.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ExitStack() as stack:
        trials = _trials(Path(folder), options.jobs)
        for trial in trials:
            stack.callback(trial.stop)
        drawn = _drawn(options, _recorded(trials))
        print(f"seed {options.seed}: {len(drawn)} mutations", flush=True)
        verdicts = _verdicts(drawn, trials)
    minutes, counts = (time.monotonic() - started) / 60, _counts(drawn, verdicts)
    if options.json:
        _write(options, drawn, verdicts, minutes)
    print(f"\nseed {options.seed}, {minutes:.0f} min", "", *table(counts), sep="\n")
    return 0 if _reached(counts) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PACKAGES), metavar="PACKAGES")
    parser.add_argument("--count", type=int, default=40, help="mutations of each package, of what quick tests reach")
    parser.add_argument(
        "--files", metavar="PREFIX", default="", help="only of files whose path in the package begins so"
    )
    parser.add_argument("--processes", type=int, metavar="COUNT", help="instead: of what only PyTorch processes reach")
    parser.add_argument("--list", type=Path, metavar="FILE", help="instead: those of this file")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--jobs", type=int, default=2, help="mutations at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write seed, counts and survivors")
    options = parser.parse_args()
    unknown = set(options.only) - set(PACKAGES)
    if unknown or options.count < 1 or options.jobs < 1:
        parser.error(f"--only takes some of {', '.join(PACKAGES)}; --count and --jobs at least 1")
    return options


def _trials(folder: Path, jobs: int) -> list[Trial]:
    """Copies of the tree, each with its servers."""
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda number: Trial(_copy(folder / str(number) / "tree")), range(jobs)))


def _recorded(trials: list[Trial]) -> Reach:
    """Which tests reach what; files of tests that are new or changed are recorded first."""
    records = {file: RECORDS / ("-".join(file.parts) + ".json") for file in test_files(ROOT)}
    stale = [file for file, record in records.items() if _is_stale(file, record)]
    if stale:
        print(f"recording which functions {len(stale)} files of tests reach", flush=True)
    _share(trials, stale, lambda trial, file: trial.record(file, records[file]))
    return read_reach(records.values())


def _is_stale(file: Path, record: Path) -> bool:
    if not record.exists():
        return True
    return bool(json.loads(record.read_text(encoding="utf-8"))["digest"] != digest(file.read_bytes()))


def _share(trials: list[Trial], work: list, do: Callable) -> None:  # type: ignore[type-arg]
    """Do all of the work, each piece in the trial that is free next."""
    waiting: SimpleQueue = SimpleQueue()  # type: ignore[type-arg]
    for piece in work:
        waiting.put(piece)

    def until_empty(trial: Trial) -> None:
        while not waiting.empty():
            do(trial, waiting.get())

    with ThreadPoolExecutor(len(trials)) as pool:
        list(pool.map(until_empty, trials))


def _drawn(options: argparse.Namespace, reach: Reach) -> list[tuple[Mutation, Tests]]:
    """Mutations with their tests: of each package, those of a list, or of the runtime that only processes reach."""
    if options.list:
        return list(_listed(options.list, reach))
    if options.processes:
        unreached = (one for one in _shuffled("runtime", options) if one.function and not _quick_tests(one, reach))
        return [(one, _process_tests(one)) for one in islice(unreached, options.processes)]
    found: list[tuple[Mutation, Tests]] = []
    for package in options.only:
        pairs = ((one, _quick_tests(one, reach)) for one in _shuffled(package, options))
        found += islice((pair for pair in pairs if pair[1] or package != "runtime"), options.count)
    return found


def _listed(path: Path, reach: Reach) -> Iterator[tuple[Mutation, Tests]]:
    """Mutations of a list; one whose text is not there exactly once is named and left out: the code has changed."""
    for entry in json.loads(path.read_text(encoding="utf-8")):
        file = SOURCE / entry["file"]
        before, old = file.read_text(encoding="utf-8"), entry["old"]
        if before.count(old) != 1:
            print(f"left out, its text has changed: {entry['file']}: {old.strip()[:80]}", flush=True)
            continue
        mutation = by_hand(file, before, old, entry["new"])
        tests = [(test, LIMIT) for test in entry.get("tests", [])]
        yield mutation, tests or _quick_tests(mutation, reach)


def _shuffled(package: str, options: argparse.Namespace) -> Iterator[Mutation]:
    """Mutations of one package, each function about as likely as its size, none listed as equivalent."""
    listed = {line.split("  # ")[0] for line in EQUIVALENT.read_text(encoding="utf-8").splitlines()}
    folder = ROOT / SOURCE / package
    files = (*folder.rglob("*.py"), *folder.parent.glob(f"{package}.py"))
    paths = sorted(
        path
        for path in files
        if path.parent == folder.parent or str(path.relative_to(folder)).startswith(options.files)
    )
    found = [one for path in paths for one in mutations_of(path.relative_to(ROOT), path.read_text(encoding="utf-8"))]
    random.Random(f"{package}{options.seed}").shuffle(found)
    return (one for one in found if one.compiles() and one.key not in listed)


def _quick_tests(mutation: Mutation, reach: Reach) -> Tests:
    return reach.tests_of(mutation.path.relative_to(SOURCE).as_posix(), mutation.function, SECONDS)


def _process_tests(mutation: Mutation) -> Tests:
    file = mutation.path.relative_to(SOURCE).as_posix()
    test = next(test for start, test in PROCESSES.items() if file.startswith(start))
    return [(f"tests/integration/runtime/{test}", LIMIT)]


def _verdicts(drawn: list[tuple[Mutation, Tests]], trials: list[Trial]) -> list[str]:
    """What became of each mutation: known from before, or tested now."""
    known = _known()
    verdicts: dict[int, str] = {}
    lock = threading.Lock()

    def judge(trial: Trial, number: int) -> None:
        mutation, tests = drawn[number]
        verdict = _of_before(known, mutation, tests)
        new = verdict is None
        verdict = verdict or trial.verdict(mutation, tests)
        with lock, VERDICTS.open("a", encoding="utf-8") as file:
            verdicts[number] = verdict
            if new:
                line = {"mutation": _identity(mutation), "tests": _content(tests), "verdict": verdict}
                print(json.dumps(line), file=file)
            if verdict not in Verdict.SEEN:
                _tell(mutation, verdict, tests)
            if len(verdicts) % 10 == 0:
                seen = sum(one in Verdict.SEEN for one in verdicts.values())
                print(f"{len(verdicts)} of {len(drawn)}: {seen} caught", flush=True)

    _share(trials, list(range(len(drawn))), judge)
    return [verdicts[number] for number in range(len(drawn))]


def _known() -> dict[str, dict[str, str]]:
    if not VERDICTS.exists():
        return {}
    lines = [json.loads(line) for line in VERDICTS.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return {line["mutation"]: line for line in lines}


def _of_before(known: dict[str, dict[str, str]], mutation: Mutation, tests: Tests) -> str | None:
    """The verdict of an earlier run: a survivor is tried again when its tests are others."""
    found = known.get(_identity(mutation))
    if found is None or (found["verdict"] not in Verdict.SEEN and found["tests"] != _content(tests)):
        return None
    return found["verdict"]


def _identity(mutation: Mutation) -> str:
    return digest(mutation.after.encode())


def _content(tests: Tests) -> str:
    files = sorted({test.split("::")[0] for test, _ in tests})
    return digest("".join([*(test for test, _ in tests), *(digest((ROOT / f).read_bytes()) for f in files)]).encode())


def _copy(tree: Path) -> Path:
    left = shutil.ignore_patterns(".venv", ".git", "results", "__pycache__", ".*_cache", ".hypothesis", "dist")
    shutil.copytree(ROOT, tree, ignore=left)
    shutil.copytree(ROOT / "benchmarks" / "results", tree / "benchmarks" / "results", dirs_exist_ok=True)
    (tree / ".venv").symlink_to(ROOT / ".venv")
    compileall.compile_dir(tree / "src", quiet=2)
    return tree


class Trial:
    """Mutations in a copy of the tree, one after the other."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._hot, self._cold = Server(tree, hot=True), Server(tree)
        self._sound: dict[str, bool] = {}
        """Whether a test that failed passes without a mutation."""

    def record(self, file: Path, to: Path) -> None:
        """Write which functions the tests of a file reach."""
        self._hot.record(file, to)

    def verdict(self, mutation: Mutation, tests: Tests) -> str:
        """Whether the tests see a mutation; a test that fails without one counts for nothing."""
        while True:
            sound = [(test, seconds) for test, seconds in tests if self._sound.get(test, True)]
            if not sound:
                return Verdict.UNREACHED
            verdict, failed = self._mutated(mutation, sound)
            if failed is None or self._is_sound(failed):
                return verdict

    def _mutated(self, mutation: Mutation, tests: Tests) -> tuple[str, str | None]:
        """The verdict and the test that failed."""
        target = self._tree / mutation.path
        target.write_text(mutation.after, encoding="utf-8")
        Path(importlib.util.cache_from_source(str(target))).unlink(missing_ok=True)
        names, limit = [test for test, _ in tests], 20 + 5 * sum(seconds for _, seconds in tests)
        collected = "::" in names[0]
        try:
            for server in (self._hot, self._cold)[0 if collected else 1 :]:
                verdict = server.verdict(names, limit=limit, mutation=mutation)
                if verdict is not None:
                    break
        finally:
            target.write_text(mutation.before, encoding="utf-8")
        assert verdict is not None
        return verdict, server.failed_test if verdict == Verdict.CAUGHT else None

    def _is_sound(self, test: str) -> bool:
        if test not in self._sound:
            collected = "::" in test and test.startswith(FOLDERS)
            server = self._hot if collected else self._cold
            self._sound[test] = server.verdict([test], limit=600) == Verdict.SURVIVED
            if not self._sound[test]:
                print(f"fails without a mutation, and is left out: {test}", flush=True)
        return self._sound[test]

    def stop(self) -> None:
        """End both servers."""
        self._hot.stop()
        self._cold.stop()


def _tell(mutation: Mutation, verdict: str, tests: Tests) -> None:
    where = f"{mutation.path}:{mutation.line} {mutation.function or '(module)'}"
    print(f"{verdict} ({len(tests)} tests): {where} ({mutation.kind})\n{mutation.diff()}\n", flush=True)


def _write(
    options: argparse.Namespace, drawn: list[tuple[Mutation, Tests]], verdicts: list[str], minutes: float
) -> None:
    """Seed, counts and what was not caught, as JSON."""
    pairs = [(mutation, verdict) for (mutation, _), verdict in zip(drawn, verdicts, strict=True)]
    missed = [{"mutation": mutation.key, "kind": mutation.kind, "verdict": verdict}
              for mutation, verdict in pairs if verdict not in Verdict.SEEN]  # fmt: skip
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    content = {"seed": options.seed, "count": options.count, "commit": commit, "minutes": round(minutes, 1),
               "verdicts": _counts(drawn, verdicts), "missed": missed}  # fmt: skip
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _counts(drawn: list[tuple[Mutation, Tests]], verdicts: list[str]) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for (mutation, _), verdict in zip(drawn, verdicts, strict=True):
        counts.setdefault(Path(mutation.path.parts[2]).stem, Counter())[verdict] += 1
    return counts


def table(counts: dict[str, Counter[str]]) -> list[str]:
    """Rows by package: mutations, caught, those of them that took too long, share."""
    rows = ["| package | mutations | caught | of these by the time limit | share |", "|---|---|---|---|---|"]
    for name, count in counts.items():
        total, seen = sum(count.values()), sum(count.get(verdict, 0) for verdict in Verdict.SEEN)
        rows.append(f"| {name} | {total} | {seen} | {count.get(Verdict.LATE, 0)} | {seen / total:.0%} |")
    return rows


def _reached(counts: dict[str, Counter[str]]) -> bool:
    return all(sum(one[seen] for seen in Verdict.SEEN) >= LEAST * one.total() for one in counts.values())


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
