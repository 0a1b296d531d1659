"""What a survey makes of samples, and which nodes of Slurm accept a job."""

from __future__ import annotations

import pytest

from paceline.bench.sites import survey
from paceline.errors import LaunchFailed


def test_a_link_has_its_best_rate_and_half_of_its_median_round_trip() -> None:
    trips = [number * 1e-5 for number in range(1, 22)]
    pair = {"source": 1, "target": 0, "bytes_per_s": [2e8, 5e8, 3e8], "round_trips_s": trips}
    link = survey._link(pair, ["a", "b"])
    assert (link.source, link.target) == ("b", "a")
    assert (link.bandwidth, link.bandwidth_spread) == (5e8, (2e8, 5e8))
    assert link.latency == pytest.approx(11e-5 / 2)
    assert link.latency_spread == (pytest.approx(3e-5 / 2), pytest.approx(19e-5 / 2))


def test_nodes_that_are_down_or_drained_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    states = "n1 idle\nn2 mix\nn3 down*\nn4 drain\nn1 idle\nn5 alloc\nn6 comp\n"
    monkeypatch.setattr(survey, "_slurm", lambda *command: states)
    assert survey.slurm_nodes() == ["n1", "n2", "n5", "n6"]
    monkeypatch.setattr(survey, "_slurm", lambda *command: "n3 down*\n")
    with pytest.raises(LaunchFailed, match=r"n3 down\*"):
        survey.slurm_nodes()
