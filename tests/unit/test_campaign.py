"""When a case stops: by the interval of the launches that count, or because it had its launches."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.bench import campaign as loop
from paceline.measurements.run import RunData
from paceline.measurements.store import Store
from paceline.measurements.summary import median_interval
from paceline.spec.study import Protocol
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
    assert list(loop.run_campaign(campaign, store)) == []  # nothing is left to resume


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
