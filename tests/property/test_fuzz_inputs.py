"""Mutants of every kind of input file are read or refused; thousands more in benchmarks/fuzz_inputs.py."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.property.inputs import KINDS, fuzz, outcome

FEW = {
    "run": 8,
    "rows": 8,
    "imported": 30,
    "operations": 60,
    "campaign": 50,
    "log": 60,
    "nccl-tests": 60,
    "nccl-json": 60,
}
"""Mutants of kinds whose use goes through a store, which takes milliseconds."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) if name == "checkpoint" else name for name in KINDS]
)
def test_sound_files_are_read(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    (tmp_path / "clusters").mkdir()
    folder = tmp_path / "studies"
    folder.mkdir()
    for path in (Path(__file__).parents[2] / "examples" / "clusters").iterdir():
        (tmp_path / "clusters" / path.name).write_bytes(path.read_bytes())
    for text in kind.texts(folder):
        path = folder / f"given{kind.suffix}"
        path.write_bytes(text)
        assert outcome(kind, path) == "valid"


@pytest.mark.parametrize(("name", "count"), [*((name, FEW.get(name, 100)) for name in KINDS if name != "checkpoint"),
                                             *(pytest.param(name, 1000 if FEW.get(name, 100) > 50 else 200,
                                                            marks=pytest.mark.full) for name in KINDS)])  # fmt: skip
def test_mutants_are_read_or_refused(name: str, count: int, tmp_path: Path) -> None:
    found = Counter(result for _, result in fuzz(name, count, tmp_path / "x", seed=5))
    assert set(found) <= {"valid", "refused"}, found
    assert found["refused"] > count / 10
