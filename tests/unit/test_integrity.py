"""Damage is detected, named and left out; nothing is deleted; nothing hangs."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from paceline.cli import program
from paceline.errors import StoreError
from paceline.measurements import integrity
from paceline.measurements.integrity import Damage, DamagedData, Notes, read_files, seal, unseal, write_sums
from paceline.measurements.repair import inspect_store, repair_store
from paceline.measurements.run import RunData
from paceline.measurements.store import Store
from tests.made import Made, write
from tests.unit.test_store import make_run, make_steps

BAD, GOOD = "made-1-0000-000", "made-1-0000-001"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    write(tmp_path, [Made(ranks=1), Made(ranks=2, aggregate=0.02)])
    return Store(tmp_path)


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


def edit(path: Path, **changes: Any) -> None:
    """Change a header as a careful hand would: its checksums fit again."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    write_sums(path.parent)


FAILURE = {"phase": "launch", "reason": "crash", "message": "it died"}


def run(store: Store, *args: str) -> Result:
    return CliRunner().invoke(program, [*args, "--store", str(store.root)])


@pytest.mark.parametrize("seed", range(25))
def test_every_flipped_bit_is_noticed(store: Store, seed: int) -> None:
    chance = random.Random(seed)
    files = sorted(path for folder in (store.runs, store.campaigns) for path in folder.rglob("*") if path.is_file())
    path = chance.choice(files)
    flip(path, chance.randrange(path.stat().st_size * 8))
    found = inspect_store(store)
    before = inspect_store(Store(write(store.root / "again", [Made(ranks=1), Made(ranks=2, aggregate=0.02)]).root))
    harmless = (found.runs, found.campaigns) == (before.runs, before.campaigns)
    assert len(found.damaged) + len(found.newer) == 1 or harmless
    assert harmless == (not found.damaged and not found.newer)


def test_sha256sum_checks_a_run(store: Store) -> None:
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=store.runs / GOOD, capture_output=True, text=True)
    assert done.stdout.count(": OK") == 3


MACHINE = {"host": "h", "cpu": "c", "cores": 2, "memory_bytes": 1, "os": "o", "kernel": "k", "python": "3",
           "paceline": "0"}  # fmt: skip
REPLAY = {
    "measured_s": 1.2, "replayed_s": 1.1, "ideal_s": 1.0, "num_steps": 4, "by_stage": {"0": 1.1}, "by_rank": {"0": 1.1},
    "by_dp_rank": {"0": 1.1}, "by_kind": {"forward-compute": 1.1}, "blame": None,
}  # fmt: skip
READING = (
    ("show",), ("show", "--list"), ("report", "made", "-o", "page.html"), ("explain",), ("query", "FROM launches"),
    ("compare", "ranks=2", "ranks=1"), ("export", "made", "--to", "csv", "-o", "out.csv"),
)  # fmt: skip


