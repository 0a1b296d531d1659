"""Real processes on a machine that others may use too: what `make test-all` adds is tried twice more if it fails.

The summary counts repeats. Tests of `make test` are never repeated.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("full"):
            item.add_marker(pytest.mark.flaky(reruns=2))
