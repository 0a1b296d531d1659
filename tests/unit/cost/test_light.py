"""What training processes and workers import needs no pydantic; buckets and split need the standard library only."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("paceline.cost.buckets", {"numpy", "pydantic", "scipy"}),
        ("paceline.cost.split", {"numpy", "pydantic", "scipy"}),
        ("paceline.cost.collective", {"pydantic", "scipy"}),
        ("paceline.model.plan.search", {"pydantic", "scipy"}),
    ],
)
def test_nothing_heavy_is_imported(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