@pytest.mark.parametrize("words", READING, ids=[" ".join(words[:2]) for words in READING])
def test_every_command_leaves_the_damaged_run_out_and_names_it(
    store: Store, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    flip(store.runs / BAD / "steps.parquet", 700)
    text = run(store, *words)
    assert text.exit_code == 0, text.output
    assert f"{BAD}: steps.parquet" in text.stderr
    document = json.loads(run(store, *words, "--json").stdout)
    assert [item["run"] for item in document["damaged"]] == [BAD]
    if words[0] == "report":
        assert f"{BAD}: steps.parquet" in (tmp_path / "page.html").read_text()


def test_what_is_sound_is_not_called_damaged(store: Store) -> None:
    done = run(store, "show", "--json")
    assert done.stderr == ""
    assert not {"damaged", "unverified"} & set(json.loads(done.stdout))


@pytest.mark.parametrize(("change", "words"), [
    ({"batch": -8}, "batch"), ({"ranks": 0}, "ranks"), ({"seconds": -1.0}, "seconds"), ({"batch": 2.5}, "batch"),
    ({"started_at": "yesterday"}, "started_at"), ({"schema_version": 99}, "newer Paceline"), ({"id": GOOD}, GOOD),
    *(({"campaign": name}, "the name of a file") for name in ("../../outside", "/outside", "a\0b", "..")),
    ({"started_at": "0001-01-01T00:00:00+14:00"}, "started_at"),
    *(({"outcome": "failed", "failure": {**FAILURE, name: 2**40}}, name) for name in ("rank", "exit_code")),
    ({"case": {}}, "case.network"), ({"case": {"network": {}, "cluster": {}, "strategy": {}}}, "case.cluster"),
    ({"ranks": 5}, "devices of its case"),
    *(({"machine": {**MACHINE, name: -1}}, f"machine.{name}") for name in ("cores", "threads", "memory_bytes")),
    ({"timers": {"step": -1.0}}, "timers"), ({"dilation": 0.0}, "dilation"), ({"launch": -1}, "launch"),
    *(({"facts": {name: value}}, f"facts.{name}") for name in ("tokens_per_s", "mfu", "devices", "gc_share", "overlap")
      for value in ("x", -1, [1], {"a": 1}, 10**40)),
    *(({"facts": {name: value}}, f"facts.{name}") for name in ("collectives", "sharing", "files", "hosts", "gc_steps")
      for value in ("x", 1, [1], [None], {"a": 1})),
    *(({"facts": {name: value}}, f"facts.{name}") for name in ("replay", "host", "ddp") for value in ("x", 1, [1])),
    ({"facts": {"replay": {}}}, "facts.replay.measured_s"), ({"facts": {"any": float("nan")}}, "facts: a number"),
    ({"facts": {"replay": {**REPLAY, "blame": ["stage", "9"]}}}, "blame"),
    ({"facts": {"replay": {**REPLAY, "blame": ["micro-batches", "x"]}}}, "replay"),
    ({"facts": {"replay": {**REPLAY, "slow_steps": [3]}}}, "how long the cause acts"),
])  # fmt: skip
def test_values_out_of_their_domain_are_refused_even_with_checksums(
    store: Store, change: dict[str, Any], words: str
) -> None:
    edit(store.runs / BAD / "run.json", **change)
    with pytest.raises(DamagedData, match=words):
        store.read(BAD)
    assert len(store.read_all()) == 5


@pytest.mark.parametrize("facts", [{}, {"replay": {**REPLAY, "blame": ["stage", "0"]}}, {"own": [None, "x", 1e99]}])
def test_facts_that_readers_use_or_only_show_are_read(store: Store, facts: dict[str, Any]) -> None:
    edit(store.runs / BAD / "run.json", facts=facts)
    assert store.read(BAD).facts == facts


def test_a_run_that_is_said_to_be_watched_and_lacks_its_passes_is_explained(store: Store) -> None:
    for name in store.names():
        edit(store.runs / name / "run.json", launcher="watch")
    done = run(store, "explain")
    assert done.exit_code == 0, done.exception


@pytest.mark.parametrize(("column", "value"), [
    ("seconds", -0.1), ("seconds", float("nan")), ("seconds", None), ("rank", 1), ("rank", -1),
    ("start_s", float("inf")),
])  # fmt: skip
def test_values_of_tables_are_checked_too(store: Store, column: str, value: float | None) -> None:
    path = store.runs / BAD / "steps.parquet"
    table = pq.read_table(path)
    values = [value, *table[column].to_pylist()[1:]]
    at = table.schema.get_field_index(column)
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type)), path)
    write_sums(path.parent)
    with pytest.raises(DamagedData, match=column):
        store.read(BAD)


@pytest.mark.parametrize("name", ["run.json", "steps.parquet", "SHA256SUMS"])
@pytest.mark.parametrize("kind", ["fifo", "symlink", "device", "folder", "gone"])
def test_what_is_no_file_is_refused_and_nothing_hangs(store: Store, name: str, kind: str) -> None:
    path = store.runs / BAD / name
    aside = path.rename(path.with_name("aside"))
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "symlink":
        path.symlink_to(aside)
    elif kind == "folder":
        path.mkdir()
    assert len(store.read_all()) == 5
    assert list(store.damaged) == [BAD]
    assert [damage.run for damage in inspect_store(Store(store.root)).damaged] == [BAD]


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_what_is_no_list_of_checksums_is_said(store: Store, kept: int) -> None:
    path = store.runs / BAD / "SHA256SUMS"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:kept]) + "more\n" * (kept > 0))
    with pytest.raises(DamagedData, match="not a list of checksums"):
        store.read(BAD)


def test_a_run_that_is_a_link_and_a_campaign_that_is_a_fifo_are_refused(store: Store) -> None:
    (store.runs / "made-1-0009-000").symlink_to(store.runs / GOOD)
    os.mkfifo(store.campaigns / "pipe.json")
    assert len(store.read_all()) == 6
    assert len(store.read_campaigns()) == 1
    assert sorted(store.damaged) == ["made-1-0009-000", "pipe"]


