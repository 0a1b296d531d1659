"""What `clean --store` removes and what `store repair` writes: the parts of a store, and nothing beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.bench.campaign import _held
from paceline.cli import program
from paceline.errors import InputError, StoreError
from paceline.measurements.run import RunData
from paceline.measurements.store import Store
from tests.unit.test_store import make_run, make_steps


def cleaned(store: Path) -> BaseException | None:
    words = ["clean", "--store", str(store), "--yes"]
    env = {"PACELINE_HOME": str(store.parent / "home")}  # caches are measured, too
    return CliRunner().invoke(program, words, standalone_mode=False, env=env).exception


def stored(folder: Path) -> Path:
    store = Store(folder)
    store.write(RunData(make_run(), make_steps()))
    with _held(store, "demo-1"):
        return folder


def test_a_folder_with_runs_of_another_program_is_no_store(tmp_path: Path) -> None:
    """TensorBoard writes to `runs`, too: the project around it stays."""
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "thesis.tex").write_text("years")
    assert isinstance(cleaned(tmp_path), InputError)
    assert (tmp_path / "thesis.tex").exists()


def test_what_is_no_part_of_the_store_stays(tmp_path: Path) -> None:
    store = stored(tmp_path / "s")
    (store / "notes.txt").write_text("mine")
    assert cleaned(store) is None
    assert [path.name for path in store.iterdir()] == ["notes.txt"]
    assert cleaned(stored(tmp_path / "t")) is None
    assert not (tmp_path / "t").exists()


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    store, elsewhere = stored(tmp_path / "s"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.txt").write_text("mine")
    (store / "damaged").symlink_to(elsewhere)
    (tmp_path / "link").symlink_to(store)
    assert cleaned(tmp_path / "link") is None
    assert list(store.iterdir()) == []
    assert (elsewhere / "mine.txt").exists()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_repair_moves_nothing_to_what_stands_in_place_of_its_folder(tmp_path: Path, kind: str) -> None:
    store, elsewhere = stored(tmp_path / "s"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (next((store / "runs").iterdir()) / "steps.parquet").write_bytes(b"damage")
    aside = store / "damaged"
    aside.write_text("") if kind == "file" else aside.symlink_to(elsewhere)
    done = CliRunner().invoke(program, ["store", "repair", "--store", str(store)], standalone_mode=False)
    assert isinstance(done.exception, StoreError)
    assert list(elsewhere.iterdir()) == []
