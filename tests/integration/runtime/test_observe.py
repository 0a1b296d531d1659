"""Two ranks tell what they do: JSON lines, an endpoint, words."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path

import pytest

from paceline.runtime.observe.metrics import METRICS, read_metrics
from tests.integration.runtime.conftest import StartRanks


def two_free_ports() -> int:
    """The first of two ports in a row, one for each rank."""
    while True:
        with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError, OverflowError):
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            second.bind(("127.0.0.1", port + 1))
            return port


@pytest.mark.full  # two processes
def test_two_ranks_tell_what_they_do(ranks: StartRanks, tmp_path: Path) -> None:
    port = two_free_ports()
    found = ranks("observe", 2, metrics=str(tmp_path / "metrics"), port=port).wait()
    newest = read_metrics(str(tmp_path / "metrics"))
    assert [line["rank"] for line in newest] == [0, 1]
    for rank, (line, seen) in enumerate(zip(newest, found, strict=True)):
        assert line["ranks"] == 2
        assert sum(line["shares"]) == 40
        assert line["shares"][rank] == line["share"]
        assert line["compute_seconds"] > 0
        assert f'paceline_share{{group="group",rank="{rank}"}} ' in seen["text"]
        assert all(name in seen["line"] for name in METRICS)
        assert "shares by measured cost" in seen["explained"]
    rows = [json.loads(row) for row in (tmp_path / "metrics" / "group-0.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == sorted({row["step"] for row in rows})
    assert rows[0]["step"] == 1
    assert "TensorBoard" in found[0].get("tensorboard", "TensorBoard is there")
