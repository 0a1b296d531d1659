"""Change the code in one small way, run the tests that reach the changed function, and print changes that no test saw.

python tools/mutants.py                                     40 mutations in each package
python tools/mutants.py --only cost --count 30 --seed 7     the mutations of an earlier run

Each mutation is applied to a copy of the tree. Which tests reach which function is recorded once for every test file
and kept in results/mutants. A mutation that no test could see because it changes nothing is listed with its reason in
tools/equivalent_mutants.txt and not drawn. The exit code is 1 if fewer than 85 % of a package's mutations are caught.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import os
import random
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from mutation_sites import Mutation, mutations_of
from mutation_tests import PACKAGES, Reach, Server, reaches

ROOT = Path(__file__).parents[1]
SOURCE = Path("src/paceline")
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
LEAST = 0.85
PROCESSES = {
    "runtime/auto/": "test_auto.py",
    "runtime/capture.py": "test_capture.py",
    "runtime/checkpoint.py": "test_faults.py",
    "runtime/large/": "test_large.py",
    "runtime/launch.py": "test_measured.py",
    "runtime/measured.py": "test_measured.py",
    "runtime/members/": "test_faults.py",
    "runtime/syncer/": "test_syncer.py",
    "runtime/": "test_exactness.py",
}
"""Tests with real processes of PyTorch, for functions that no test in the same process reaches; the first that fits."""
SECONDS = 20.0
"""Tests of one mutation: the quickest that together take this long."""


def main() -> int:
    """Draw mutations, run their tests, print the table; 1 if too few are caught."""
    options = _options()
    reach = reaches(ROOT, options.only, options.collect)
    if options.collect is not None:
        return 0
    print(f"seed {options.seed}: {options.count} mutations per package", flush=True)
    started = time.monotonic()
    drawn = [one for package in options.only for one in _draw(package, options.count, options.seed)]
    caught = _verdicts(drawn, reach, options.workers)
    survivors = [one for one, seen in zip(drawn, caught, strict=True) if not seen]
    return _table(drawn, survivors, options, time.monotonic() - started)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PACKAGES), metavar="PACKAGES")
    parser.add_argument("--count", type=int, default=40, help="mutations of each package")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--collect", nargs="*", metavar="TEST_FILE", help="record again which tests reach what, and end"
    )
    options = parser.parse_args()
    unknown = set(options.only) - set(PACKAGES)
    if unknown or options.count < 1:
        parser.error(f"--only takes some of {', '.join(PACKAGES)}; --count at least 1")
    return options


def _draw(package: str, count: int, seed: int) -> list[Mutation]:
    """Mutations of one package, each function about as likely as its size, none listed as equivalent."""
    listed = {line.split("  # ")[0] for line in EQUIVALENT.read_text(encoding="utf-8").splitlines()}
    paths = sorted((ROOT / SOURCE / package).rglob("*.py"))
    found = [one for path in paths for one in mutations_of(path.relative_to(ROOT), path.read_text(encoding="utf-8"))]
    random.Random(f"{package}{seed}").shuffle(found)
    return [one for one in found if one.key not in listed][:count]


def _verdicts(drawn: list[Mutation], reach: Reach, workers: int) -> list[bool]:
    """Whether each mutation is caught; every worker has its own copy of the tree."""
    free: SimpleQueue[Server] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(workers) as pool:
        for index in range(workers):
            free.put(Server(_copy(Path(folder) / str(index))))
        _check_unchanged(drawn, free, reach)

        def judge(mutation: Mutation) -> bool:
            server = free.get()
            try:
                return _caught(mutation, server, reach)
            finally:
                (server.tree / mutation.path).write_text(mutation.before, encoding="utf-8")
                free.put(server)

        found = list(pool.map(judge, drawn))
        for _ in range(workers):
            free.get().stop()
    return found


def _check_unchanged(drawn: list[Mutation], free: SimpleQueue[Server], reach: Reach) -> None:
    """Without a mutation the tests pass; else every mutation would look caught."""
    server = free.get()
    free.put(server)
    tests = {test for one in drawn for test, _ in _tests_of(one, reach)[:2] if "::" in test}
    if server.fails(sorted(tests), limit=1800):
        sys.exit(f"tests fail without a mutation: {(server.tree / 'mutant.log').read_text()[-2000:]}")


def _tests_of(mutation: Mutation, reach: Reach) -> list[tuple[str, float]]:
    file = mutation.path.relative_to(SOURCE).as_posix()
    found = reach.tests_of(file, mutation.function, SECONDS)
    if found or not file.startswith("runtime/"):
        return found
    test = next(test for start, test in PROCESSES.items() if file.startswith(start))
    return [(f"tests/integration/runtime/{test}", 60.0)]


def _copy(tree: Path) -> Path:
    left = shutil.ignore_patterns(".venv", ".git", "results", "__pycache__", ".*_cache", ".hypothesis", "dist")
    shutil.copytree(ROOT, tree, ignore=left)
    shutil.copytree(ROOT / "benchmarks" / "results", tree / "benchmarks" / "results", dirs_exist_ok=True)
    (tree / ".venv").symlink_to(ROOT / ".venv")
    compileall.compile_dir(tree / "src", quiet=2)
    return tree


def _caught(mutation: Mutation, server: Server, reach: Reach) -> bool:
    tests = _tests_of(mutation, reach)
    if not tests:
        _tell(mutation, "no test reaches it")
        return False
    target = server.tree / mutation.path
    target.write_text(mutation.after, encoding="utf-8")
    Path(importlib.util.cache_from_source(str(target))).unlink(missing_ok=True)
    seen = server.fails([test for test, _ in tests], limit=60 + 6 * sum(seconds for _, seconds in tests))
    if not seen:
        _tell(mutation, f"{len(tests)} tests pass")
    return seen


def _tell(mutation: Mutation, why: str) -> None:
    where = f"{mutation.path}:{mutation.line} {mutation.function or '(module)'}"
    print(f"survived ({why}): {where} ({mutation.kind})\n{mutation.diff()}\n", flush=True)


def _table(drawn: list[Mutation], survivors: list[Mutation], options: argparse.Namespace, seconds: float) -> int:
    counts, lost = defaultdict(int), defaultdict(int)
    for one in drawn:
        counts[one.path.parts[2]] += 1
    for one in survivors:
        lost[one.path.parts[2]] += 1
    print(f"\npackage        caught   of  share   (seed {options.seed}, {seconds / 60:.0f} min)")
    shares = {name: 1 - lost[name] / counts[name] for name in counts}
    for name, share in shares.items():
        print(f"{name:14} {counts[name] - lost[name]:6} {counts[name]:4} {share:6.0%}")
    return 0 if all(share >= LEAST for share in shares.values()) else 1


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
