"""The frameworks of the fast set are proved by `make test-all`, the others by `make test-frameworks`."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent

FAST = {"pytorch/ddp", "jax/data_parallel", "mxnet/dist_sync", "tensorflow/multiworker"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of a framework is marked `full` if it belongs to the fast set, `frameworks` otherwise."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if HERE not in item.path.parents or callspec is None or "framework" not in callspec.params:
            continue
        name = callspec.params["framework"]
        item.add_marker(pytest.mark.full if name in FAST else pytest.mark.frameworks)