def test_runs_without_checksums_are_read_and_that_is_said(store: Store) -> None:
    path = store.runs / BAD / "run.json"
    (path.parent / "SHA256SUMS").unlink()
    assert [damage.file for damage in inspect_store(Store(store.root)).damaged] == ["SHA256SUMS"]
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 2}))
    done = run(store, "show", "--json")
    assert json.loads(done.stdout)["unverified"] == 1
    assert BAD in done.stderr
    assert "without checksums" in run(store, "store", "check").stdout
    assert run(store, "store", "repair").exit_code == 0
    assert run(store, "show", "--json").stderr == ""


def test_a_full_disk_while_checksums_are_added_damages_no_run(store: Store) -> None:
    header = store.runs / GOOD / "run.json"
    header.write_text(json.dumps({**json.loads(header.read_text()), "schema_version": 2}))
    (header.parent / "SHA256SUMS").unlink()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))
    try:
        with pytest.raises(StoreError, match="cannot repair"):
            repair_store(Store(store.root))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert inspect_store(Store(store.root)).damaged == ()
    assert [item.done for item in repair_store(Store(store.root))] == ["checksums added"]


def test_an_old_campaign_without_checksum_is_read(store: Store) -> None:
    path = store.campaigns / "made-1.json"
    document = json.loads(path.read_text())
    del document["checksum"], document["schema_version"]
    path.write_text(json.dumps(document))
    assert [item["study"] for item in store.read_campaigns()] == ["made"]
    assert inspect_store(store).unverified == ("made-1",)
    path.write_text(json.dumps({**document, "schema_version": 3}))
    assert store.read_campaigns() == []


@pytest.mark.parametrize("name", ["title", "launcher", "digest", "study", "started_at"])
@pytest.mark.parametrize("value", [-1, None, float("inf"), ["text"]])
def test_a_campaign_whose_texts_are_none_is_damaged_even_with_a_checksum(
    store: Store, name: str, value: object
) -> None:
    path = store.campaigns / "made-1.json"
    document = {key: item for key, item in json.loads(path.read_text()).items() if key != "checksum"}
    path.write_text(seal({**document, name: value}))
    assert store.read_campaigns() == []
    assert store.damaged["made-1"].reason == f"no text called {name}"


def test_a_file_with_holes_that_is_larger_than_memory_is_damaged(store: Store) -> None:
    os.truncate(store.campaigns / "made-1.json", 1 << 40)
    os.truncate(store.runs / BAD / "run.json", 1 << 36)
    assert store.read_campaigns() == []
    assert store.damaged["made-1"].reason == "larger than 67108864 bytes"
    done = run(store, "store", "check", "--json")
    assert [item["run"] for item in json.loads(done.stdout)["damaged"]] == [BAD, "made-1"]


def test_check_names_every_damaged_file_and_repair_moves_it_aside(store: Store) -> None:
    flip(store.runs / BAD / "spans.parquet", 99)
    (store.campaigns / "made-1.json").write_text("{")
    done = run(store, "store", "check", "--json")
    assert done.exit_code == 1
    damaged = json.loads(done.stdout)["damaged"]
    assert [(item["run"], item["file"]) for item in damaged] == [
        (BAD, "spans.parquet"), ("made-1", "campaigns/made-1.json")]  # fmt: skip
    assert "spans.parquet" in run(store, "store", "check").stdout
    content = {path.name: path.read_bytes() for path in (store.runs / BAD).iterdir()}
    assert run(store, "store", "repair").exit_code == 0
    assert {path.name: path.read_bytes() for path in (store.root / "damaged" / BAD).iterdir()} == content
    assert "spans.parquet" in (store.root / "damaged" / f"{BAD}.why.txt").read_text()
    assert (store.root / "damaged" / "made-1.json").read_text() == "{"
    assert run(store, "store", "check").exit_code == 0
    shown = json.loads(run(store, "show", "made", "--json").stdout)
    assert sum(case["launches"] for case in shown["cases"]) == 5


def test_repair_takes_no_name_twice_and_leaves_newer_runs_alone(store: Store) -> None:
    for _ in range(2):
        store.write(RunData(make_run("demo-1-abc-000"), make_steps()))
        (store.runs / "demo-1-abc-000" / "run.json").write_text("?")
        repair_store(Store(store.root))
    assert (store.root / "damaged" / "demo-1-abc-000.1" / "run.json").read_text() == "?"
    edit(store.runs / BAD / "run.json", schema_version=99)
    assert all(item.run != BAD for item in repair_store(Store(store.root)))
    assert (store.runs / BAD / "run.json").exists()


