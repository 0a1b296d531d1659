"""The fast set runs always; the others when PACELINE_TEST_FRAMEWORKS is set (`make test-frameworks`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent

FAST = {"pytorch/ddp", "jax/data_parallel", "mxnet/dist_sync", "tensorflow/multiworker"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A framework that is not in the fast set says why it does not run."""
    if os.environ.get("PACELINE_TEST_FRAMEWORKS"):
        return
    for item in items:
        if HERE not in item.path.parents:
            continue
        callspec = getattr(item, "callspec", None)
        name = callspec.params.get("framework") if callspec else None
        if name is not None and name not in FAST:
            item.add_marker(pytest.mark.skip(reason="not in the fast set: make test-frameworks runs it"))
