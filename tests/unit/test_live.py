"""Records of a running training, looked at now and then: who became slow is reported once, while it runs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from paceline.integrations.live import WINDOW, Alert, LiveWatch
from paceline.integrations.watching import Watch
from paceline.report.terminal.watched import alert_line
from paceline.runtime.watch.job import read_records
from paceline.runtime.watch.recorder import Recorder


class Ranks:
    """Two ranks that append rows to their records as the recorder does."""

    def __init__(self, folder: Path, world: int = 2) -> None:
        self.folder, self.world, self.step = folder, world, 9
        self.random = np.random.default_rng(5)

    def train(self, steps: int, *slow: int, factor: float = 1.0) -> None:
        """Steps of 20 ms with 2 % of noise; some ranks are slower, and the others wait for them in the exchange."""
        rows: dict[int, list[list[float]]] = {rank: [] for rank in range(self.world)}
        for step in range(self.step, self.step + steps):
            usual = 0.02 * (1 + 0.02 * self.random.standard_normal(self.world))
            work = {rank: float(usual[rank]) * (factor if rank in slow else 1.0) for rank in range(self.world)}
            for rank, own in work.items():
                waits = max(work.values()) - own + 0.001
                rows[rank].append([step, 0.02 * step, own + waits, 0.001, 0, own - 0.002, 0, waits, 0.001])
        self.step += steps
        for rank, found in rows.items():
            facts = {"event": "facts", "rank": rank, "world": self.world, "host": f"node{rank}", "steps": self.step}
            with (self.folder / f"process-{7 + rank}.jsonl").open("a") as file:
                file.write(json.dumps({"event": "rows", "rows": found}) + "\n" + json.dumps(facts) + "\n")


def watch(ranks: Ranks, looks: int, steps: int, *slow: int, factor: float = 1.0, live: LiveWatch) -> list[Alert]:
    found = []
    for _ in range(looks):
        ranks.train(steps, *slow, factor=factor)
        found += live.look()
    return found


def test_a_rank_that_becomes_slow_is_reported_once_with_its_step(tmp_path: Path) -> None:
    ranks, live = Ranks(tmp_path), LiveWatch(tmp_path)
    assert watch(ranks, 9, 10, live=live) == []
    onset = ranks.step
    found = watch(ranks, 6, 10, 1, factor=2.5, live=live)
    (alert,) = found
    assert (alert.rank, alert.host, alert.phase) == (1, "node1", "forward")
    assert abs(alert.since - onset) <= 1
    assert alert.at_step <= onset + 35
    assert alert.factor == pytest.approx(2.5, rel=0.1)
    assert live.documents == [vars(alert)]
    assert f"rank 1 on node1 is slow since step {alert.since}: a step's work takes 2." in alert_line(vars(alert))
    assert watch(ranks, 26, 10, 1, factor=2.5, live=live) == [], "once is enough, also when the onset leaves the window"


def test_every_rank_that_becomes_slow(tmp_path: Path) -> None:
    ranks, live = Ranks(tmp_path), LiveWatch(tmp_path)
    watch(ranks, 9, 10, live=live)
    (alert,) = watch(ranks, 6, 10, 0, 1, factor=1.5, live=live)
    assert (alert.rank, alert.host) == (None, "")
    assert alert.factor == pytest.approx(1.5, rel=0.05)
    assert "every rank is slow" in alert_line(vars(alert))


def test_steady_ranks_a_late_start_and_a_short_dip_are_no_alert(tmp_path: Path) -> None:
    """A rank that was always slower did not become slow: the verdict at the end names it."""
    ranks, live = Ranks(tmp_path), LiveWatch(tmp_path)
    assert watch(ranks, 30, 10, live=live) == []
    assert watch(ranks, 1, 5, 1, factor=3.0, live=live) == []
    assert watch(ranks, 26, 10, live=live) == []
    (tmp_path / "slow").mkdir()
    ranks, live = Ranks(tmp_path / "slow"), LiveWatch(tmp_path / "slow")
    assert watch(ranks, 26, 10, 1, factor=2.0, live=live) == []


def test_half_a_line_waits_for_its_end_and_missing_ranks_are_waited_for(tmp_path: Path) -> None:
    ranks, live = Ranks(tmp_path), LiveWatch(tmp_path)
    watch(ranks, 4, 10, live=live)
    path = tmp_path / "process-8.jsonl"
    whole = path.read_bytes()
    ranks.train(10)
    later = path.read_bytes()
    path.write_bytes(later[: len(whole) + 30])
    assert live.look() == []
    path.write_bytes(later)
    live.look()
    assert live._judged == ranks.step - 1
    assert max(len(steps) for steps in live._steps.values()) <= WINDOW


def test_a_watch_says_its_verdict_while_the_training_runs(tmp_path: Path) -> None:
    watch, clock = Watch(store=tmp_path), itertools.count(0.0, 0.01)
    assert watch.summary() == "the first rank has the summary of the whole training"
    recorder = watch._recorder = Recorder(str(tmp_path))
    recorder.now = lambda: next(clock)
    assert watch.summary() == "paceline watch: no training step was seen, so far"
    for _ in range(40):
        recorder.begin("forward")
        recorder.end("forward")
        recorder.boundary()
    assert watch.summary().startswith("paceline watched 31 steps on 1 rank, 30.0 ms a step: still running")
    recorder.close()


@pytest.mark.parametrize(
    ("worlds", "expected", "others"),
    [
        ([(1, 0, 0, 30), (2, 0, 0, 20), (2, 1, 0, 20)], [20, 20], 1),  # the ranks of a training that the first started
        ([(2, 0, 0, 9), (2, 1, 0, 9), (2, 0, 1, 20), (2, 1, 1, 21)], [20, 21], 2),  # started anew
        ([(1, 0, 0, 30), (1, 0, 0, 40)], [40], 1),  # two that know nothing of each other
    ],
)
def test_records_are_of_the_training_with_most_steps(
    tmp_path: Path, worlds: list[tuple[int, int, int, int]], expected: list[int], others: int
) -> None:
    for number, (world, rank, attempt, steps) in enumerate(worlds):
        facts = {"event": "facts", "world": world, "rank": rank, "attempt": attempt, "steps": steps}
        (tmp_path / f"process-{number}.jsonl").write_text(json.dumps(facts) + "\n")
    records = read_records(tmp_path)
    assert [record["steps"] for record in records] == expected
    assert {record["others"] for record in records} == {others}


def test_an_alert_names_rank_zero_too() -> None:
    alert = {"at_step": 9, "rank": 0, "host": "", "since": 5, "factor": 2.0, "phase": "io"}
    assert alert_line(alert).startswith("paceline watch: step 9: rank 0 is slow since step 5: ")
    assert alert_line({**alert, "rank": None}).startswith("paceline watch: step 9: every rank is slow since step 5: ")
