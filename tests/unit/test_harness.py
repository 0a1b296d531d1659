"""The worker's side of a launch, with a framework that does nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from paceline.bench.frameworks import harness
from paceline.bench.frameworks.graph import InOut
from paceline.bench.verify import PROOF_NETWORKS
from paceline.spec.network import plain_network


class Idle(harness.Session):
    """Takes down which steps it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def step(self, upto: str) -> None:
        self.asked.append(upto)


class Nobody:
    """A meeting of one rank."""

    def barrier(self) -> None:
        """Nobody to wait for."""


JOB = {"passes": ["forward", "compute", "exchange", "resident"], "input": "resident", "phases": True, "phase_steps": 15}


def test_whole_and_partial_steps_take_turns_in_blocks() -> None:
    session = Idle()
    clean, split = harness._alternate(JOB, session, Nobody(), 40)
    assert len(clean) == 40
    assert {name: len(rows) for name, rows in split.items()} == dict.fromkeys(JOB["passes"], 15)
    blocks = [(name, len(list(group))) for name, group in itertools.groupby(session.asked)]
    # the whole step of an input that is resident is the last pass: its block and the clean one follow each other
    assert blocks == [("resident", 11), *3 * [("forward", 6), ("compute", 6), ("exchange", 6), ("resident", 17)]]
    assert all(start >= 0 and seconds >= 0 for start, seconds in clean)
    assert [start for start, _ in clean] == sorted(start for start, _ in clean)


def test_a_pass_that_is_the_same_as_another_is_not_run_twice() -> None:
    session = Idle()
    session.same = {"resident": "exchange"}
    _, split = harness._alternate(JOB, session, Nobody(), 8)
    assert split["resident"] == split["exchange"]
    assert session.asked.count("exchange") == 18
    assert session.asked.count("resident") == 8 + 4


def test_without_phases_there_is_one_block() -> None:
    session = Idle()
    clean, split = harness._alternate({**JOB, "phases": False}, session, Nobody(), 7)
    assert (len(clean), split, session.asked) == (7, {}, 8 * ["resident"])


@pytest.mark.parametrize(("count", "number"), [(40, 4), (7, 3), (5, 5), (2, 4)])
def test_steps_are_dealt_out_evenly(count: int, number: int) -> None:
    parts = harness._parts(count, number)
    assert (sum(parts), len(parts)) == (count, number)
    assert max(parts) - min(parts) <= 1


@pytest.mark.parametrize("name", sorted(PROOF_NETWORKS))
@pytest.mark.parametrize("channels_last", [True, False])
def test_a_layout_can_be_undone(name: str, channels_last: bool) -> None:
    network = plain_network(PROOF_NETWORKS[name])
    layout = InOut(network, channels_last=channels_last)
    for tensor in (item for layer in network["layers"] for item in layer["tensors"]):
        array = np.random.default_rng(1).standard_normal(tensor["shape"])
        assert (layout.plain(tensor["name"], layout.native(tensor["name"], array)) == array).all()
