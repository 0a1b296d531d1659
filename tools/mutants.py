"""Change the code in one small way, run the quick tests that reach the changed function, print what no test saw.

python tools/mutants.py                                     40 mutations in each package
python tools/mutants.py --only cost --count 30 --seed 7     the mutations of an earlier run
python tools/mutants.py --processes 20                      mutations that only real processes of PyTorch reach

Each mutation is applied to a copy of the tree. Its tests are the files that import the changed module, and then those
that import the modules that use it; after `--collect`, which takes half an hour, also every other test that reaches the
changed function. Verdicts are kept in results/mutants: a run that was stopped goes on where it was; what was caught is
not tried again while its file is the same, and what survived is tried again with other tests. A mutation that no test
could see because it changes nothing is listed with its reason in tools/equivalent_mutants.txt and not drawn. The exit
code is 1 if fewer than 85 % are caught in a package.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from mutation_sites import Mutation, mutations_of
from mutation_tests import PACKAGES, Reach, Server, Verdict, digest, importing_tests, reaches

ROOT = Path(__file__).parents[1]
SOURCE = Path("src/paceline")
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
VERDICTS = ROOT / "results" / "mutants" / "verdicts.jsonl"
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
SECONDS = 15.0
"""Tests of one mutation: the quickest that together take this long."""
ASSUMED = 5.0
"""Seconds of a file of tests, for the time limit."""
LIMIT = 12.0
"""Seconds that a file of tests with processes takes, roughly: its time limit follows from it."""

Tests = list[tuple[str, float]]


def main() -> int:
    """Draw mutations, run their tests, print the table; 1 if too few are caught."""
    options = _options()
    os.nice(10)
    reach = reaches(ROOT, options.collect)
    if options.collect is not None:
        return 0
    started = time.monotonic()
    drawn = _drawn(options, reach)
    print(f"seed {options.seed}: {len(drawn)} mutations", flush=True)
    verdicts = _verdicts(drawn)
    if options.json:
        _write(options, drawn, verdicts)
    return _table(drawn, verdicts, options.seed, time.monotonic() - started)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PACKAGES), metavar="PACKAGES")
    parser.add_argument("--count", type=int, default=40, help="mutations of each package, of what quick tests reach")
    parser.add_argument("--processes", type=int, metavar="COUNT", help="instead: of what only PyTorch processes reach")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write seed, counts and survivors")
    parser.add_argument(
        "--collect", nargs="*", metavar="TEST_FILE", help="record which tests reach what, of these files anew, and end"
    )
    options = parser.parse_args()
    unknown = set(options.only) - set(PACKAGES)
    if unknown or options.count < 1:
        parser.error(f"--only takes some of {', '.join(PACKAGES)}; --count at least 1")
    return options


def _drawn(options: argparse.Namespace, reach: Reach) -> list[tuple[Mutation, Tests]]:
    """Mutations with their tests: of each package, or those of the runtime that only processes reach."""
    if options.processes:
        unreached = (one for one in _shuffled("runtime", options.seed) if one.function and not _quick_tests(one, reach))
        return [(one, _process_tests(one)) for one in islice(unreached, options.processes)]
    found: list[tuple[Mutation, Tests]] = []
    for package in options.only:
        pairs = ((one, _quick_tests(one, reach)) for one in _shuffled(package, options.seed))
        found += islice((pair for pair in pairs if pair[1] or package != "runtime"), options.count)
    return found


def _shuffled(package: str, seed: int) -> Iterator[Mutation]:
    """Mutations of one package, each function about as likely as its size, none listed as equivalent."""
    listed = {line.split("  # ")[0] for line in EQUIVALENT.read_text(encoding="utf-8").splitlines()}
    paths = sorted((ROOT / SOURCE / package).rglob("*.py"))
    found = [one for path in paths for one in mutations_of(path.relative_to(ROOT), path.read_text(encoding="utf-8"))]
    random.Random(f"{package}{seed}").shuffle(found)
    return (one for one in found if one.compiles() and one.key not in listed)


def _quick_tests(mutation: Mutation, reach: Reach) -> Tests:
    file = mutation.path.relative_to(SOURCE).as_posix()
    near = importing_tests(ROOT, file)
    recorded = reach.tests_of(file, mutation.function, SECONDS)
    return [(test, ASSUMED) for test in near] + [one for one in recorded if one[0].split("::")[0] not in near]


def _process_tests(mutation: Mutation) -> Tests:
    file = mutation.path.relative_to(SOURCE).as_posix()
    test = next(test for start, test in PROCESSES.items() if file.startswith(start))
    return [(f"tests/integration/runtime/{test}", LIMIT)]


def _verdicts(drawn: list[tuple[Mutation, Tests]]) -> list[str]:
    """What became of each mutation: known from before, or tested now."""
    known = _known()
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, VERDICTS.open("a", encoding="utf-8") as file:
        trial = Trial(_copy(Path(folder) / "tree"))
        for number, (mutation, tests) in enumerate(drawn, 1):
            verdict = _of_before(known, mutation, tests)
            if verdict is None:
                verdict = trial.verdict(mutation, tests)
                line = {"mutation": _identity(mutation), "tests": _content(tests), "verdict": verdict}
                print(json.dumps(line), file=file, flush=True)
            verdicts.append(verdict)
            if verdict not in Verdict.SEEN:
                _tell(mutation, verdict, tests)
            if number % 10 == 0:
                seen = sum(one in Verdict.SEEN for one in verdicts)
                print(f"{number} of {len(drawn)}: {seen} caught", flush=True)
        trial.stop()
    return verdicts


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
        names, limit = [test for test, _ in tests], 30 + 8 * sum(seconds for _, seconds in tests)
        verdict = Verdict.SURVIVED
        try:
            for server in (self._hot, self._cold):
                verdict = server.verdict(names, limit=limit, mutation=mutation)
                if verdict != Verdict.SURVIVED:
                    return verdict, server.failed_test if verdict == Verdict.CAUGHT else None
        finally:
            target.write_text(mutation.before, encoding="utf-8")
        return verdict, None

    def _is_sound(self, test: str) -> bool:
        if test not in self._sound:
            self._sound[test] = self._hot.verdict([test], limit=600) == Verdict.SURVIVED
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


def _write(options: argparse.Namespace, drawn: list[tuple[Mutation, Tests]], verdicts: list[str]) -> None:
    """Seed, counts and what was not caught, as JSON."""
    pairs = [(mutation, verdict) for (mutation, _), verdict in zip(drawn, verdicts, strict=True)]
    counts: dict[str, Counter[str]] = {}
    for mutation, verdict in pairs:
        counts.setdefault(mutation.path.parts[2], Counter())[verdict] += 1
    missed = [{"mutation": mutation.key, "kind": mutation.kind, "verdict": verdict}
              for mutation, verdict in pairs if verdict not in Verdict.SEEN]  # fmt: skip
    content = {"seed": options.seed, "count": options.count, "verdicts": counts, "missed": missed}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _table(drawn: list[tuple[Mutation, Tests]], verdicts: list[str], seed: int, seconds: float) -> int:
    counts: dict[str, Counter[str]] = {}
    for (mutation, _), verdict in zip(drawn, verdicts, strict=True):
        counts.setdefault(mutation.path.parts[2], Counter())[verdict] += 1
    print(f"\nseed {seed}, {seconds / 60:.0f} min\n")
    print("| package | mutations | caught | of these by the time limit | share |\n|---|---|---|---|---|")
    shares = []
    for name, count in counts.items():
        seen = sum(count[verdict] for verdict in Verdict.SEEN)
        shares.append(seen / count.total())
        print(f"| {name} | {count.total()} | {seen} | {count[Verdict.LATE]} | {shares[-1]:.0%} |")
    return 0 if all(share >= LEAST for share in shares) else 1


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
