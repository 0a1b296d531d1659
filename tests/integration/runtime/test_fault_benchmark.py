"""The benchmark of faults itself: it runs, and its books find what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.mark.full
@pytest.mark.alone
def test_a_kill_and_the_death_of_a_group_are_survived(tmp_path: Path) -> None:
    argv = [
        sys.executable,
        str(BENCHMARKS / "faults.py"),
        "--fault",
        "kill,group",
        "--times",
        "1",
        "--json",
        str(tmp_path / "result.json"),
    ]
    done = subprocess.run(
        [*argv, "--results", str(tmp_path / "faults.jsonl")], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "result.json").read_text())["turns"]
    assert found["kill"]["times"] == found["group"]["times"] == 1
    assert found["kill"]["starved"] or found["kill"]["go_on_s"]["max"] < 2.0


class Written:
    """A job of two ranks that wrote these lines."""

    samples, batch, stopped = 8, 4, float("inf")
    names = ("a", "b")

    def __init__(self, **lines: list[dict[str, Any]]) -> None:
        self._lines = lines

    def steps(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self._lines[name] if "step" in line]

    def lines(self, name: str) -> list[dict[str, Any]]:
        return self._lines[name]


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from lib.commit_audit import Absence, audit_commits

    return lambda absences=(), **lines: audit_commits(Written(**lines), [Absence(*absence) for absence in absences])


def lines(name: str, *changed: tuple[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Three steps of half a batch each."""
    from paceline.runtime.samples import epoch_order

    half = slice(0, 2) if name == "a" else slice(2, 4)
    found = []
    for step in (1, 2, 3):
        epoch, place = divmod(step - 1, 2)
        samples = epoch_order(8, seed=0, epoch=epoch)[4 * place : 4 * place + 4][half].tolist()
        record = {"step": step, "samples": samples, "size": 2, "at": float(step)}
        found.append({**record, "from": f"h{step - 1}", "hash": f"h{step}"} | dict(changed).get(step, {}))
    return found


BALANCED = {"steps": 3, "lost_steps": 0, "unfinished": 0, "samples_used_twice": 0, "samples_left_out": 0}
BALANCED["unequal_ends"] = 0


def test_books_balance_where_nothing_happened(books: Any) -> None:
    assert books(a=lines("a"), b=lines("b")) == BALANCED


def test_books_find_samples_that_were_used_twice(books: Any) -> None:
    twice = lines("a")[1]["samples"]
    found = books(a=lines("a"), b=lines("b", (2, {"samples": twice})))
    assert found["samples_used_twice"] == 2
    assert found["samples_left_out"] == 2


def test_books_find_a_step_that_somebody_committed_and_others_did_otherwise(books: Any) -> None:
    other = lines("b", (2, {"hash": "other"}))
    assert books(a=lines("a"), b=other)["lost_steps"] == 1
    excused = books([("b", 1.5, 2.5)], a=lines("a"), b=other)
    assert (excused["lost_steps"], excused["unfinished"]) == (0, 1)


@pytest.mark.parametrize(("last", "final", "unequal"), [(3, "h3", 0), (3, "other", 1), (2, "h2", 1)])
def test_books_find_ranks_that_end_with_other_parameters(books: Any, last: int, final: str, unequal: int) -> None:
    ends = [{"ended": 4.0, "last": 3, "final": "h3"}], [{"ended": 4.0, "last": last, "final": final}]
    assert books(a=lines("a") + ends[0], b=lines("b") + ends[1])["unequal_ends"] == unequal


def test_books_find_a_step_that_nobody_wrote(books: Any) -> None:
    found = books(a=lines("a")[::2], b=lines("b")[::2])
    assert found["lost_steps"] > 0


def test_books_do_not_count_samples_of_a_step_that_was_taken_over(books: Any) -> None:
    whole = [*lines("a")[1]["samples"], *lines("b")[1]["samples"]]
    found = books(a=lines("a", (2, {"samples": whole, "size": 1})), b=lines("b", (2, {"size": 0})))
    assert found == BALANCED