def test_a_damaged_run_keeps_its_number(store: Store) -> None:
    from paceline.bench.campaign import Campaign, _Progress
    from paceline.catalog import shipped_catalog
    from paceline.spec.load import load_cases

    study, cases = load_cases(Path(__file__).parents[2] / "examples/studies/demo.toml", shipped_catalog())
    name = f"c-1-{cases[0].id}-004"
    store.write(RunData(make_run(name, campaign="c-1", case_id=cases[0].id, launch=4), make_steps()))
    flip(store.runs / name / "run.json", 5)
    campaign = Campaign("c-1", study, cases, None, None)  # type: ignore[arg-type]
    assert next(state.launched for state in _Progress(campaign, store).states) == 5


@pytest.mark.parametrize(("query", "value"), [("SELECT 1/0 AS x", None), ("SELECT 'nan'::DOUBLE AS x", None),
    ("SELECT [1/0] AS x", [None]), ("SELECT {'a': -1/0} AS x", {"a": None}),
    ("SELECT '1e5'::DECIMAL AS x", "100000.000"),
])  # fmt: skip
def test_an_infinite_answer_is_null_in_json(store: Store, query: str, value: object) -> None:
    assert json.loads(run(store, "query", query, "--json").stdout)["rows"] == [{"x": value}]


def test_stored_texts_give_the_terminal_no_commands(store: Store) -> None:
    """A log that a run keeps is not ours: its escapes could rename the window, or hide what is printed after them."""
    edit(store.runs / BAD / "run.json", framework="\x1b]0;gone\x07\u202e\x9b2J\\/")
    for words in (("query", "SELECT framework FROM runs ORDER BY id"), ("show",), ("query", "SELECT \x1b[31m")):
        said = run(store, *words)
        text = said.output + str(said.exception or "")
        assert not set("\x1b\x07\u202e\x9b") & set(said.output), text
    assert "\\x1b]0;gone\\x07\\u202e" in run(store, "query", "SELECT framework FROM runs").output


def test_a_campaign_is_rebuilt_from_its_earliest_run_and_the_order_of_its_cases(store: Store) -> None:
    path = store.campaigns / "made-1.json"
    before = json.loads(path.read_text())
    runs = [item for item in inspect_store(store).runs if item.campaign == "made-1"]
    path.write_text("{")
    repair_store(Store(store.root))
    after = json.loads(path.read_text())
    assert after["rebuilt"] is True
    assert (after["campaign"], after["study"], after["text"]) == ("made-1", before["study"], "")
    assert after["started_at"] == min(item.started_at for item in runs)
    assert after["cases"] == list(dict.fromkeys(item.case_id for item in runs))
    assert inspect_store(store).damaged == ()


def test_a_campaign_of_which_nothing_sound_is_left_is_moved_aside(tmp_path: Path) -> None:
    store = write(tmp_path, [Made(ranks=1, launches=1)])
    (store.campaigns / "made-1.json").write_text("{}")
    (store.runs / BAD / "run.json").write_text("{}")
    done = [one.run for one in repair_store(Store(tmp_path))]
    assert set(done) == {BAD, "made-1"}
    assert list(store.campaigns.iterdir()) == []


def test_a_document_is_sealed_as_one_of_this_version() -> None:
    found, verified = unseal(seal({"campaign": "a", "schema_version": 1}))
    assert (found["schema_version"], verified) == (integrity.SCHEMA_VERSION, True)


def test_checksums_that_lead_nowhere_are_damage_in_old_runs_too(store: Store) -> None:
    folder = store.runs / GOOD
    (folder / "SHA256SUMS").unlink()
    (folder / "SHA256SUMS").symlink_to("gone")
    with pytest.raises(DamagedData, match="SHA256SUMS"):
        read_files(folder)


def test_a_checksum_is_that_of_the_content_in_any_order_of_its_keys() -> None:
    sealed = json.loads(seal({"study": "a", "cases": ["x", "y"]}))
    turned = dict(reversed(sealed.items()))
    assert unseal(json.dumps(turned)) == unseal(json.dumps(sealed))
    with pytest.raises(ValueError, match="checksum"):
        unseal(json.dumps({**sealed, "cases": ["y", "x"]}))


