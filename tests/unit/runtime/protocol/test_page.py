"""docs/explanation/protocol.md says what the code does: messages, states and transitions, in tables and in diagrams."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest

from paceline.runtime.protocol.messages import KINDS
from paceline.runtime.protocol.states import (
    GROUP_TABLE,
    LEADER_TABLE,
    MEMBER_TABLE,
    Event,
    GroupState,
    LeaderState,
    MemberState,
)
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "explanation" / "protocol.md").read_text(encoding="utf-8")
MACHINES = {
    "A member": (MEMBER_TABLE, MemberState, MemberState.SEARCHING),
    "A leader": (LEADER_TABLE, LeaderState, LeaderState.COLLECTING),
    "A group, as seen by a shard": (GROUP_TABLE, GroupState, GroupState.UNKNOWN),
}


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str, first_column: str) -> list[list[str]]:
    """The cells of the table that begins with this column, its header first."""
    table = re.search(rf"^\| {first_column} \|.*?\n(?=\n|\Z)", text + "\n", flags=re.M | re.S)
    assert table, f"no table that begins with {first_column!r}"
    lines = [line for line in table.group(0).splitlines() if not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_of_messages_is_the_code() -> None:
    table = rows(section("Messages"), "message")[1:]
    written = {cells[0].strip("`"): tuple(cells[1:5]) for cells in table}
    coded = {
        kind: (
            cls.sender.value,
            cls.receiver.value,
            " or ".join(f"`{answer}`" for answer in cls.answers) or "-",
            "yes" if cls.has_payload else "-",
        )
        for kind, cls in KINDS.items()
    }
    assert written == coded
    assert all(cells[5] for cells in table), "each message has its meaning"


def test_the_table_of_events_is_the_code() -> None:
    table = rows(section("Events"), "event")[1:]
    assert [cells[0] for cells in table] == [event.value for event in Event]
    assert all(cells[1] for cells in table)


@pytest.mark.parametrize("title", MACHINES)
def test_the_table_of_states_is_the_code(title: str) -> None:
    _, states, _ = MACHINES[title]
    table = rows(section(title), "state")[1:]
    assert [cells[0] for cells in table] == [state.value for state in states]
    assert all(cells[1] for cells in table)


def cause_named(text: str) -> Any:
    """The message or event of a cell."""
    return KINDS[text.strip("`")] if text.startswith("`") else Event(text.strip("*"))


@pytest.mark.parametrize("title", MACHINES)
def test_the_table_of_transitions_is_the_code(title: str) -> None:
    table, states, _ = MACHINES[title]
    (_, *names), *lines = rows(section(title), "in state")
    written = {
        (states(name), cause_named(cause)): states(after)
        for cause, *cells in lines
        for name, after in zip(names, cells, strict=True)
        if after != "-"
    }
    assert written == dict(table)  # type: ignore[call-overload]


@pytest.mark.parametrize("title", MACHINES)
def test_the_diagram_is_the_code(title: str) -> None:
    table, _, first = MACHINES[title]
    diagram = section(title).split("```mermaid\n")[1].split("```")[0]
    begins = re.findall(r"\[\*\] --> (\w+)", diagram)
    assert begins == [first.value.replace(" ", "_")]
    drawn = {
        (before, after, cause.strip())
        for before, after, causes in re.findall(r"^ +(\w+) --> (\w+): (.+)$", diagram, flags=re.M)
        for cause in causes.split(",")
    }
    assert drawn == edges(table)  # type: ignore[arg-type]


def edges(table: Mapping[tuple[Enum, Any], Enum]) -> set[tuple[str, str, str]]:
    """Every transition that leads to another state."""
    names = {
        (before, after): (before.value.replace(" ", "_"), after.value.replace(" ", "_"))
        for (before, _), after in table.items()
    }
    return {
        (*names[before, after], cause.value if isinstance(cause, Event) else cause.kind)
        for (before, cause), after in table.items()
        if before is not after
    }
