"""Flight recorder dumps, nccl-tests and training logs: who hangs, what a link reaches, how long a step takes."""

from __future__ import annotations

import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.catalog.links import link
from paceline.cli import program
from paceline.cost.collective import bus_factor
from paceline.errors import InputError
from paceline.measurements.foreign.logs import looks_like_log, read_log
from paceline.measurements.foreign.nccl_tests import looks_like_nccl_tests, read_nccl_tests
from paceline.measurements.foreign.recorder import Hang, find_hangs, read_dump
from paceline.measurements.store import Store
from paceline.model.calibrate import stored_sweeps
from paceline.model.calibration import read_calibration
from paceline.model.links import calibrate_tests, judge_link
from tests.property.records import nccl_json
from tests.unit.imports.generated import HF_BAR, LIGHTNING, MEGATRON, NCCL_TEXT, TITAN, dump, entry


def hangs(folder: Path, dumps: dict[int, dict[str, Any]]) -> tuple[Hang, ...]:
    """Written half as pickles, half as JSON, and read back."""
    for rank, document in dumps.items():
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(document, protocol=2) if rank % 2 else json.dumps(document).encode())
    return find_hangs(read_dump(path) for path in sorted(folder.iterdir()))


def test_the_rank_that_lacks_a_collective_is_named(tmp_path: Path) -> None:
    reached = [entry(1), entry(2), entry(3, state="started")]
    (hang,) = hangs(tmp_path, {0: dump(reached), 1: dump([entry(1), entry(2)]), 2: dump(reached)})
    assert (hang.number, hang.name, hang.waiting, hang.missing, hang.culprits) == (
        3,
        "nccl:all_reduce",
        (0, 2),
        (1,),
        (1,),
    )
    assert "nccl:all_reduce 2 (completed)" in hang.last[1]
    assert "train (/home/me/train.py:88)" in hang.last[1]


def test_a_rank_that_waits_elsewhere_is_not_the_cause(tmp_path: Path) -> None:
    """Rank 1 lacks the collective of group 0 because it waits for rank 2 in group 1."""
    groups = {"0": "[0, 1]", "1": "[1, 2]"}
    found = hangs(tmp_path, {
        0: dump([entry(1), entry(2, state="started")], groups),
        1: dump([entry(1), entry(1, state="started", group="1")], groups),
        2: dump([], groups),
    })  # fmt: skip
    assert [(hang.group, hang.missing, hang.culprits) for hang in found] == [("1", (2,), (2,)), ("0", (1,), ())]


def test_different_collectives_under_one_number_and_missing_dumps(tmp_path: Path) -> None:
    other = entry(2, "nccl:broadcast", "started")
    found = hangs(tmp_path, {0: dump([entry(1), entry(2, state="started")]), 1: dump([entry(1), other])})
    assert [(hang.waiting, hang.other, hang.no_dump, hang.culprits) for hang in found] == [
        ((0,), {1: "nccl:broadcast"}, (2,), (0, 1, 2))
    ]


def test_groups_of_one_description_are_told_apart_by_their_ranks(tmp_path: Path) -> None:
    """Two data-parallel groups of a mesh: one is done with its fifth collective, the other waits in its third."""
    dumps = {}
    for rank, calls in enumerate((3, 5, 2, 5)):
        group, ranks = ("1", "[0, 2]") if rank % 2 == 0 else ("2", "[1, 3]")
        states = {(0, 3): "started"}
        entries = [entry(n, state=states.get((rank, n), "completed")) for n in range(1, calls + 1)]
        config = {group: {"name": group, "desc": "dp", "ranks": ranks}}
        dumps[rank] = {**dump([one | {"process_group": [group, "dp"]} for one in entries]), "pg_config": config}
    (hang,) = hangs(tmp_path, dumps)
    assert (hang.group, hang.number, hang.waiting, hang.culprits) == ("dp (ranks 0, 2)", 3, (0,), (2,))


def test_of_two_ranks_that_disagree_none_is_right(tmp_path: Path) -> None:
    names = ("nccl:all_gather", "nccl:all_reduce")
    dumps = {rank: dump([entry(1, name, "started")], {"0": "[0, 1]"}) for rank, name in enumerate(names)}
    assert hangs(tmp_path, dumps)[0].culprits == (0, 1)


