"""When a case stops: by the interval of the launches that count, or because it had its launches."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.bench import campaign as loop
from paceline.errors import InputError, StoreError
from paceline.measurements.run import Failure, RunData
from paceline.measurements.store import Store
from paceline.measurements.summary import median_interval
from paceline.measurements.tables import PassTime
from paceline.spec.study import Protocol, Study
from tests.unit.test_store import make_run, make_steps

PROTOCOL = Protocol(launches=3, max_launches=6, width=0.02)
CASE: Any = SimpleNamespace(id="abc", label="abc")


def state(launched: int, *, failures: int = 0, unsustained: int = 0) -> Any:
    return SimpleNamespace(launched=launched, failures=failures, unsustained=unsustained)


def test_a_case_stops_at_the_asked_width_and_not_before_its_launches() -> None:
    narrow = [100.0, 100.1, 99.9]
    assert loop._stop_reason(state(2), narrow[:2], PROTOCOL) is None
    assert loop._stop_reason(state(3), narrow, PROTOCOL) == "settled"
    assert loop._stop_reason(state(3), [100.0, 102.0, 99.0], PROTOCOL) is None
    assert loop._stop_reason(state(6), [100.0, 102.0, 99.0], PROTOCOL) == "launches"
    assert loop._stop_reason(state(6, unsustained=1), [100.0, 102.0, 99.0], PROTOCOL) is None
    assert loop._stop_reason(state(3, failures=2), narrow, PROTOCOL) == "failed"


def test_a_case_does_not_stop_because_its_launches_happen_to_agree_later() -> None:
    sample = [103.0, 97.0, 100.0, *[100.0] * 17]
    protocol = Protocol(launches=3, max_launches=30, width=0.02)
    assert median_interval(sample).width < 0.02
    assert loop._stop_reason(state(20), sample, protocol) is None


def test_the_loop_counts_what_results_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fourth launch drifts; stored runs say after which launch the case could stop first."""
    store = Store(tmp_path)
    asked: list[Any] = []

    def launch(key: Any, *_: Any) -> RunData:
        asked.append(key)
        slow = 1.5 if key.launch % 4 == 0 else 1.0
        name = f"demo-1-abc-{key.launch:03d}"
        run = make_run(name, launch=key.launch, probe_s=slow, pilot=key.pilot, drift_limit=key.drift_limit)
        return RunData(run, make_steps(slow * (0.1 + 1e-5 * key.launch)))

    monkeypatch.setattr(loop, "launch_case", launch)
    monkeypatch.setattr(loop, "probe_seconds", lambda: 1.0)
    study: Any = SimpleNamespace(protocol=PROTOCOL, name="demo")
    campaign = loop.Campaign("demo-1", study, (CASE,), SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    events = list(loop.run_campaign(campaign, store))
    assert events[-1] == loop.CaseStopped(CASE, "settled", 4)
    assert [key.pilot for key in asked] == [3] * 4
    assert [key.drift_limit for key in asked] == [0.02] * 4
    assert [key.probe_s for key in asked] == [1.0] * 4
    assert list(loop.run_campaign(campaign, store)) == []  # nothing is left to resume
    (store.runs / "demo-1-abc-\u00b2").mkdir()
    assert list(loop.run_campaign(campaign, store)) == [], "what somebody else put there is no launch"


def test_the_number_of_launches_that_was_fixed_has_no_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "launch_case", lambda key, *_: key)
    for protocol, pilot in ((Protocol(launches=3, max_launches=3), None), (Protocol(launches=3, max_launches=4), 3)):
        study: Any = SimpleNamespace(protocol=protocol, name="demo")
        campaign = loop.Campaign("demo-1", study, (), SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
        assert loop._launch(campaign, loop.CaseState(CASE)).pilot == pilot  # type: ignore[attr-defined]


def test_an_interval_of_results_knows_the_pilot(tmp_path: Path) -> None:
    from paceline.measurements.results import campaign_results

    seconds = [0.1, 0.104, 0.1, 0.1, 0.1, 0.1]
    store = Store(tmp_path)
    for launch, each in enumerate(seconds):
        run = make_run(f"demo-1-abc-{launch:03d}", launch=launch, pilot=3)
        store.write(RunData(run, make_steps(each)))
    (result,) = campaign_results(store, "demo-1")
    rates = [16 / (1.1 * each) for each in seconds]
    assert result.throughput is not None
    assert result.throughput.high == pytest.approx(median_interval(rates, pilot=3).high)
    assert result.throughput.high > 1.001 * median_interval(rates).high
    assert np.isfinite(result.throughput.low)


@pytest.mark.parametrize("kind", ["file", "link", "fifo", "folder"])
def test_whatever_stands_in_place_of_a_lock_is_one_error_or_a_lock_at_once(tmp_path: Path, kind: str) -> None:
    store = Store(tmp_path)
    place = tmp_path / "locks"
    if kind == "file":
        place.write_text("")
    else:
        place.mkdir()
        lock = place / "a.lock"
        {"link": lambda: lock.symlink_to(tmp_path / "other"), "fifo": lambda: os.mkfifo(lock), "folder": lock.mkdir}[
            kind
        ]()
    with contextlib.suppress(StoreError), loop._held(store, "a"):
        assert kind == "fifo"
        with pytest.raises(InputError, match="another process"), loop._held(store, "a"):
            pass
    assert not (tmp_path / "other").exists()


STUDY = Study(name="demo", networks=("lenet",), frameworks=("pytorch",), batch=(8,))


def opened(store: Store, study: Study = STUDY, *, cases: Any = (CASE,), launcher: str = "local") -> str:
    with loop.open_campaign(study, cases, store, resume=True, launcher=launcher) as campaign:
        return campaign


def test_the_newest_campaign_of_the_same_cases_protocol_and_launcher_is_resumed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = opened(store)
    with loop.open_campaign(STUDY, (CASE,), store, resume=False, launcher="local") as second:
        assert second != first
    newest = store.read_campaigns("demo")[-1]["campaign"]
    longer = STUDY.model_copy(update={"protocol": Protocol(budget=60.0)})
    assert opened(store) == opened(store, longer) == newest  # another budget is no other question
    others = [
        opened(store, STUDY.model_copy(update={"protocol": Protocol(steps=7)})),
        opened(store, cases=(CASE, SimpleNamespace(id="more"))),
        opened(store, launcher="slurm"),
    ]
    assert len({newest, *others}) == 4
    assert opened(store, cases=(SimpleNamespace(id="more"), CASE)) == others[1]  # their order is no other question
    assert opened(store, STUDY.model_copy(update={"protocol": Protocol(seed=7)})) not in {newest, *others}
    document = next(item for item in store.read_campaigns("demo") if item["campaign"] == others[1])
    assert (document["study"], document["launcher"], document["cases"]) == ("demo", "local", ["abc", "more"])


def test_a_campaign_is_one_process_s_at_a_time(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with (
        loop.open_campaign(STUDY, (CASE,), store, resume=True, launcher="local") as campaign,
        pytest.raises(InputError, match=f"{campaign} is being run by another process"),
    ):
        opened(store)
    assert opened(store) == campaign


class Played:
    """Launches of known seconds and outcome, in place of processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Store, protocol: Protocol, cases: int = 1) -> None:
        self.asked: list[tuple[str, int]] = []
        self.store = store
        self.clean: Callable[[str, int], float] = lambda case, launch: 0.1 + 1e-6 * launch
        self.parts: Callable[[int], dict[str, float]] = lambda launch: {}
        self.failed: dict[int, str] = {}
        self.times: dict[str, dict[str, PassTime]] = {}
        monkeypatch.setattr(loop, "launch_case", self._launch)
        monkeypatch.setattr(loop, "probe_seconds", lambda: 1.0)
        monkeypatch.setattr(loop, "_times_by_run", lambda _, runs: {run: self.times[run] for run in runs})  # quickly
        study: Any = SimpleNamespace(protocol=protocol, name="demo")
        named: Any = tuple(SimpleNamespace(id=f"case{number}") for number in range(cases))
        self.campaign = loop.Campaign("demo-1", study, named, SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]

    def _launch(self, key: Any, *_: Any) -> RunData:
        self.asked.append((key.case.id, key.launch))
        name, reason = f"demo-1-{key.case.id}-{key.launch:03d}", self.failed.get(key.launch)
        failure = reason and Failure(phase="measure", reason=reason, message="m")  # type: ignore[arg-type]
        ending = {"outcome": "failed", "failure": failure} if reason else {}
        run = make_run(name, case_id=key.case.id, launch=key.launch, probe_s=1.0, **ending)
        passes = {} if reason else {"clean": self.clean(key.case.id, key.launch), **self.parts(key.launch)}
        self.times[name] = {
            passed: PassTime(name, passed, 5, seconds, 16 / seconds) for passed, seconds in passes.items() if seconds
        }
        return RunData(run)

    def run(self) -> list[Any]:
        return list(loop.run_campaign(self.campaign, self.store))

    def stops(self) -> list[tuple[str, str, int]]:
        return [(event.case.id, event.reason, event.launches) for event in self.run() if hasattr(event, "reason")]


def test_a_launch_is_stored_before_it_is_told_and_rounds_are_in_random_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(monkeypatch, Store(tmp_path), Protocol(launches=4, max_launches=4), cases=4)
    for event in loop.run_campaign(played.campaign, played.store):
        if isinstance(event, loop.LaunchFinished):
            assert Store(tmp_path).read(event.run.id) == event.run
    rounds = [played.asked[begin : begin + 4] for begin in range(0, 16, 4)]
    assert [sorted(one) for one in rounds] == [[(f"case{n}", launch) for n in range(4)] for launch in range(4)]
    assert len({tuple(case for case, _ in one) for one in rounds}) > 2


def test_a_case_that_fails_twice_stops_and_one_that_was_not_sustained_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(monkeypatch, Store(tmp_path / "a"), PROTOCOL)
    played.failed = {1: "crash", 3: "crash"}
    assert played.stops() == [("case0", "failed", 4)]
    played = Played(monkeypatch, Store(tmp_path / "b"), Protocol(launches=3, max_launches=3))
    played.failed = {1: "unsustained"}
    played.clean = lambda case, launch: 0.1 + 0.01 * launch
    assert played.stops() == [("case0", "launches", 4)]


def test_a_launch_without_a_clean_pass_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, Store(tmp_path), PROTOCOL)
    played.clean = lambda case, launch: 0.0
    assert played.stops() == [("case0", "failed", 2)]


def test_no_case_is_launched_after_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 5.0, 10.0, 10.1, 10.2])
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    played = Played(monkeypatch, Store(tmp_path), Protocol(launches=6, max_launches=6, budget=10.0), cases=2)
    assert sorted(played.stops()) == [("case0", "budget", 1), ("case1", "budget", 1)]


def test_numbers_go_on_after_damaged_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    played = Played(monkeypatch, store, Protocol(launches=3, max_launches=3))
    played.run()
    (store.runs / "demo-1-case0-002" / "run.json").write_text("{}")
    (store.runs / "demo-1-case0-002").rename(store.runs / "demo-1-case0-007")
    again = Played(monkeypatch, Store(tmp_path), Protocol(launches=4, max_launches=9))
    again.times |= played.times
    again.run()
    assert again.asked == [("case0", 8)]


def test_phases_that_do_not_close_are_measured_at_most_twice_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, alone, launches in (("closes", 0.06, 3), ("not", 0.13, 5), ("later", 0.0, 4)):
        played = Played(monkeypatch, Store(tmp_path / folder), PROTOCOL)
        played.parts = lambda launch, alone=alone: {
            "forward": 0.02, "compute": alone or (0.13 if launch < 2 else 0.06), "resident": 0.1
        }  # fmt: skip
        assert played.stops() == [("case0", "settled", launches)], folder


def test_the_confidence_and_width_of_the_protocol_decide() -> None:
    sample = [100.0, 100.6, 99.5]
    wide, sure = Protocol(launches=3, max_launches=6, width=0.03), {"launches": 3, "max_launches": 6, "width": 0.03}
    assert median_interval(sample).width == pytest.approx(0.0273, abs=1e-4)
    assert loop._stop_reason(state(3), sample, wide) == "settled"
    assert loop._stop_reason(state(3), sample, Protocol(**sure, confidence=0.99)) is None
    assert loop._stop_reason(state(3), sample, wide.model_copy(update={"width": 0.02})) is None


def test_a_case_that_had_its_launches_is_measured_again_too_if_its_phases_do_not_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(monkeypatch, Store(tmp_path), Protocol(launches=3, max_launches=3))
    played.clean = lambda case, launch: 0.1 + 0.01 * launch
    played.parts = lambda launch: {"forward": 0.02, "compute": 0.2, "resident": 0.1}
    assert played.stops() == [("case0", "launches", 5)]


def test_a_resumed_campaign_does_not_repeat_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Played(monkeypatch, Store(tmp_path), Protocol(launches=1, max_launches=1), cases=6)
    first.run()
    second = Played(monkeypatch, Store(tmp_path), Protocol(launches=2, max_launches=2), cases=6)
    second.times |= first.times
    second.run()
    assert [case for case, _ in first.asked] != [case for case, _ in second.asked]
