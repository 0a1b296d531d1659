"""Limits of what is read, at both sides; lowered here, so that files stay small."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.errors import InputError
from paceline.explain import imports
from paceline.measurements import sql
from paceline.measurements.foreign import inspector, log_forms, logs
from paceline.measurements.run import Span
from paceline.measurements.store import Store
from paceline.measurements.trace import job, rank_trace, stream
from paceline.measurements.trace.rank_trace import StepShares
from tests.unit.imports.generated import write_ranks
from tests.unit.imports.test_bounds import line, titan

Read = Callable[[], object]


def refused_above(read: Read, module: Any, name: str, *, holds: int, says: str, monkeypatch: Any) -> None:
    """What is read holds a number of things: that limit reads it, one less does not."""
    monkeypatch.setattr(module, name, holds)
    read()
    monkeypatch.setattr(module, name, holds - 1)
    with pytest.raises(InputError, match=says):
        read()


def test_steps_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.log"
    path.write_text(titan(*((0, step, f"00:{4 * step:02d}") for step in range(5)), facts="mfu: 50%"))
    refused_above(
        lambda: logs.read_log(path), logs, "MOST_STEPS", holds=5, says="more than 4 steps", monkeypatch=monkeypatch
    )


def test_a_figure_of_a_log_is_below_its_limit() -> None:
    form = log_forms.LOG_FORMS["torchtitan"]
    below, at = (form(f"step: 3  loss: 1.0  tps: {figure}") for figure in ("999999999999999", "1e15"))
    assert below is not None
    assert below.tokens_per_s == 999999999999999
    assert at is None
    assert form("step: 2147483647  loss: 1.0  tps: 5") is not None
    assert form("step: 2147483648  loss: 1.0  tps: 5") is None


def test_lines_before_the_first_of_a_known_log(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    for before, known in ((20_000, True), (20_001, False)):
        path.write_text("x\n" * before + "step: 3  loss: 1.0  tps: 5\n")
        assert logs.looks_like_log(path) is known


def test_characters_of_a_line_that_are_looked_at(tmp_path: Path) -> None:
    """The figure ends at the last character that is looked at, or behind it; also where the file is read in parts."""
    path = tmp_path / "train.log"
    figure = "step: {n}  loss: 1.0  tps: 2,000"
    length = len(figure.format(n=1))
    for first in ("", "y" * 60_000 + "\n"):
        lines = [" " * (logs.LONGEST - length + more) + figure.format(n=n) for n, more in ((1, 0), (2, 0), (3, 3))]
        path.write_text("local batch size 4, sequence length 1000\n" + first + "\n".join(lines))
        found = logs.read_log(path)
        assert [(step.step, step.tokens_per_s) for step in found.steps] == [(1, 2000), (2, 2000), (3, 2)]


def test_a_state_of_the_trainer_is_read_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    for filler, says in ((1 << 16, "losses"), ((1 << 16) - 60, "train_runtime 12.5")):
        path.write_text('{"log_history": [' + "1," * 40_000 + '{"train_runtime": 12.5}' + " " * filler + "]}")
        with pytest.raises(InputError, match=says):
            logs.refuse_state(path)


def test_calls_of_the_inspector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "i.log"
    path.write_text("".join(line(rank, 1, 5) for rank in range(3)))
    says = "more than 2 collectives"
    read = lambda: inspector.read_inspector([path])  # noqa: E731
    refused_above(read, inspector, "MOST_CALLS", holds=3, says=says, monkeypatch=monkeypatch)


def test_exchanges_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_trace, "MOST_EXCHANGES", 3)
    spans = [Span(rank, 0, "aggregate", "x", float(n), 1.0, None, "made") for rank in (0, 1) for n in range(5 - rank)]
    found = rank_trace.gather_spans("t", spans, "made")
    assert [[span.start_s for span in one.exchanges] for one in found] == [[0, 1, 2]] * 2
    assert [one.steps for one in found] == [{0: (0.0, 5.0)}, {0: (0.0, 4.0)}], "what is not kept counts as time"


def test_the_longest_pieces_of_a_step_are_kept_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "MOST_PIECES", 2)
    pieces = (("io", 10.0, 11.0), ("forward", 11.0, 14.0), ("aggregate", 14.0, 20.0), ("backward", 20.0, 22.0))
    shares = StepShares(0, 3, 10.0, 12.0, {}, 6.0, pieces)
    found = [(span.rank, span.step, span.phase, span.start_s, span.seconds) for span in job._pieces(shares, 7, "made")]
    assert found == [(7, 3, "forward", 1.0, 3.0), (7, 3, "backward", 10.0, 2.0)]


def test_bytes_of_a_file_that_is_read_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2 << 20))
    assert len(stream.read_content(path, 2 << 20, "less")) == 2 << 20
    with pytest.raises(InputError, match="more than 1 MiB"):
        stream.read_content(path, (2 << 20) - 1, "less")


@pytest.mark.parametrize(("layers", "opens"), [(0, True), (1, True), (3, True), (4, False)])
def test_times_that_a_file_is_compressed(tmp_path: Path, layers: int, opens: bool) -> None:
    path, content = tmp_path / "trace.json", b'[{"name": "a"}]'
    for _ in range(layers):
        content = gzip.compress(content)
    path.write_bytes(content)
    if opens:
        assert list(stream.EventStream(path)) == [{"name": "a"}]
    else:
        with pytest.raises(InputError, match="compressed more than 3 times"):
            list(stream.EventStream(path))


def test_characters_of_a_trace_and_of_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, events = tmp_path / "trace.json", [{"name": "x" * 30}, {"name": "y" * 300}]
    path.write_text(json.dumps(events))
    read = lambda: list(stream.EventStream(path))  # noqa: E731
    monkeypatch.setattr(stream, "CHUNK", 16)
    assert read() == events
    refused_above(read, stream, "MOST", holds=path.stat().st_size, says="more than 0 GiB", monkeypatch=monkeypatch)
    monkeypatch.setattr(stream, "MOST", 1 << 36)
    monkeypatch.setattr(stream, "LONGEST", 100)
    with pytest.raises(InputError, match="expected valid JSON"):
        read()


def test_rows_of_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = lambda: sql.ask(Store(tmp_path), "SELECT * FROM range(7)")  # noqa: E731
    refused_above(read, sql, "MAX_ROWS", holds=7, says="more than 6 rows", monkeypatch=monkeypatch)


def test_files_of_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b", "a", ".hidden"):
        (tmp_path / name).write_text("")
    assert imports._files([tmp_path]) == [tmp_path / "a", tmp_path / "b"]
    read = lambda: imports._files([tmp_path, tmp_path / "a"])  # noqa: E731
    refused_above(read, imports, "MOST_FILES", holds=3, says="3 files", monkeypatch=monkeypatch)
    with pytest.raises(InputError, match="0 files"):
        imports._files([])


def test_stages_that_are_missing_are_looked_for_among_few(monkeypatch: pytest.MonkeyPatch) -> None:
    there: Any = SimpleNamespace(dp_rank=np.array([0, 0, 1]), stage=np.array([1, 2, 2]))
    with pytest.raises(InputError, match="1 ranks are missing: stage 1 of data-parallel rank 1"):
        imports._missing_stages(there, partial=False)
    (note,) = imports._missing_stages(there, partial=True)
    assert note.endswith("stage 1 of data-parallel rank 1; those who wait for them seem slow themselves")
    monkeypatch.setattr(imports, "MOST_FILES", 3)
    assert len(imports._missing_stages(there, partial=True)) == 1
    for most in (2, 1):
        monkeypatch.setattr(imports, "MOST_FILES", most)
        assert imports._missing_stages(there, partial=True) == []
    late: Any = SimpleNamespace(dp_rank=np.array([0, 1]), stage=np.array([3, 2]))
    monkeypatch.setattr(imports, "MOST_FILES", 3)
    (note,) = imports._missing_stages(late, partial=True)
    assert note.startswith("operations of 4 ranks are missing: stage 1 of data-parallel rank 0"), "from the first on"
    monkeypatch.setattr(imports, "MOST_FILES", 2)
    assert imports._missing_stages(late, partial=True) == []


@pytest.mark.parametrize(("steps", "judged"), [(19, False), (20, True)])
def test_a_verdict_on_a_trace_needs_twenty_steps(tmp_path: Path, steps: int, judged: bool) -> None:
    paths = write_ranks(tmp_path, steps=steps)
    found = imports.import_files(paths, Store(tmp_path / "s"), imports.Labels(name="mine"))
    assert (found.judgement is not None) is judged


@pytest.mark.parametrize("begin", [b"[", b"step: 1  loss: 1.0  tps: 5\n"])
def test_a_file_that_grows_without_measure_is_refused_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    """As a bomb does; a sound file may be small and repeat itself."""
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(begin + b" " * (1 << 22)))
    monkeypatch.setattr(stream, "FREE", 1 << 20)
    with pytest.raises(InputError, match="grows more than 100 times"):
        imports.import_files([path], Store(tmp_path / "s"), imports.Labels())
    monkeypatch.setattr(stream, "FREE", 1 << 23)
    with pytest.raises(InputError, match=r"no spans|0 timed steps"):
        imports.import_files([path], Store(tmp_path / "s"), imports.Labels())
