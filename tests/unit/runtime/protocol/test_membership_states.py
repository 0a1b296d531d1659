"""Members in every state that a small job can reach: one lineage, nothing lost, no dead end; and two wrong rules."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))
from lib.membership_model import Job, Limits
from membership_states import RULES, Search

SMALL = Limits(crashes=1, faults=1, takeovers=1, views=4)


def searched(members: int, limits: Limits, plant: str | None = None, progress: int = 0) -> tuple[Search, str]:
    search = Search(Job.begin(members, RULES[plant], limits), 10**6, progress)
    return search, search.run()


@pytest.mark.parametrize(
    ("members", "limits"),
    [
        (2, Limits(crashes=1, faults=1, takeovers=1, views=2)),
        pytest.param(2, Limits(crashes=1, faults=1, takeovers=1, views=4), marks=pytest.mark.full),
        pytest.param(3, Limits(crashes=1, faults=0, takeovers=1, views=3), marks=pytest.mark.full),
    ],
)
def test_no_state_of_a_small_job_forks_loses_or_stands_still(members: int, limits: Limits) -> None:
    search, way = searched(members, limits, progress=100)
    assert way == ""
    assert search.complete
    assert search.healed > 10, "from some states all went on, so that this was looked at"


def test_without_the_majority_rule_a_fork_is_found() -> None:
    _, way = searched(2, SMALL, "majority")
    assert re.search(r"goes on from step \d, \d were committed$|was committed in view", way)


@pytest.mark.full
def test_without_the_majority_rule_a_fork_of_three_is_found_too() -> None:
    _, way = searched(3, SMALL, "majority", progress=50)
    assert way


@pytest.mark.full
def test_a_death_that_counts_for_views_before_the_dead_one_came_back_loses_steps() -> None:
    _, way = searched(2, SMALL, "gap")
    assert re.search(r"goes on from step \d, \d were committed$", way)
    assert "r1 takes r0 for dead" in way
