"""One study from end to end, with the real PyTorch."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Command

STUDY = """
name = "small"
networks = ["lenet"]
frameworks = ["pytorch"]
devices = [1, 2]
batch = [8]
{more}
[protocol]
launches = 2
max_launches = 2
warmup = 3
steps = 10
phase_steps = 4
threads = 1
width = 0.5
timeout = "2 min"
"""


@pytest.mark.usefixtures("pytorch")
def test_study_is_measured_and_shown(paceline: Command, study_file: Callable[[str], Path]) -> None:
    ran = paceline.json("run", str(study_file(STUDY.format(more='input = ["copied"]'))))
    shown = paceline.json("show", "small")
    assert ran["cases"] == shown["cases"]
    one, two = shown["cases"]
    assert (one["ranks"], two["ranks"], one["failed"], two["failed"]) == (1, 2, 0, 0)
    assert one["speedup"]["value"] == 1.0
    assert two["base_ranks"] == 1
    assert two["efficiency"] == pytest.approx(two["speedup"]["value"] / 2)
    for case in (one, two):
        assert case["samples_per_s"]["low"] <= case["samples_per_s"]["value"] <= case["samples_per_s"]["high"]
        assert math.isclose(sum(case["shares"].values()), 1.0, abs_tol=1e-9)
        assert case["phases_s"]["forward"] > 0
        assert case["phases_s"]["backward"] > 0
        assert case["native_timers_s"]["forward"] > 0
        assert case["versions"]["torch"].startswith("2.13")
    assert one["phases_s"]["aggregate"] == 0.0
    assert two["native_timers_s"]["ddp_communication"] > 0


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.usefixtures("pytorch")
def test_native_timers_and_differences_agree(paceline: Command, study_file: Callable[[str], Path]) -> None:
    text = STUDY.replace("devices = [1, 2]", "devices = [1]").replace("phase_steps = 4", "phase_steps = 40")
    text = text.replace("batch = [8]", "batch = [64]").replace("steps = 10", "steps = 40")
    case = paceline.json("run", str(study_file(text.format(more=""))))["cases"][0]
    native, split = case["native_timers_s"], case["phases_s"]
    both = native["forward"] + native["backward_and_aggregate"]
    assert split["forward"] + split["backward"] == pytest.approx(both, rel=0.2)
    share = split["forward"] / (split["forward"] + split["backward"])
    assert share == pytest.approx(native["forward"] / both, abs=0.1)


def test_phases_that_do_not_close_are_measured_again_and_then_marked(
    quick: Command, study_file: Callable[[str], Path]
) -> None:
    text = STUDY.format(more="").replace("[1, 2]", "[1]").replace("batch = [8]", "batch = [1004]")
    path = str(study_file(text))
    (case,) = quick.json("run", path)["cases"]
    assert case["launches"] == 2 + 2
    assert case["phases_close"] is False
    assert case["phases_s"]["other"] < -0.05 * case["step_s"]["value"]
    assert "do not trust" in quick("show", "small")
    (again,) = quick.json("run", path, "--resume")["cases"]
    assert again["launches"] == 4


@pytest.mark.full
@pytest.mark.usefixtures("pytorch")
def test_every_rank_and_step_is_kept(paceline: Command, study_file: Callable[[str], Path]) -> None:
    paceline("run", str(study_file(STUDY.format(more=""))))
    counted = "pass_name = 'clean' AND NOT steps.warmup AND ranks = 2 GROUP BY run, rank ORDER BY run, rank"
    question = f"SELECT run, rank, count(*) AS n FROM steps JOIN runs ON run = id WHERE {counted}"
    rows = paceline.json("query", question)["rows"]
    assert len(rows) >= 4, "two launches of two ranks; one whose phases do not add up is launched again"
    assert [(row["rank"], row["n"]) for row in rows] == [(0, 10), (1, 10)] * (len(rows) // 2)
    spans = paceline.json("query", "SELECT DISTINCT phase, name FROM spans WHERE phase = 'backward'")["rows"]
    assert len(spans) == 8


@pytest.mark.full
@pytest.mark.usefixtures("pytorch")
def test_too_large_a_batch_is_a_stored_failure(paceline: Command, study_file: Callable[[str], Path]) -> None:
    text = STUDY.format(more="").replace("batch = [8]", "batch = [2000000000, 8]").replace("[1, 2]", "[1]")
    document = paceline.json("run", str(study_file(text)))
    good, bad = document["cases"]
    assert good["failed"] == 0
    assert bad["failure"]["reason"] == "out_of_memory"
    assert bad["failure"]["phase"] == "setup"
    assert "allocate" in bad["failure"]["log_tail"]


def test_unsupported_strategy_is_a_stored_failure(
    quick: Command, paceline: Command, study_file: Callable[[str], Path]
) -> None:
    more = '[[strategy]]\nsynchrony = "asynchronous"'
    document = paceline.json("run", str(study_file(STUDY.format(more="").replace("[protocol]", more + "\n[protocol]"))))
    assert {case["failure"]["reason"] for case in document["cases"]} == {"unsupported"}


@pytest.mark.full  # mounting needs root
def test_full_disk_is_one_clear_error(quick: Command, study_file: Callable[[str], Path]) -> None:
    path = study_file(STUDY.format(more=""))
    quick.store.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(quick.store)], check=True)
    try:
        message = quick("run", str(path), code=1)
    finally:
        subprocess.run(["umount", str(quick.store)], check=True)
    assert "No space left on device" in message
    assert "hint:" in message
