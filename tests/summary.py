"""What a run of the tests left out, why it repeated tests, and the seed of its random examples, in its summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

COMMANDS = {"full": "make test-all", "frameworks": "make test-frameworks"}
"""Markers of tests that `make test` leaves out, and the command that runs them."""
LEFT_OUT = pytest.StashKey[Counter[str]]()


def marker_of(item: pytest.Item) -> str | None:
    """The marker that keeps a test out of `make test`; the one that needs most."""
    return next((name for name in reversed(COMMANDS) if item.get_closest_marker(name)), None)


def sentence(left_out: Counter[str]) -> str:
    return "; ".join(
        f"deselected {left_out[name]} tests marked {name}: {command} runs them"
        for name, command in COMMANDS.items()
        if left_out[name]
    )


def reason(report: pytest.TestReport) -> str:
    """The first line of what failed; a test that passes when it is repeated leaves nothing else."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else str(report.longrepr)).splitlines()
    return lines[0] if lines else "no reason was given"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    if items:
        items[0].config.stash[LEFT_OUT].update(name for item in items if (name := marker_of(item)))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist tells the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every worker collects every test, so one worker's numbers are those of the session."""
    left_out = getattr(node, "workeroutput", {}).get("left_out")
    if left_out is not None:
        node.config.stash[LEFT_OUT] = Counter(left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if said := sentence(config.stash[LEFT_OUT]):
        terminalreporter.write_line(said)
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.write_line(f"repeated {report.nodeid} ({report.when}): {reason(report)}")
    seed = config.getoption("--hypothesis-seed", None)
    if seed is not None and terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"random examples came from --hypothesis-profile fresh --hypothesis-seed {seed}")