def test_whatever_else_lies_in_a_store_is_named_or_left_alone_by_every_command(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (store.runs, store.campaigns):
        (folder / "file.json").write_text("{}")
        (folder / "folder.json").mkdir()
        (folder / "loop.json").symlink_to(folder / "loop.json")
        os.mkfifo(folder / "pipe.json")
        Path(os.fsdecode(bytes(folder) + b"/\xff\xfe.json")).mkdir()
        (folder / "line\nbreak\x1b[31m.json").mkdir()
        os.link(store.runs / GOOD / "run.json", folder / "hard.json")
    for name in ("run.json", "SHA256SUMS"):
        (store.runs / BAD / name).unlink()
        os.link(store.runs / GOOD / name, store.runs / BAD / name)
    for words in (*READING, ("store", "check")):
        done = run(store, *words)
        assert done.exit_code == (1 if words[0] == "store" else 0), (words, done.output, done.exception)
        assert "\x1b[31m" not in done.output, "a name is not a command to the terminal"
        json.loads(run(store, *words, "--json").stdout)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema_version": 4}, "newer Paceline"),
        ({"schema_version": "3"}, "schema version '3'"),
        ({"checksum": None}, "does not match its checksum"),
        ({"checksum": "0" * 64}, "does not match its checksum"),
        ({"study": "b"}, "does not match its checksum"),
        ({"schema_version": 2}, "does not match its checksum"),
    ],
)
def test_a_document_is_what_was_sealed(change: dict[str, Any], says: str) -> None:
    sealed = json.loads(seal({"study": "a"}))
    assert unseal(json.dumps(sealed)) == ({"study": "a", "schema_version": 3}, True)
    with pytest.raises(ValueError, match=says):
        unseal(json.dumps({**sealed, **change}))


def test_only_documents_from_before_checksums_may_lack_one() -> None:
    for version in (1, 2):
        assert unseal(json.dumps({"study": "a", "schema_version": version}))[1] is False
    assert unseal(json.dumps({"study": "a"})) == ({"study": "a"}, False)
    with pytest.raises(ValueError, match="checksum"):
        unseal(json.dumps({"study": "a", "schema_version": 3}))
    with pytest.raises(ValueError, match="not a table"):
        unseal("[]")


def test_a_file_of_the_largest_size_is_read_and_a_larger_one_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store.runs / GOOD
    sizes = [(folder / name).stat().st_size for name in (*integrity.FILES, integrity.SUMS)]
    monkeypatch.setattr(integrity, "MAX_BYTES", max(sizes))
    assert read_files(folder)[1] is True
    monkeypatch.setattr(integrity, "MAX_BYTES", max(sizes) - 1)
    with pytest.raises(DamagedData, match="larger than"):
        read_files(folder)


def test_what_is_missing_from_the_checksums_or_is_no_folder_is_said(store: Store) -> None:
    folder = store.runs / GOOD
    path = folder / "SHA256SUMS"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "spans" not in line))
    with pytest.raises(DamagedData, match=r"spans.parquet: not in SHA256SUMS"):
        read_files(folder)
    with pytest.raises(DamagedData, match="No such file"):
        read_files(store.runs / "nobody")
    with pytest.raises(DamagedData, match="not a folder"):
        read_files(path)


def test_a_note_is_made_once_for_each_run_of_each_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notes, first = Notes(), Damage("a", "run.json", "first")
    for root, damage in ((tmp_path, first), (tmp_path, Damage("a", "x", "second")), (tmp_path / "b", first)):
        notes.left_out(root, damage)
    for name in ("old", "old", "older"):
        notes.read_unverified(tmp_path, name)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "left out as damaged", "left out as damaged", "stored without checksums, so read unverified",
    ]  # fmt: skip
    assert notes.as_dict() == {"damaged": [vars(first), vars(first)], "unverified": 2}
    notes.clear()
    assert notes.as_dict() == {}


def test_a_run_under_the_name_of_another_is_not_that_run(tmp_path: Path) -> None:
    """A folder that was copied would count twice."""
    store = write(tmp_path, [Made(launches=1)])
    (name,) = store.names()
    shutil.copytree(store.runs / name, store.runs / f"{name[:-1]}9")
    fresh = Store(tmp_path)
    assert [run.id for run in fresh.read_all()] == [name]
    assert "it is the header of run" in str(fresh.damaged[f"{name[:-1]}9"])


def test_a_run_of_this_version_without_checksums_is_damaged(tmp_path: Path) -> None:
    """Otherwise whoever removes them could change the run."""
    store = write(tmp_path, [Made(launches=1)])
    (name,) = store.names()
    (store.runs / name / "SHA256SUMS").unlink()
    fresh = Store(tmp_path)
    assert fresh.read_all() == []
    assert "SHA256SUMS: missing" in str(fresh.damaged[name])
