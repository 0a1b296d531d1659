"""PyTorch is proved by `make test`, the other frameworks of the fast set by `make test-all`, the rest on request."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent

FAST = {"pytorch/ddp", "jax/data_parallel", "mxnet/dist_sync", "tensorflow/multiworker"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of a framework outside the fast set is marked `frameworks`, of another one than PyTorch `full`."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if HERE not in item.path.parents or callspec is None or "framework" not in callspec.params:
            continue
        name = callspec.params["framework"]
        if name not in FAST:
            item.add_marker(pytest.mark.frameworks)
        elif name != "pytorch/ddp":
            item.add_marker(pytest.mark.full)