def test_a_collective_that_all_entered_accuses_nobody_and_a_finished_job_has_no_hang(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    stuck = dump([entry(1), entry(2, state="started")])
    (hang,) = hangs(tmp_path / "a", {0: stuck, 1: stuck, 2: stuck})
    assert (hang.missing, hang.culprits, len(hang.waiting)) == ((), (), 3)
    done = dump([{**entry(1, state="scheduled"), "retired": True}, entry(2)])
    assert hangs(tmp_path / "b", {0: done, 1: done, 2: done}) == ()


def test_a_collective_that_all_have_entered_and_none_has_left_is_told(tmp_path: Path) -> None:
    """The link or the library is at fault: no rank is."""
    waits = dump([entry(1), entry(2, state="started")])
    (hang,) = hangs(tmp_path, {0: waits, 1: waits, 2: waits})
    assert (hang.number, hang.waiting, hang.missing, hang.culprits) == (2, (0, 1, 2), (), ())


def test_a_collective_that_was_not_retired_waits(tmp_path: Path) -> None:
    waits = dump([{**entry(1, state="started"), "retired": False}])
    (hang,) = hangs(tmp_path, {0: waits, 1: dump([])})
    assert (hang.waiting, hang.missing) == ((0,), (1,))


def pair(number: int, name: str, state: str = "completed") -> dict[str, Any]:
    return {**entry(1, name, state), "is_p2p": True, "p2p_seq_id": number}


def test_a_receive_waits_for_its_sender_unless_that_one_waits_itself(tmp_path: Path) -> None:
    """Stage 3 waits for 2, and 2 for 1; peers are counted within their group."""
    groups = {"0": "[0, 1, 2, 3]", "1": "[1, 2, 3]"}
    stages = {0: [], 1: [pair(1, "nccl:send 0->1")],
              2: [pair(1, "nccl:recv 1<-0"), pair(2, "nccl:recv 1<-0", "started")],
              3: [pair(1, "nccl:recv 2<-1", "scheduled")]}  # fmt: skip
    named = {
        rank: [{**one, "process_group": ("1", "undefined")} for one in entries] for rank, entries in stages.items()
    }
    (hang,) = hangs(tmp_path, {rank: dump([entry(1), *entries], groups) for rank, entries in named.items()})
    assert (hang.waiting, hang.missing, hang.culprits) == ((2, 3), (1,), (1,))
    assert hang.last[1].startswith("nccl:send 0->1 1 (completed)")


def test_what_the_buffer_of_a_rank_has_dropped_it_is_not_missing(tmp_path: Path) -> None:
    """Of rank 0 only the newest three are left; that the first one of rank 1 has no end says nothing."""
    kept = [entry(number) for number in (3, 4, 5)]
    older = [entry(1, state="scheduled"), entry(2), *kept]
    assert hangs(tmp_path, {0: dump(kept), 1: dump(older)}) == ()


def test_the_first_of_the_pairs_that_wait_is_told(tmp_path: Path) -> None:
    groups = {"0": "[0, 1, 2, 3]"}
    waits = {0: [], 1: [pair(7, "nccl:recv 1<-0", "started")], 2: [pair(3, "nccl:recv 2<-0", "started")]}
    (hang,) = hangs(tmp_path, {rank: dump([entry(1), *entries], groups) for rank, entries in waits.items()})
    assert (hang.number, hang.name, hang.waiting) == (3, "nccl:recv 2<-0", (1, 2))


def test_a_batch_of_sends_and_receives_has_the_state_of_its_end(tmp_path: Path) -> None:
    parts = [pair(1, "nccl:send 0->1", "scheduled"), pair(1, "nccl:recv 0<-1", "scheduled")]
    assert hangs(tmp_path, {0: dump([*parts, pair(1, "nccl:coalesced")], {"0": "[0, 1]"})}) == ()
    (hang,) = hangs(tmp_path, {0: dump([*parts, pair(1, "nccl:coalesced", "started")], {"0": "[0, 1]"})})
    assert (hang.name, hang.waiting, hang.no_dump, hang.culprits) == ("nccl:send 0->1", (0,), (1,), (1,))


def test_ranks_that_give_other_sizes_to_a_collective_are_named(tmp_path: Path) -> None:
    stuck = [entry(1), entry(2, state="started")]
    small = [entry(1), {**entry(2, state="started"), "input_sizes": [[512]]}]
    (hang,) = hangs(tmp_path, {0: dump(stuck), 1: dump(small), 2: dump(stuck)})
    assert (hang.name, hang.waiting, hang.other, hang.culprits) == (
        "nccl:all_reduce", (0, 2), {1: "nccl:all_reduce of [512]"}, (1,))  # fmt: skip


@pytest.mark.parametrize(
    "name", ["nccl_trace_rank_{}.json.gz", "comm_lib_trace_rank_{}", "rank{}-20260501.json", "d{}.pkl"]
)
def test_the_rank_of_a_dump_is_in_its_name_whatever_follows(tmp_path: Path, name: str) -> None:
    paths = [tmp_path / name.format(rank) for rank in (0, 10, 2)]
    for path in paths:
        path.write_text(json.dumps(dump([entry(1)])))
    assert [read_dump(path, fallback_rank=place).rank for place, path in enumerate(paths)] == [0, 10, 2]


def test_a_rank_that_called_nothing_and_many_ranks_without_a_dump(tmp_path: Path) -> None:
    silent = {key: value for key, value in dump([]).items() if key != "entries"}
    (hang,) = hangs(tmp_path, {0: silent, 1: dump([entry(1, state="started")]), 2: dump([entry(1, state="started")])})
    assert (hang.missing, hang.culprits) == ((0,), (0,))
    (tmp_path / "one").mkdir()
    (hang,) = hangs(tmp_path / "one", {0: dump([entry(1, state="started")])})
    assert (hang.no_dump, hang.culprits) == ((1, 2), ())
    done = CliRunner().invoke(program, ["import", str(tmp_path / "one")])
    assert "the hanging rank is not known: give the dumps of all ranks" in done.output


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_numbers_that_a_dump_leaves_out_or_that_are_huge_cost_nothing(tmp_path: Path) -> None:
    (found,) = hangs(tmp_path, {0: dump([entry(0), entry(2 * 10**9, state="started")]), 1: dump([entry(0)])})
    assert (found.number, found.waiting, found.missing) == (2 * 10**9, (0,), (1,))


def test_a_malicious_pickle_executes_nothing(tmp_path: Path) -> None:
    path, trace = tmp_path / "dump_0", tmp_path / "executed"
    path.write_bytes(pickle.dumps({"entries": [Malicious(trace)]}))
    with pytest.raises(InputError, match=r"would import (posix|os)\.system, which was not executed"):
        read_dump(path)
    assert not trace.exists()


def test_nccl_tests_are_read_as_text_and_as_json(tmp_path: Path) -> None:
    text = tmp_path / "out.txt"
    text.write_text(NCCL_TEXT)
    found = read_nccl_tests(text)
    assert (found.operation, found.ranks, found.hosts, found.device) == (
        "all_reduce", 2, ("host-a",), "NVIDIA H100 80GB HBM3")  # fmt: skip
    assert [(row.size_bytes, round(row.seconds, 9)) for row in found.sizes][-1] == (1073741824, 2700e-6)
    assert found.peak == pytest.approx(397.68e9)
    rows = [
        {
            "size": r.size_bytes,
            "out_of_place": {"time": 1e6 * r.seconds, "bus_bw": r.bus_bandwidth / 1e9, "nwrong": 0.0},
        }
        for r in found.sizes
    ]
    devices = [{"hostname": "host-a", "device_info": "NVIDIA H100 80GB HBM3"}] * 2
    path = tmp_path / "all_reduce.json"
    path.write_text(json.dumps({"config": {"nthreads": 1, "ngpus": 1, "devices": devices}, "results": rows}))
    other = read_nccl_tests(path)
    assert (other.operation, other.ranks, other.hosts) == (found.operation, 2, ("host-a",))
    assert [row.seconds for row in other.sizes] == pytest.approx([row.seconds for row in found.sizes])


@pytest.mark.parametrize(("name", "status"), [("nvlink4", "PASS"), ("nvlink5", "FAIL")])
def test_a_link_passes_or_fails_by_its_stated_bandwidth(tmp_path: Path, name: str, status: str) -> None:
    path = tmp_path / "out.txt"
    path.write_text(NCCL_TEXT)
    verdict = judge_link(read_nccl_tests(path), link(name))
    assert verdict.status == status
    assert verdict.share == pytest.approx(397.68e9 / link(name).bandwidth)
    done = CliRunner().invoke(
        program, ["calibrate", "--nccl-tests", str(path), "--link", name, "--output", str(tmp_path / "c.json")]
    )
    assert status in done.output
    assert (done.exit_code == 0) == (status == "PASS")
    (fit,) = read_calibration(tmp_path / "c.json").collectives
    assert (fit.operation, fit.ranks, fit.largest) == ("all_reduce", 2, 1073741824)


def test_small_messages_decide_nothing_and_wrong_elements_fail(tmp_path: Path) -> None:
    lines = [line for line in NCCL_TEXT.splitlines() if "268435456" not in line and "1073741824  " not in line]
    path = tmp_path / "out.txt"
    path.write_text("\n".join(lines))
    assert judge_link(read_nccl_tests(path), link("nvlink4")).status == "UNDECIDED"
    path.write_text(NCCL_TEXT.replace("397.68      0", "397.68      7"))
    verdict = judge_link(read_nccl_tests(path), link("nvlink4"))
    assert (verdict.status, "7 elements" in verdict.advice) == ("FAIL", True)


def test_imported_nccl_tests_are_sweeps_of_their_cluster(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text(NCCL_TEXT)
    done = CliRunner().invoke(
        program, ["import", str(path), "--cluster", "dgx-h100", "--store", str(tmp_path / "s"), "--json"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["tests"][0]["operation"] == "all_reduce"
    (fit,) = stored_sweeps(Store(tmp_path / "s"), "dgx-h100")
    (same,) = calibrate_tests([path], None)[0].collectives
    assert fit == same


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [('"ngpus": 1', '"ngpus": 4000000000', "at most 10,000,000"), ('"nwrong": 0', '"nwrong": -1', "-1 wrong")],
)
def test_impossible_numbers_of_a_test_are_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "all_reduce.json"
    text = nccl_json(tmp_path)[0].decode()
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=said):
        read_nccl_tests(path)
    path.write_text(text)
    assert read_nccl_tests(path).ranks == 4


def test_a_test_that_does_not_name_its_collective_is_asked_for_it(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    halved = re.sub(r"(\d+\.\d+)( +)\1", lambda found: f"{found[1]}{found[2]}{float(found[1]) / 2:.2f}", NCCL_TEXT)
    gathers = halved.replace("all_reduce_perf", "perf").replace("  sum ", " none ")
    path.write_text(gathers)
    with pytest.raises(InputError, match="does not name its collective"):
        read_nccl_tests(path)
    assert read_nccl_tests(path, "all_gather").operation == "all_gather"
    path.write_text(gathers.replace("perf", "alltoall_perf", 1))
    with pytest.raises(InputError, match="output of alltoall_perf, not of all_gather"):
        read_nccl_tests(path, "all_gather")
    path.write_text(NCCL_TEXT.replace("all_reduce_perf", "perf"))
    assert read_nccl_tests(path).operation == "all_reduce"
    path.write_text(NCCL_TEXT + NCCL_TEXT.replace("all_reduce_perf", "all_gather_perf"))
    with pytest.raises(InputError, match="tests of all_reduce and all_gather"):
        read_nccl_tests(path)


@pytest.mark.parametrize("label", [
    "0: ", " 0: ", "[1,0]<stdout>:", "[prterun-node1-77@1,0]<stdout>: ", "[pod/test-launcher-x/main] ", "node1: ",
    "2026-05-01T10:00:00.123456789Z ", "[2026-05-01 10:00:00] ", "launcher-1  | ", "\x1b[36mlauncher |\x1b[0m ",
])  # fmt: skip
def test_labels_before_the_lines_of_a_test(tmp_path: Path, label: str) -> None:
    """As srun, mpirun, kubectl, pdsh and docker write them; a size of 12 digits may follow its label at once."""
    path = tmp_path / "out.txt"
    path.write_text("".join(f"{label}{line}\n" for line in NCCL_TEXT.splitlines()))
    found = read_nccl_tests(path)
    assert (found.ranks, found.hosts, found.peak) == (2, ("host-a",), pytest.approx(397.68e9))
    assert [row.size_bytes for row in found.sizes] == [1048576, 16777216, 268435456, 1073741824]
    glued = " 137438953472   34359738368     float     sum      -1   345600  397.68  397.68      0"
    path.write_text(f"{path.read_text()}{label}{glued[1:] if label.endswith(':') else glued}\n")
    assert read_nccl_tests(path).sizes[-1].size_bytes == 137438953472


def test_digits_that_no_program_writes_are_no_row(tmp_path: Path) -> None:
    path = tmp_path / "squared.txt"
    path.write_text(NCCL_TEXT.replace("    16777216 ", "    1677721\u00b2 "), encoding="utf-8")
    assert [row.size_bytes for row in read_nccl_tests(path).sizes] == [1048576, 268435456, 1073741824]


def test_output_of_nccl_between_the_lines_of_a_test(tmp_path: Path) -> None:
    """A row that it breaks is left out, and the table may begin after much of it."""
    row = "     1048576        262144     float     sum      -1"
    told = "host-a:6899:6950 [0] NCCL INFO Channel 00/08 :    0   1"
    path = tmp_path / "out.txt"
    path.write_text(
        NCCL_TEXT.replace(row, f"{row}{told}\n{told}\n").replace("#  Rank  0", f"{told}\n" * 2000 + "#  Rank  0")
    )
    assert looks_like_nccl_tests(path)
    assert [row.size_bytes for row in read_nccl_tests(path).sizes] == [16777216, 268435456, 1073741824]
    path.write_text(NCCL_TEXT.replace("    20.00   52.43", f"{told}\n   200000   52.43"))
    assert len(read_nccl_tests(path).sizes) == 3


@pytest.mark.parametrize(("old", "new", "says", "hint"), [
    ("# Out of", "host-a: Test NCCL failure common.cu:958 'remote error'\n .. host-a pid 9: Test failure a.cu:8\n#",
     "the test failed: host-a: Test NCCL failure common.cu:958 'remote error'", "test again"),
    ("#  Rank  1", "#  Rank  1 Group  0 Pid  7 on h device  0 [0x04] H100\n#  Rank  2",
     "busbw is 1 times algbw, all_reduce of 3 ranks has 1.33 times", "# Rank"),
    ("# Out of", NCCL_TEXT.replace("#  Rank  1", "#  Rank  1 Group  0 Pid  7 on h device  0 [0x04] H100\n#  Rank  2"),
     "it holds tests of 2 and 3 ranks", "out.txt"),
    ("all_reduce_perf", "alltoall_perf", "'alltoall' has no place in the model", "test one of"),
])  # fmt: skip
def test_tests_that_say_nothing_about_their_link(tmp_path: Path, old: str, new: str, says: str, hint: str) -> None:
    path = tmp_path / "out.txt"
    path.write_text(NCCL_TEXT.replace(old, new))
    with pytest.raises(InputError, match=says) as refused:
        read_nccl_tests(path)
    assert hint in str(refused.value)


@pytest.mark.parametrize(("old", "new", "wrong"), [
    ("397.8      0", "397.8      5", 5), ("397.8      0", "397.8    N/A", 0), ("values : 0 OK", "values : 7 FAILED", 7),
])  # fmt: skip
def test_wrong_elements_in_place_count_and_those_of_the_sum(tmp_path: Path, old: str, new: str, wrong: int) -> None:
    path = tmp_path / "out.txt"
    path.write_text(NCCL_TEXT.replace(old, new))
    assert read_nccl_tests(path).wrong == wrong


OLD_TEXT = """# nThread 1 nGpus 4 minBytes 134217728 maxBytes 536870912 step: 2(factor) warmup iters: 5 iters: 20
#   Rank  0 Pid   1320 on ip-172-31-20-228 device  0 [0x00] Tesla V100-SXM2-16GB
#   Rank  1 Pid   1320 on ip-172-31-20-228 device  1 [0x00] Tesla V100-SXM2-16GB
#   Rank  2 Pid   1320 on ip-172-31-22-230 device  0 [0x00] Tesla V100-SXM2-16GB
#   Rank  3 Pid   1320 on ip-172-31-22-230 device  1 [0x00] Tesla V100-SXM2-16GB
#
#                                                       out-of-place                       in-place
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
   134217728      33554432     float     sum   119305    1.13    1.69  1e-06   119400    1.12    1.68  1e-06
   536870912     134217728     float     sum   477218    1.13    1.69  1e-06   477600    1.12    1.68  1e-06
"""


def test_the_columns_of_other_versions_and_labelled_lines(tmp_path: Path) -> None:
    """Versions before 2.13 have no root and an error instead of a count; srun and mpirun may label the lines."""
    path = tmp_path / "out.txt"
    for label in ("", "0: ", "[1,0]<stdout>:"):
        path.write_text("".join(f"{label}{line}\n" for line in OLD_TEXT.splitlines()))
        found = read_nccl_tests(path)
        assert (found.operation, found.ranks, len(found.hosts), found.wrong) == ("all_reduce", 4, 2, 0)
        assert [(row.seconds, row.bus_bandwidth) for row in found.sizes] == [
            (pytest.approx(0.119305), 1.69e9), (pytest.approx(0.477218), 1.69e9)]  # fmt: skip
    alone = OLD_TEXT.replace("Rank  1", "Rank  0").replace("Rank  2", "Rank  0").replace("Rank  3", "Rank  0")
    path.write_text(alone)
    with pytest.raises(InputError, match="1 rank") as refused:
        read_nccl_tests(path)
    assert "MPI=1" in str(refused.value.hint)


def test_the_document_of_nccl_tests(tmp_path: Path) -> None:
    """Field by field as version 2 writes it: times of the host, wrong elements as a fraction, one entry a process."""
    devices = [{"rank": 4 * number, "group": 0, "pid": 9, "hostname": f"n{number}", "device": 0,
                "device_hex": "0000:04:00", "device_info": "NVIDIA B200"} for number in range(2)]  # fmt: skip
    body = {"cpu_time": 2000.0, "alg_bw": 134.2, "bus_bw": 234.9, "nwrong": 3.0}
    rows = [{"size": 0, "count": 0, "type": "float", "redop": "sum", "root": "    -1",
             "out_of_place": {**body, "alg_bw": "nan", "bus_bw": "nan"}, "in_place": body},
            {"size": 268435456, "count": 67108864, "type": "float", "redop": "sum", "root": "    -1",
             "out_of_place": None, "in_place": body, "actual_iterations": 20, "experiment_name": ""}]  # fmt: skip
    document = {"version": 2, "args": ["/opt/all_reduce_perf_mpi", "-g", "4"], "env": ["OLD=all_gather_perf"],
                "nccl_version": 22903, "config": {"nthreads": 2, "ngpus": 2, "devices": devices}, "results": rows,
                "out_of_bounds": {"count": 3, "okay": "false"}}  # fmt: skip
    path = tmp_path / "out.json"
    path.write_text(json.dumps(document))
    found = read_nccl_tests(path)
    assert (found.operation, found.ranks, found.hosts, found.wrong) == ("all_reduce", 8, ("n0", "n1"), 3)
    assert [(row.size_bytes, row.seconds) for row in found.sizes] == [(268435456, 2e-3)]
    for device in devices:
        device["group"] = int(device["rank"])
    body["bus_bw"] = 201.3
    path.write_text(json.dumps(document))
    assert read_nccl_tests(path).ranks == 4


@pytest.mark.parametrize(("text", "form", "seconds", "ranks"), [
    (TITAN, "torchtitan", [4.0, 2.0, 2.0], 8),
    (MEGATRON, "megatron", [1.1476, 1.0], 16),
    (HF_BAR, "hf-trainer", [2.0, 1.5, 0.4], 1),
    (LIGHTNING, "lightning", [2.0, 0.25], 1),
])  # fmt: skip
def test_logs_of_known_programs(tmp_path: Path, text: str, form: str, seconds: list[float], ranks: int) -> None:
    path = tmp_path / "train.log"
    path.write_text("starting\n" + text)
    log = read_log(path)
    assert (log.form, log.ranks) == (form, ranks)
    assert [step.seconds for step in log.steps] == pytest.approx(seconds)
    done = CliRunner().invoke(program, ["import", str(path), "--name", "mine", "--store", str(tmp_path / "s")])
    assert done.exit_code == 0, done.output
    assert f"{len(seconds)} timed steps of {form}" in done.output
    (run,) = Store(tmp_path / "s").read_all(study="mine")
    assert (run.launcher, run.facts["source"]) == ("import", form)


def inspected(rank: int, number: int, micros: int, coll: str = "AllReduce", size: int = 1 << 27) -> str:
    """A line as version 4.0 of the Inspector writes it."""
    record = {
        "header": {"id": "0x7f8c496ae9f661", "rank": rank, "n_ranks": 3, "nnodes": 3},
        "metadata": {"inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "profiler_plugin",
                     "dump_timestamp_us": 1748030377748202, "hostname": f"node{rank}", "pid": 163},
        "coll_perf": {"coll": coll, "coll_sn": number, "coll_msg_size_bytes": size, "coll_exec_time_us": micros,
                      "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": size / micros / 1e3,
                      "coll_busbw_gbs": size / micros / 1e3 * 4 / 3},
    }  # fmt: skip
    return json.dumps(record) + "\n"


def test_logs_of_the_inspector_say_what_collectives_take_and_who_is_late(tmp_path: Path) -> None:
    """Rank 2 enters last in 18 of 20 collectives: it waits for nobody, and the others for 3 ms."""
    folder = tmp_path / "nccl-inspector-77"
    folder.mkdir()
    for rank in range(3):
        lines = [inspected(rank, n, 1000 + (0 if (rank == 2) == (n > 1) else 3000)) for n in range(20)]
        lines.append(inspected(rank, 3, 50, "Send"))
        (folder / f"node{rank}-pid163.log").write_text("".join(lines) + '{"header": {"id": "0x7')
    done = CliRunner().invoke(program, ["import", str(folder), "--store", str(tmp_path / "s"), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    (test,) = found["tests"]
    assert (test["operation"], test["ranks"], test["hosts"]) == ("all_reduce", 3, ["node0", "node1", "node2"])
    assert [row["seconds"] for row in test["sizes"]] == [pytest.approx(1e-3)]
    late = found["late"]
    assert (late["rank"], late["host"], late["share"], late["wait_s"]) == (2, "node2", 0.9, pytest.approx(3e-3))
    done = CliRunner().invoke(program, ["import", str(folder), "--store", str(tmp_path / "s")])
    assert "rank 2 of group 0x7f8c496ae9f661 (node2) enters last in 90.0 % of 20 collectives" in done.output


@pytest.mark.parametrize(("text", "says"), [
    (inspected(5, 1, 9), "rank 5 of 3"),
    (inspected(1, 1, -9), "bytes in -9e-06 s"),
    (inspected(1, 1, 9).replace("coll_busbw_gbs", "x"), "coll_busbw_gbs"),
    (inspected(1, 1, 9) + '{"header": 7, "coll_perf": 3}\n' + inspected(1, 2, 9), "line 2"),
    (inspected(1, 1, 9, "Send"), "no collective of a known kind"),
])  # fmt: skip
def test_unsound_logs_of_the_inspector(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "a.log"
    path.write_text(text)
    done = CliRunner().invoke(program, ["import", str(path), "--store", str(tmp_path / "s")])
    assert isinstance(done.exception, InputError)
    assert says in str(done.exception)
    assert "NCCL_INSPECTOR_ENABLE=1" in str(done.exception.hint)


TITAN_OLD = (
    "[rank0]:2024-05-23 12:00:0{n},000 - root - INFO - step: {n}  loss: 10.84  memory: 1GiB(1%)  wps: 8,190  mfu: 1%\n"
)
DEEPSPEED = (
    " iteration {n:8d}/  250000 | consumed samples: 9 | elapsed time per iteration (ms): 2000.0 | "
    "learning rate: 9.1E-06 | global batch size:  1024 | lm loss: 2.5E+00 | loss scale: 1.0 | grad norm: 0.2 | "
    "samples per second: 512.0 | tokens per gpu per second (tgs): 4096.5 | TFLOPs: 31.25 |\n"
)
SANITY = "Sanity Checking DataLoader 0: 100%|##########| 2/2 [00:00<00:00, 68.98it/s]\n"
VALIDATION = "Validation DataLoader 0: 100%|##########| 4/4 [00:00<00:00, 99.00it/s]\n"
BAR_L = "\rEpoch {e}:  22%|##1       | {n}/18 [00:17<01:02,  4.00s/it, loss=10.072, v_num=193315]"
RICH = "\x1b[2KEpoch {e}/9 \x1b[38m━━━━\x1b[0m {n}/18 0:00:05 • 0:00:01 0.25it/s v_num: 0\n"
SHARDS = "Loading checkpoint shards: 100%|##########| 2/2 [00:05<00:00,  2.60s/it]\n"
BAR_H = "\r  1%|1         | {n}/1000 [00:12<20:40,  1.25s/it]"
EVALUATION = "\r 31%|###       | {n}/13 [00:02<00:00,  5.20it/s]"


@pytest.mark.parametrize(("text", "form", "steps", "seconds"), [
    ("".join(TITAN_OLD.format(n=n) for n in (1, 2, 3)), "torchtitan", [2, 3], 1.0),
    ("".join(DEEPSPEED.format(n=n) for n in (122, 123)), "megatron", [122, 123], 2.0),
    (SANITY + "".join(BAR_L.format(e=e, n=n) for e in (0, 1) for n in (4, 5)) + "\n" + VALIDATION, "lightning",
     [4, 5, 22, 23], 4.0),
    ("".join(RICH.format(e=e, n=n) for e in (0, 1) for n in (4, 5)), "lightning", [4, 5, 22, 23], 4.0),
    (SHARDS + "".join(BAR_H.format(n=n) for n in (1, 2, 3)) + EVALUATION.format(n=2) + EVALUATION.format(n=4),
     "hf-trainer", [1, 2, 3], 1.25),
])  # fmt: skip
def test_lines_as_they_are_found_in_public_logs(
    tmp_path: Path, text: str, form: str, steps: list[int], seconds: float
) -> None:
    """Other versions, other bars between those of the training, several epochs."""
    path = tmp_path / "train.log"
    path.write_text(text)
    log = read_log(path)
    assert (log.form, [step.step for step in log.steps]) == (form, steps)
    assert [step.seconds for step in log.steps] == pytest.approx([seconds] * len(steps))
    if form == "megatron":
        assert {(step.tokens_per_s, step.tflops) for step in log.steps} == {(4096.5, 31.25)}


def test_figures_of_a_log_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(TITAN)
    log = read_log(path)
    assert [step.step for step in log.steps] == [1, 2, 3]
    assert [step.tokens_per_s for step in log.steps] == [4096.0, 8192.0, 8192.0]
    assert [step.mfu for step in log.steps] == pytest.approx([0.0004, 0.1027, 0.1031])
    assert log.sequence == 2048
    path.write_text(MEGATRON)
    assert [(step.samples, step.tflops) for step in read_log(path).steps] == [(64, 210.5), (64, 210.5)]


def test_seconds_from_the_times_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(TITAN.replace("sequence length", "something"))
    assert [step.seconds for step in read_log(path).steps] == [2.0, 2.0]


def test_a_time_before_1970_is_none(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(TITAN.replace("2025-10-30 14:33:01", "0025-10-30 14:33:01"))
    assert [step.at_s is None for step in read_log(path).steps] == [False, True, False]


def test_a_log_is_known_by_its_first_lines(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("hello\n" * 19_990 + TITAN)
    assert looks_like_log(path)
    path.write_text("hello\n" * 20_001 + TITAN)
    assert not looks_like_log(path)
    path.write_text("hello\n")
    assert not looks_like_log(path)


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_times_and_bandwidths_of_nccl_tests_that_contradict_each_other_are_refused(
    tmp_path: Path, factor: float
) -> None:
    """Times in milliseconds or nanoseconds: the bandwidth of the buffer says that they are no microseconds."""
    path = tmp_path / "all_reduce_perf.txt"
    path.write_text(NCCL_TEXT.replace(" 70.00 ", f" {70 * factor:.6f} "))
    with pytest.raises(InputError, match=r"16777216 bytes in .* us are .* GB/s, stated are 239.67"):
        read_nccl_tests(path)
    column = {"time": 70.0 * factor, "alg_bw": 239.67, "bus_bw": 239.67, "nwrong": 0}
    devices = [{"rank": rank, "hostname": "a"} for rank in (0, 1)]
    path.write_text(json.dumps({"config": {"devices": devices}, "nccl_version": 1,
                                "results": [{"size": 16777216, "out_of_place": column}]}))  # fmt: skip
    with pytest.raises(InputError, match="microseconds"):
        read_nccl_tests(path)


@pytest.mark.parametrize(
    ("operation", "factor"), [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("broadcast", 1.0)]
)
def test_the_bandwidth_of_the_bus_is_that_of_the_buffer_times_what_nccl_tests_defines(
    operation: str, factor: float
) -> None:
    assert bus_factor(operation, 4) == factor


@pytest.mark.parametrize(("reached", "hangs"), [(6, 0), (5, 1)])
def test_a_failed_collective_of_gloo_is_found_by_the_rank_that_never_called_it(
    tmp_path: Path, reached: int, hangs: int
) -> None:
    """Gloo records completed and failed collectives alike: scheduled, and retired."""
    paths = [tmp_path / "dump_0", tmp_path / "dump_1"]
    for path, last in zip(paths, (6, reached), strict=True):
        entries = [{**entry(n, "gloo:all_reduce", "scheduled"), "retired": True} for n in range(1, last + 1)]
        path.write_bytes(pickle.dumps(dump(entries, {"0": "[0, 1]"})))
    found = find_hangs([read_dump(path, fallback_rank=number) for number, path in enumerate(paths)])
    assert [(hang.number, hang.waiting, hang.culprits) for hang in found] == [(6, (0,), (1,))] * hangs
